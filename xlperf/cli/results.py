"""Tables to files and terminals: CSV, Parquet and workbooks with plan columns first, then results.

Headers carry the unit as those of sheets do, ``memory bandwidth (TB/s)``, and values are in it. Numbers keep every bit
(shortest decimal that reads back the same). Blocks are written as they come, so that a table of any length
needs the memory of one block.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.cli.common import standard_output
from xlperf.cli.files import STANDARD

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.schema import Column
    from xlperf.catalog.table import Table

WORKBOOK_ROWS = 50_000  # more make a file that takes a minute to write and to open
_FLAGS = {"flag": {0.0: "no", 1.0: "yes"}, "result-flag": {0.0: "FALSE", 1.0: "TRUE"}}

Part = tuple["Column", "np.ndarray"]


def parts(*tables: Table) -> list[Part]:
    """Columns of tables of equal length side by side, with their schema."""
    return [(table.schema.by_name[name], values) for table in tables for name, values in table.columns.items()]


def write_blocks(path: str, blocks: Iterable[list[Part]]) -> None:
    """Write blocks of rows, one below the other, to a CSV or Parquet file or to standard output as CSV.

    Parameters
    ----------
    path : str
        File that ends in .csv or .parquet, or ``-``; replaced whole when all blocks are written.
    blocks : iterable of list of (Column, array)
        At least one; all have the same columns.
    """
    if path == STANDARD:
        _write_csv(standard_output(), blocks)
        return
    with replaced(path) as temporary:
        if temporary.suffix.lower() == ".parquet":
            _write_parquet(temporary, blocks)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                _write_csv(stream, blocks)


def write_workbook(path: str, sheets: Iterable[tuple[str, list[Table]]]) -> None:
    """Write tables to a workbook, one sheet for each group of tables of equal length.

    Parameters
    ----------
    path : str
        File that ends in .xlsx.
    sheets : iterable of (str, list of Table)
        Name of the sheet and the tables whose columns stand side by side.
    """
    write_columns(path, ((name, parts(*tables)) for name, tables in sheets))


def write_columns(path: str, sheets: Iterable[tuple[str, list[Part]]]) -> None:
    """Write columns to a workbook, one sheet for each group of columns of equal length.

    Parameters
    ----------
    path : str
        File that ends in .xlsx.
    sheets : iterable of (str, list of (Column, array))
        Name of the sheet and its columns, in the units used inside.
    """
    from openpyxl import Workbook

    from xlperf.workbook.package import save_workbook
    from xlperf.workbook.style import add_styles
    from xlperf.workbook.tables import cell_value, write_table

    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    add_styles(workbook)
    for name, block in sheets:
        if len(block[0][1]) > WORKBOOK_ROWS:
            raise InputError(Fault(path, f"a workbook takes {WORKBOOK_ROWS:,} rows; write .csv or .parquet"))
        sheet = workbook.create_sheet(name)
        series = [[cell_value(column, value) for value in values.tolist()] for column, values in block]
        rows = [list(row) for row in zip(*series, strict=True)]
        write_table(sheet, [column for column, _ in block], rows, top_left="A1")
    save_workbook(workbook, path)


def shown(column: Column, values: np.ndarray) -> np.ndarray:
    """Values in the unit of the column; those of a sheet as they were entered, 15 rather than 15.000000000000002."""
    import numpy as np

    from xlperf.catalog.schema import EVERY_TABLE, PLAN_TABLES, unit_of

    factor = unit_of(column).factor
    if column.is_text or factor == 1.0:
        return values
    found = values / factor
    if column.table in EVERY_TABLE or column.table in PLAN_TABLES:
        entered = np.array([float(f"{value:.15g}") for value in found.tolist()])
        found = np.where(entered * factor == values, entered, found)
    return found


def texts(column: Column, values: np.ndarray) -> list[str]:
    """Values as CSV has them: shortest decimal that reads back the same, blank for NaN; no text is a formula.

    >>> import numpy as np
    >>> from xlperf.catalog.schema import column
    >>> texts(column("training_results", "step_time"), np.array([0.1, 8.0, float("nan")]))
    ['0.1', '8', '']
    """
    from xlperf.catalog.csv_parquet import harmless

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


def _write_csv(stream: IO[str], blocks: Iterable[list[Part]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    for number, block in enumerate(blocks):
        if number == 0:
            writer.writerow([column.header for column, _ in block])
        writer.writerows(zip(*(texts(column, values) for column, values in block), strict=True))


def _write_parquet(path: Path, blocks: Iterable[list[Part]]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise InputError(Fault("pyarrow", "is not installed, Parquet needs it: pip install pyarrow")) from None

    writer = None
    try:
        for block in blocks:
            arrays = [_arrow(pa, column, values) for column, values in block]
            if writer is None:
                fields = [
                    pa.field(column.header, values.type, metadata={"unit": column.unit or "-"})
                    for (column, _), values in zip(block, arrays, strict=True)
                ]
                schema = pa.schema(fields)
                writer = pq.ParquetWriter(path, schema)
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    finally:
        if writer is not None:
            writer.close()


def _arrow(pa: Any, column: Column, values: np.ndarray) -> Any:
    """A column as Arrow has it: text as a dictionary, flags as bool, blanks as null.

    Made of buffers: what makes arrays of anything else imports pandas first.
    """
    import numpy as np

    if column.is_text:
        words = {word: code for code, word in enumerate(dict.fromkeys(word for word in values.tolist() if word))}
        codes = np.array([words.get(word, 0) for word in values.tolist()], dtype=np.int32)
        return pa.DictionaryArray.from_arrays(_filled(pa, pa.int32(), codes, values != ""), _strings(pa, list(words)))
    blank = np.isnan(values)
    if column.kind in _FLAGS:
        return _filled(pa, pa.bool_(), np.packbits(values == 1.0, bitorder="little"), ~blank)
    return _filled(pa, pa.float64(), np.ascontiguousarray(shown(column, values)), ~blank)


def _filled(pa: Any, kind: Any, content: np.ndarray, present: np.ndarray) -> Any:
    """An Arrow array of some content that is null where it is not present."""
    import numpy as np

    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(present), [valid, pa.py_buffer(content)])


def _strings(pa: Any, words: list[str]) -> Any:
    import numpy as np

    encoded = [word.encode("utf-8") for word in words]
    ends = np.cumsum([0, *(len(word) for word in encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(words), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])
