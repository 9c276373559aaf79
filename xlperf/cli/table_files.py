"""Columns as CSV text and as Parquet: numbers that read back the same, texts that no spreadsheet takes for a formula.

Headers carry the unit as sheets do, ``memory bandwidth (TB/s)``, and values are in it. Arrow, if it is installed,
formats long tables several times faster, with the same bytes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import Part, shown

if TYPE_CHECKING:
    from xlperf.catalog.schema import Column

ARROW_ROWS = 2_000
"""Rows from which on Arrow makes the text of CSV: fewer do not pay for its import. [-]"""
_FLAGS = {"flag": {0.0: "no", 1.0: "yes"}, "result-flag": {0.0: "FALSE", 1.0: "TRUE"}}
_PLAIN = 1e-4, 1e10  # between them Arrow writes a number as Python does: without an exponent

_BARE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._()/%:-]*")  # neither a formula nor in need of quotation marks
_LISTED = re.compile(r"[A-Za-z0-9 ._()/%:;-]*,[A-Za-z0-9 ._()/%:;,-]*")


def texts(column: Column, values: np.ndarray) -> list[str]:
    """Values as CSV has them: shortest decimal that reads back the same, blank for NaN; no text is a formula.

    >>> from xlperf.catalog.schema import column
    >>> texts(column("training_results", "step_time"), np.array([0.1, 8.0, float("nan")]))
    ['0.1', '8', '']
    """
    from xlperf.catalog.csv_files import harmless

    if column.is_text:
        written = {value: harmless(str(value)) for value in dict.fromkeys(values.tolist())}
        return [written[value] for value in values.tolist()]
    if column.kind in _FLAGS:
        words = _FLAGS[column.kind]
        return [words.get(value, "") for value in values.tolist()]
    return [_decimal(value) for value in shown(column, values).tolist()]


def _decimal(value: float) -> str:
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    return "" if text == "nan" else text


# --- CSV


def csv_header(block: list[Part]) -> str:
    """First line of a CSV file of columns."""
    return _lines([[column.header for column, _ in block]])


def csv_rows(block: list[Part]) -> bytes:
    """Columns of one length as lines of CSV in UTF-8, without the header."""
    if len(block) > 1 and len(block[0][1]) >= ARROW_ROWS:
        try:
            return _arrow_rows(block)
        except ImportError:
            pass
    return _lines(zip(*(texts(column, values) for column, values in block), strict=True)).encode("utf-8")


def _quoted(word: str) -> str:
    """A text as a value of CSV, quoted if needed."""
    return f'"{word}"' if _LISTED.fullmatch(word) else _lines([[word, ""]])[:-2]


def _lines(rows: Iterable[Iterable[str]]) -> str:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def _arrow_rows(block: list[Part]) -> bytes:
    """As :func:`csv_rows`; the line breaks are the ends of the last column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [_arrow_texts(pa, pc, column, values) for column, values in block]
    columns[-1] = pc.binary_join_element_wise(columns[-1], "\n", "", null_handling="replace", null_replacement="")
    lines = pc.binary_join_element_wise(*columns, ",", null_handling="replace", null_replacement="")
    _, ends, content = lines.buffers()
    width = np.int64 if pa.types.is_large_string(lines.type) else np.int32
    last = int(np.frombuffer(ends, dtype=width)[lines.offset + len(lines)])
    return bytes(content.slice(0, last).to_pybytes())


def _arrow_texts(pa: Any, pc: Any, column: Column, values: np.ndarray) -> Any:
    """The values of :func:`texts` as an Arrow array with CSV quotes; null if blank."""
    from xlperf.catalog.csv_files import harmless

    if column.is_text:
        codes, words = _coded(values)
        quoted = [word if _BARE.fullmatch(word) else _quoted(harmless(word)) for word in words]
        return _strings(pa, quoted).take(_filled(pa, pa.int32(), codes, codes >= 0))
    if column.kind in _FLAGS:
        words = list(_FLAGS[column.kind].values())
        codes = np.where(values == 1.0, 1, 0).astype(np.int32)
        return _strings(pa, words).take(_filled(pa, pa.int32(), codes, (values == 0.0) | (values == 1.0)))
    numbers = np.ascontiguousarray(shown(column, values), dtype=np.float64)
    decimals = pc.cast(_filled(pa, pa.float64(), numbers, ~np.isnan(numbers)), pa.string())
    size = np.abs(numbers)
    odd = ((size < _PLAIN[0]) | (size >= _PLAIN[1])) & (size > 0.0) & (size < np.inf)
    if odd.any():
        packed = pa.py_buffer(np.packbits(odd, bitorder="little"))
        mask = pa.Array.from_buffers(pa.bool_(), len(odd), [None, packed])
        decimals = pc.replace_with_mask(
            decimals, mask, _strings(pa, [_decimal(value) for value in numbers[odd].tolist()])
        )
    return decimals


# --- Parquet


def pyarrow() -> tuple[Any, Any]:
    """Arrow and its reader and writer of Parquet."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise InputError(Fault("pyarrow", "is not installed, Parquet needs it: pip install pyarrow")) from None
    pa.set_memory_pool(pa.system_memory_pool())  # the others keep tens of MiB of what they freed
    return pa, pq


def arrow_table(block: list[Part]) -> Any:
    """Columns of one length as an Arrow table with units in its metadata; text as a dictionary, flags as bool, blanks
    as null.
    """
    pa, _ = pyarrow()
    arrays = [_arrow(pa, column, values) for column, values in block]
    fields = [
        pa.field(column.header, values.type, metadata={"unit": column.unit or "-"})
        for (column, _), values in zip(block, arrays, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def write_parquet(path: Path | IO[bytes], tables: Iterable[Any]) -> None:
    """Write Arrow tables of one schema below each other, each as a row group, in the memory of one of them.

    Numbers have no dictionary: results hardly repeat, and a dictionary takes half of the time and a fifth of the file.
    """
    pa, pq = pyarrow()
    writer = None
    try:
        for table in tables:
            if writer is None:
                texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
                writer = pq.ParquetWriter(path, table.schema, use_dictionary=texts)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def parquet_rows(files: Iterable[Path]) -> Iterable[Any]:
    """The rows of Parquet files as Arrow tables, one after the other."""
    _, pq = pyarrow()
    return (pq.read_table(file) for file in files)


def written_block(block: list[Part], suffix: str) -> bytes:
    """Columns of one length as a whole file of ``.csv`` or ``.parquet``."""
    if suffix == ".parquet":
        stream = io.BytesIO()
        write_parquet(stream, [arrow_table(block)])
        return stream.getvalue()
    return csv_header(block).encode("utf-8") + csv_rows(block)


def _arrow(pa: Any, column: Column, values: np.ndarray) -> Any:
    """A column as an Arrow array, made from buffers because other constructors import pandas."""
    if column.is_text:
        codes, words = _coded(values)
        return pa.DictionaryArray.from_arrays(_filled(pa, pa.int32(), codes, codes >= 0), _strings(pa, words))
    blank = np.isnan(values)
    if column.kind in _FLAGS:
        return _filled(pa, pa.bool_(), np.packbits(values == 1.0, bitorder="little"), ~blank)
    return _filled(pa, pa.float64(), np.ascontiguousarray(shown(column, values)), ~blank)


def _coded(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Texts as codes into distinct ones, -1 for blanks."""
    given = values.tolist()
    distinct = dict.fromkeys(given)
    distinct.pop("", None)
    codes = {word: code for code, word in enumerate(distinct)} | {"": -1}
    return np.fromiter(map(codes.__getitem__, given), np.int32, len(given)), list(map(str, distinct))


def _filled(pa: Any, kind: Any, content: np.ndarray, present: np.ndarray) -> Any:
    """An Arrow array from content and a mask of valid elements."""
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(present), [valid, pa.py_buffer(content)])


def _strings(pa: Any, words: list[str]) -> Any:
    content = "".join(words)
    encoded: Sequence[str | bytes] = words if content.isascii() else [word.encode("utf-8") for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(ends), pa.py_buffer(content.encode())])
