"""Readers of CSV and Parquet files: each column as codes into its distinct values, or as numbers."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.catalog.cells import factorise
from xlperf.catalog.parse import Coded
from xlperf.catalog.schema import split_header, table_schema

MOST_CELLS = 64 * 10**6
"""Values that the columns of plans may hold together: compressed, they may take a few bytes of the file. [-]"""
MOST_COLUMNS = 16_384
"""Columns of a file, as many as a sheet has. [-]"""
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


def parquet_place(name: str, header: Sequence[str], row: int, position: int) -> str:
    """Row and column of a value: ``plans.parquet [row 7, column tensor parallel]``."""
    parts = [f"row {row + 1}"] * (row >= 0) + [f"column {header[position]}"] * (position >= 0)
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


STANDARD = "-"
SIZE_LIMIT = 2 * 2**30
LINE_LIMIT = 4 * 2**20
"""Characters of a line. [-]"""
_STATED = re.compile(r"sep=([,;\t|])[\r\n]", re.IGNORECASE)
# What a spreadsheet takes for the start of a formula: at the start of a text, or behind whatever it may split a line at
# (a file with commas is split at semicolons where those are the list separator, at tabs by a paste). Signed numbers are
# none. Full-width signs count where East Asian input is set.
_SIGNS = "=@\uff1d\uff20"
_BATCH = r"(?:^|[;,\t|\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])"
_START = rf"(?:[{_SIGNS}\t\r]|[+\-\uff0b\uff0d](?=.)(?![0-9.]+(?:[eE][+-]?[0-9]+)?(?:$|[;,\t|\n\r])))"
_FORMULA = re.compile(rf"({_BATCH}(?:[ \xa0]*\"+|[ \xa0]+(?=['\"]*[{_SIGNS}]))?)('*)(?={_START})", re.DOTALL)
_BLOCK = 500  # small enough for the processor's cache and for rows to die before they are counted as garbage


@dataclass(frozen=True)
class CsvLines:
    """Lines of a CSV file, counted from 1: that of the header, and that on which each row starts."""

    name: str
    header: Sequence[str]
    header_line: int
    lines: np.ndarray

    def __call__(self, row: int, position: int) -> str:
        """Line and column of a value: ``plans.csv [line 7, tensor parallel]``."""
        line = int(self.lines[row]) if row >= 0 else self.header_line
        header = self.header[position].partition("(")[0].replace("_", " ") if position >= 0 else ""
        header = " ".join(header.split())[:60]
        return f"{self.name} [line {line}{', ' if header else ''}{header}]"


class CsvFile(NamedTuple):
    """Header of a CSV file, its columns as (codes, distinct texts), and where its cells stand."""

    header: Sequence[str]
    columns: list[Coded]
    locate: CsvLines


def read_csv(path: str | os.PathLike[str], name: str | None = None) -> CsvFile:
    """Read a CSV file, or standard input for ``-``.

    Commas, semicolons or tabs separate, or what a first line ``sep=;`` says as Excel reads it; UTF-8, or UTF-16 as
    Excel's "Unicode text". Blank lines are left out, and the apostrophe that :func:`harmless` puts before a text.

    Parameters
    ----------
    path : path-like
        File.
    name : str, optional
        Name for messages; default: that of the file.

    Raises
    ------
    InputError
        In one line, when the file is missing, a folder, empty or no text, or rows are longer than the header.
    """
    standard = str(path) == STANDARD
    shown = name or ("standard input" if standard else Path(path).name)
    text = _decoded(sys.stdin.buffer.read(SIZE_LIMIT + 1) if standard else _bytes(Path(path), shown), shown)
    _check_lines(text, shown)
    first = next((line for line in text[:1_000_000].splitlines() if line.strip()), "")
    if not first:
        raise InputError(Fault(shown, "is empty; a header row and rows of values are meant"))
    stated = _STATED.match(text)
    separator = stated[1] if stated is not None else max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    if stated is not None:
        next(reader)
    return _read(reader, shown)


def add_csv_row(path: Path, kind: str, row: Mapping[str, float | int | str]) -> int:
    """Add a row to a catalog table as CSV, which is made where there is none; columns that it lacks are added.

    Parameters
    ----------
    path : Path
        File; replaced whole.
    kind : str
        Kind of the table, such as ``models``.
    row : mapping
        Values by column, in the units of the schema; columns with another unit in their header are refused.

    Returns
    -------
    int
        Line of the row, counted from 1.

    Raises
    ------
    InputError
        Where the file is a table of another kind, the name is taken, or a header has another unit.
    """
    declared = table_schema(kind)
    lines: list[list[str]] = []
    if path.exists():
        lines = list(csv.reader(io.StringIO(_decoded(_bytes(path, path.name), path.name))))
    headers = [split_header(cell) for cell in lines[0]] if lines else []
    if lines and (not headers or headers[0][0] != declared.key.name):
        raise InputError(Fault(path.name, f'is no table of {kind}: its first header must be "{declared.key.name}"'))
    for name, symbol in headers:
        if name in row and symbol is not None and symbol != declared.by_name[name].unit:
            problem = f"has {name.replace('_', ' ')} in {symbol}; write it in {declared.by_name[name].unit}"
            raise InputError(Fault(path.name, problem))
    if any(line and line[0].strip().casefold() == str(row[declared.key.name]).casefold() for line in lines[1:]):
        raise InputError(Fault(path.name, f'"{row[declared.key.name]}" is there already; give the row another name'))
    names = [name for name, _ in headers]
    added = [column for column in declared.columns if column.name in row and column.name not in names]
    top = [*(lines[0] if lines else []), *(column.header for column in added)]
    names += [column.name for column in added]
    values = [row.get(name, "") for name in names]
    written = [harmless(value) if isinstance(value, str) else repr(value) for value in values]
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([top, *lines[1:], written])
    return len(lines[1:]) + 2


def harmless(text: str) -> str:
    """A text for a CSV file, with an apostrophe before each part that a spreadsheet would take for a formula.

    A part starts where the text does, and after a comma, semicolon, tab, bar or line break. :func:`read_csv` takes
    the apostrophes away again.

    >>> harmless("=1+1"), harmless("-2"), harmless("plan"), harmless("x;=1+1")
    ("'=1+1", '-2', 'plan', "x;'=1+1")
    """
    return _FORMULA.sub(r"\1'\2", text)


def _as_written(text: str) -> str:
    """A text without the apostrophes of :func:`harmless`."""
    return _FORMULA.sub(_unmarked, text) if "'" in text else text


def _unmarked(found: re.Match[str]) -> str:
    return found[1] + found[2][1:]


def _bytes(path: Path, name: str) -> bytes:
    try:
        if path.is_dir():
            raise InputError(Fault(name, "is a folder; a CSV file is meant"))
        if path.stat().st_size > SIZE_LIMIT:
            raise InputError(Fault(name, f"is larger than {SIZE_LIMIT >> 30} GiB; split it"))
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(Fault(str(path), "there is no such file")) from None
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from None


def _decoded(data: bytes, name: str) -> str:
    if len(data) > SIZE_LIMIT:
        raise InputError(Fault(name, f"is larger than {SIZE_LIMIT >> 30} GiB; split it"))
    if data[:4] in (b"PK\x03\x04", b"PAR1"):
        raise InputError(Fault(name, "is a workbook or a Parquet file; give it its ending, .xlsx or .parquet"))
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(Fault(f"{name} [line {line}]", "is not UTF-8 text; save it as CSV UTF-8")) from None
    if "\0" in text:
        raise InputError(Fault(name, "is no text: it holds zero bytes"))
    return text


def _read(reader: Iterable[list[str]], name: str) -> CsvFile:
    header: list[str] = []
    header_line, width = 1, 0
    seen: list[dict[str, int]] = []
    codes: list[list[np.ndarray]] = []
    lines: list[int] = []
    faults: list[Fault] = []
    block: list[list[str]] = []

    def flush() -> None:
        for index, texts in enumerate(zip(*block, strict=True)):
            known = seen[index]
            fresh = dict.fromkeys(texts)
            for text in fresh:
                known.setdefault(text, len(known))
            if len(fresh) == 1:
                codes[index].append(np.full(len(texts), known[texts[0]], dtype=np.int32))
            else:
                codes[index].append(np.fromiter(map(known.__getitem__, texts), np.int32, len(texts)))
        block.clear()

    rows = iter(reader)
    end = reader.line_num  # type: ignore[attr-defined]
    while True:
        start = end + 1
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            raise InputError(Fault(f"{name} [line {start}]", _malformed(error))) from None
        end = reader.line_num  # type: ignore[attr-defined]
        if not header:
            if len(row) > MOST_COLUMNS:
                problem = f"has {len(row):,} columns; {MOST_COLUMNS:,} are the most"
                raise InputError(Fault(f"{name} [line {start}]", problem))
            if any(cell.strip() for cell in row):
                header, header_line, width = row, start, len(row)
                seen = [{} for _ in header]
                codes = [[] for _ in header]
            continue
        if len(row) != width:
            if len(row) > width:
                if any(cell.strip() for cell in row[width:]):
                    problem = f"has {len(row)} values, the header has {width} columns"
                    faults.append(Fault(f"{name} [line {start}]", problem))
                row = row[:width]
            elif any(cell.strip() for cell in row):
                row = row + [""] * (width - len(row))
            else:
                continue
        block.append(row)
        lines.append(start)
        if len(block) == _BLOCK:
            flush()
    flush()
    if faults:
        raise InputError(faults)
    empty = np.zeros(0, dtype=np.int32)
    columns: list[Coded] = [
        (np.concatenate([empty, *parts]), list(map(_as_written, known)))
        for parts, known in zip(codes, seen, strict=True)
    ]
    return _without_blank_rows(columns, CsvLines(name, header, header_line, np.array(lines, dtype=np.int64)))


def _check_lines(text: str, name: str) -> None:
    """Refuse an overlong line before it is parsed: one of twice the limit at the latest."""
    end = "\n" if "\n" in text else "\r"
    at = 0
    while len(text) - at > LINE_LIMIT:
        found = text.find(end, at, at + LINE_LIMIT)
        if found < 0:
            line = text.count(end, 0, at) + 1
            problem = f"is longer than {LINE_LIMIT:,} characters; a header row and rows of values are meant"
            raise InputError(Fault(f"{name} [line {line}]", problem))
        at = text.rfind(end, at, at + LINE_LIMIT) + 1


def _malformed(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return 'a value that starts with " is not closed by another'
    if "expected after" in str(error):
        return 'text follows the " that closes a value; write "" for a quotation mark inside it'
    return f"is no CSV: {error}"


def _without_blank_rows(columns: list[Coded], places: CsvLines) -> CsvFile:
    """Leave out rows of separators alone."""
    blank = np.ones(len(places.lines), dtype=bool)
    for codes, distinct in columns:
        empties = np.array([not str(text).strip() for text in distinct or ()], dtype=bool)
        blank &= empties[codes] if empties.any() else False
    if blank.any():
        columns = [(codes[~blank], distinct) for codes, distinct in columns]
        places = replace(places, lines=places.lines[~blank])
    return CsvFile(places.header, columns, places)
