"""Reader of Parquet files: columns as codes into their distinct values, or as numbers, bounded before they unpack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import Coded
from xlperf.catalog.values import factorise

MOST_CELLS = 64 * 10**6
"""Values that the columns of plans may hold together, a few bytes of a file can stand for any number. [-]"""
MOST_COLUMNS = 16_384
MOST_BYTES = 2**30
"""What the columns of plans may unpack to. [B]"""
_FOOTER = 16 * 2**20
_MAGIC = b"PAR1"


def read_parquet(path: Path, wanted: Callable[[Sequence[str]], set[int]]) -> tuple[list[str], list[Coded]]:
    """Header and columns of a Parquet file.

    Parameters
    ----------
    path : Path
        File.
    wanted : callable
        Positions of the columns that are read, by the header; the others come back blank.

    Returns
    -------
    list of str, list of (codes, distinct)
        Numbers have no distinct values; NaN where blank.

    Raises
    ------
    InputError
        In one line, where the file is missing or no Parquet, beyond the limits, or a column holds more than one value
        a row.
    """
    if path.is_dir() or not path.exists():
        raise InputError(Fault(str(path), "is a folder" if path.is_dir() else "there is no such file"))
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(Fault(path.name, "Parquet needs pyarrow: pip install pyarrow")) from None
    try:
        _check_footer(path)
        with parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            if len(set(header)) < len(header):  # the header says so; nothing below it is looked at
                return header, [(np.zeros(0, dtype=np.int8), [None])] * len(header)
            positions = sorted(wanted(header))
            _check_size(path, file, positions)
            fields = [file.schema_arrow.field(position) for position in positions]
        for field in fields:
            problem = _unreadable(pa, field.type)
            if problem:
                raise InputError(
                    Fault(f"{path.name} [column {field.name}]", f"{problem}; a cell of a plan is one value")
                )
        twice = next((field.name for field in fields if header.count(field.name) > 1), None)
        if twice is not None:
            raise InputError(Fault(f"{path.name} [column {twice}]", "two columns have this name; rename one"))
        texts = [field.name for field in fields if _is_text(pa, field.type)]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            rows = file.metadata.num_rows
            found = file.read([field.name for field in fields])
        if len(found) != rows or found.num_columns != len(fields):
            raise InputError(Fault(path.name, "is damaged; write it again"))
        nothing: Coded = (np.zeros(rows, dtype=np.int8), [None])
        columns = [nothing] * len(header)
        for number, position in enumerate(positions):
            columns[position] = _coded(pa, found.column(number))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(Fault(path.name, f"is no Parquet file: {words}")) from None
    return header, columns


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


def _check_size(path: Path, file: Any, positions: Sequence[int]) -> None:
    metadata = file.metadata
    if metadata.num_columns > MOST_COLUMNS:
        raise InputError(Fault(path.name, f"has {metadata.num_columns:,} columns; {MOST_COLUMNS:,} are the most"))
    if metadata.num_rows * len(positions) > MOST_CELLS:
        problem = f"holds {metadata.num_rows:,} rows of {len(positions)} columns of plans; {MOST_CELLS:,} values are"
        raise InputError(Fault(path.name, f"{problem} the most: split it"))
    if metadata.num_columns != len(file.schema_arrow.names):  # nested columns: refused by their type
        return
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    if sum(group.column(place).total_uncompressed_size for group in groups for place in positions) > MOST_BYTES:
        raise InputError(Fault(path.name, f"unpacks to more than {MOST_BYTES >> 30} GiB; split it"))


def _is_text(pa: Any, kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _unreadable(pa: Any, kind: Any) -> str:
    """What a column holds that no cell does, in words."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_nested(kind):
        return f"holds {'tables' if pa.types.is_struct(kind) else 'maps' if pa.types.is_map(kind) else 'lists'}"
    readable = (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind) or pa.types.is_temporal(kind) or pa.types.is_null(kind) or _is_text(pa, kind)
    )  # fmt: skip
    return "" if readable else f"holds values of the type {kind}"


def _coded(pa: Any, column: Any) -> Coded:
    """One column as numbers, or as codes into distinct values; None where blank."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int8), [None]
    if pa.types.is_dictionary(kind) or _is_text(pa, kind):
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
