"""Reader of Parquet files: each column as codes into its distinct values, or as numbers; whole or in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import factorise
from xlperf.catalog.csv_files import MOST_COLUMNS, Wanted
from xlperf.catalog.table import Coded

MOST_CELLS = 64 * 10**6
"""Values that the columns of plans may hold together: compressed, they may take a few bytes of the file. [-]"""
CELLS_PER_BYTE = 64  # values per byte of a file that is read in blocks, if that allows more
MOST_BYTES = 2**30  # largest unpacked size of the plan columns that are read at once. [B]
_FOOTER = 16 * 2**20
_MAGIC = b"PAR1"


class ParquetRows(NamedTuple):
    """Rows of a Parquet file that follow each other."""

    header: list[str]
    columns: list[Coded]  # numbers NaN if blank; blank if not wanted
    first: int  # rows before them [-]


def parquet_blocks(path: Path, wanted: Wanted, rows: int | None) -> Iterator[ParquetRows]:
    """A Parquet file in blocks of ``rows`` rows, None for all; other columns than the ``wanted`` are blank."""
    if path.is_dir() or not path.exists():
        raise InputError(Fault(str(path), "is a folder" if path.is_dir() else "there is no such file"))
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(Fault(path.name, "Parquet needs pyarrow: pip install pyarrow")) from None
    with _read_errors(pa, path):
        _check_footer(path)
        with parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            if len(set(header)) < len(header):  # the header says so; nothing below it is looked at
                yield ParquetRows(header, [(np.zeros(0, dtype=np.int8), [None])] * len(header), 0)
                return
            positions = sorted(wanted(header))
            _check_size(path, file, positions, rows is not None)
            fields = [file.schema_arrow.field(position) for position in positions]
        _check_fields(pa, path, header, fields)
        texts = [field.name for field in fields if _is_text(pa, field.type)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            yield from _blocks(pa, path, file, header, positions, rows)


def _blocks(
    pa: Any, path: Path, file: Any, header: list[str], positions: list[int], rows: int | None
) -> Iterator[ParquetRows]:
    number, first = file.metadata.num_rows, 0
    names = [header[position] for position in positions]
    if rows is None or number <= rows or not names:
        tables = iter([file.read(names)])
    else:
        batches = file.iter_batches(batch_size=rows, columns=names, use_threads=False)
        tables = (pa.Table.from_batches([batch]) for batch in batches)
    for result in tables:
        if result.num_columns != len(names):
            raise InputError(Fault(path.name, "is damaged; write it again"))
        columns: list[Coded] = [(np.zeros(len(result), dtype=np.int8), [None])] * len(header)
        for place, position in enumerate(positions):
            columns[position] = _coded(pa, result.column(place))
        yield ParquetRows(header, columns, first)
        first += len(result)
    if names and first != number:
        raise InputError(Fault(path.name, "is damaged; write it again"))


@contextmanager
def _read_errors(pa: Any, path: Path) -> Iterator[None]:
    """Arrow's message for an unreadable file, in one line."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(Fault(path.name, f"is no Parquet file: {words}")) from None


def _check_fields(pa: Any, path: Path, header: Sequence[str], fields: Sequence[Any]) -> None:
    for field in fields:
        problem = _unreadable(pa, field.type)
        if problem:
            raise InputError(Fault(f"{path.name} [column {field.name}]", f"{problem}; a cell of a plan is one value"))
    twice = next((field.name for field in fields if header.count(field.name) > 1), None)
    if twice is not None:
        raise InputError(Fault(f"{path.name} [column {twice}]", "two columns have this name; rename one"))


def parquet_place(name: str, header: Sequence[str], first: int, row: int, position: int) -> str:
    """Row and column of a value: ``plans.parquet [row 7, column tensor parallel]``; rows of the file."""
    parts = [f"row {first + row + 1}"] * (row >= 0) + [f"column {header[position]}"] * (position >= 0)
    return f"{name} [{', '.join(parts) or 'columns'}]"


def _check_footer(path: Path) -> None:
    """Refuse a description of the columns that is itself beyond bounds, before it is parsed."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        tail = stream.read(8)
    if size < 12 or tail[4:] != _MAGIC:
        raise InputError(Fault(path.name, "is no Parquet file: it does not end as one"))
    if int.from_bytes(tail[:4], "little") > _FOOTER:
        problem = f"describes its columns in more than {_FOOTER >> 20} MiB; xlperf does not open it"
        raise InputError(Fault(path.name, problem))


def _check_size(path: Path, file: Any, positions: Sequence[int], in_blocks: bool) -> None:
    metadata = file.metadata
    if metadata.num_columns > MOST_COLUMNS:
        raise InputError(Fault(path.name, f"has {metadata.num_columns:,} columns; {MOST_COLUMNS:,} are the most"))
    most = max(MOST_CELLS, CELLS_PER_BYTE * path.stat().st_size) if in_blocks else MOST_CELLS
    if metadata.num_rows * len(positions) > most:
        problem = f"holds {metadata.num_rows:,} rows of {len(positions)} columns of plans; {most:,} values are"
        raise InputError(Fault(path.name, f"{problem} the most: split it"))
    if metadata.num_columns != len(file.schema_arrow.names):  # nested columns: refused by their type
        return
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [group.total_byte_size for group in groups]
    if sum(sizes) > MOST_BYTES:  # Arrow ends the process at a damaged description of a column: read none without need
        sizes = [sum(group.column(place).total_uncompressed_size for place in positions) for group in groups]
    if (max(sizes, default=0) if in_blocks else sum(sizes)) > MOST_BYTES:
        raise InputError(Fault(path.name, f"unpacks to more than {MOST_BYTES >> 30} GiB; split it"))


def _is_text(pa: Any, kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unreadable(pa: Any, kind: Any) -> str:
    """Content of a column that no cell can hold, in words."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(kind):
        return f"holds {'tables' if pa.types.is_struct(kind) else 'maps' if pa.types.is_map(kind) else 'lists'}"
    readable = (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_null(kind)
        or _is_text(pa, kind)
    )
    return "" if readable else f"holds values of the type {kind}"


def _coded(pa: Any, column: Any) -> Coded:
    """One column as numbers, or as codes into distinct values; None if blank."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int8), [None]
    if pa.types.is_dictionary(kind) or _is_text(pa, kind):
        if pa.types.is_dictionary(kind) and any(len(chunk.dictionary) > 2 * len(chunk) for chunk in column.chunks):
            column, kind = column.cast(kind.value_type), kind.value_type
        whole = column.unify_dictionaries() if pa.types.is_dictionary(kind) else column.dictionary_encode()
        chunks = whole.chunks
        distinct = [*(chunks[0].dictionary.to_pylist() if chunks else []), None]
        codes = [_numbers(pa, chunk.indices, len(distinct) - 1).astype(np.int32) for chunk in chunks]
        return np.concatenate([np.zeros(0, dtype=np.int32), *codes]), distinct
    if pa.types.is_boolean(kind):
        codes = [_numbers(pa, chunk, 2).astype(np.int8) for chunk in column.chunks]
        return np.concatenate([np.zeros(0, dtype=np.int8), *codes]), [False, True, None]
    if pa.types.is_temporal(kind):
        return factorise(column.to_pylist())
    numbers = [_numbers(pa, chunk, np.nan) for chunk in column.chunks]
    return np.concatenate([np.zeros(0), *numbers]), None


def _numbers(pa: Any, values: Any, blank: float) -> np.ndarray:
    """Numbers or flags of an array, with a number in the place of nulls."""
    numbers = np.array(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False), dtype=bool)
    numbers[missing] = blank
    return numbers
