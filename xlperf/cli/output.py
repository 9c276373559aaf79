"""What commands put out: messages, progress, tables for a terminal, CSV, Parquet and workbooks.

Headers carry the unit as those of sheets do, ``memory bandwidth (TB/s)``, and values are in it. Numbers keep every bit
(shortest decimal that reads back the same). Blocks are written as they come, so that a table of any length
needs the memory of one block.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError, printable
from xlperf.base.files import replaced

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.schema import Column
    from xlperf.catalog.table import Table

STANDARD = "-"
DIGITS = 4
FITTED_ROWS = 2_000  # decimals of more rows follow from the unit alone
WORKBOOK_ROWS = 50_000  # more make a file that takes a minute to write and to open
_FLAGS = {"flag": {0.0: "no", 1.0: "yes"}, "result-flag": {0.0: "FALSE", 1.0: "TRUE"}}

Part = tuple["Column", "np.ndarray"]


def say(*lines: str, err: bool = False) -> None:
    """Print lines. All that a command prints goes through here: names and notes of a file cannot steer the terminal.

    Parameters
    ----------
    lines : str
        Printed one below the other; a line break inside one of them is written out.
    err : bool, default False
        Whether they go to standard error.
    """
    for line in lines:
        click.echo(printable(line), err=err)


def wrote(output: str, number: int, noun: str) -> None:
    """Say on standard error what a command wrote; nothing where that went to standard output.

    Parameters
    ----------
    output : str
        File, or ``-``.
    number : int
        Rows. [-]
    noun : str
        What a row is, in the singular.
    """
    if output != STANDARD:
        say(f"{output}: {number:,} {noun}{'s' if number != 1 else ''}", err=True)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], Any]]:
    """Show a progress bar on standard error; none where that is not a terminal.

    Parameters
    ----------
    length : int
        How many items there are; 0 where that is not known, then those that are done are counted.
    label : str
        What is done to them.

    Yields
    ------
    callable
        Call it with the number of items done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    if length:
        start = time.monotonic()
        with click.progressbar(length=length, label=label, file=sys.stderr, show_pos=True, show_percent=True) as bar:

            def advanced(done: int) -> None:
                rate = (bar.pos + done) / max(time.monotonic() - start, 1e-3)
                bar.label = f"{label}, {rounded(rate)}/s"
                bar.update(done)

            yield advanced
        return
    count = 0

    def counted(done: int) -> None:
        nonlocal count
        count += done
        sys.stderr.write(f"\r{count:,} {label}")
        sys.stderr.flush()

    yield counted
    sys.stderr.write("\n")


# --- tables


def parts(*tables: Table) -> list[Part]:
    """Columns of tables of equal length side by side, with their schema."""
    return [(table.schema.by_name[name], values) for table in tables for name, values in table.columns.items()]


def is_workbook(output: str) -> bool:
    """Whether an output is a workbook, which takes several sheets and a limited number of rows."""
    return Path(output).suffix.lower() == ".xlsx"


def write_sheets(output: str, sheets: Iterable[tuple[str, list[Part]]]) -> None:
    """Write columns of equal length by sheet to a workbook, or one below the other to CSV or Parquet.

    Parameters
    ----------
    output : str
        File that ends in .xlsx, .csv or .parquet, or ``-``; replaced whole when everything is written.
    sheets : iterable of (str, list of (Column, array))
        Name of the sheet and its columns, in the units used inside; but in a workbook all have the same columns.
    """
    if is_workbook(output):
        _write_workbook(output, sheets)
    elif output == STANDARD:
        _write_csv(standard_output(), (block for _, block in sheets))
    else:
        with replaced(output) as temporary:
            if temporary.suffix.lower() == ".parquet":
                _write_parquet(temporary, (block for _, block in sheets))
            else:
                with temporary.open("w", encoding="utf-8", newline="") as stream:
                    _write_csv(stream, (block for _, block in sheets))


def deliver(
    output: str | None,
    sheet: str,
    whole: list[Part],
    noun: str,
    shown: list[Part] | None = None,
    number: int | None = None,
) -> None:
    """Write a table and say of how many rows; print what of it a terminal shows where no output is named."""
    if output is None:
        say(*text_table(whole if shown is None else shown))
    else:
        write_sheets(output, [(sheet, whole)])
        wrote(output, len(whole[0][1]) if number is None else number, noun)


def text_table(block: list[Part]) -> list[str]:
    """Columns as lines of text: words to the left, numbers to the right; columns without any value are left out.

    Parameters
    ----------
    block : list of (Column, array)
        Columns of one length, in the units used inside.

    Returns
    -------
    list of str
        Lines without trailing blanks.
    """
    columns: list[list[str]] = []
    for column, values in block:
        inside = shown(column, values).tolist()
        cells = [printable(str(value)) for value in inside] if column.is_text else [rounded(value) for value in inside]
        if not any(cells):
            continue
        head = [column.name.replace("_", " "), column.unit if column.unit not in ("", "-") else ""]
        width = max(map(len, head + cells))
        lines = [*head, "-" * width, *cells]
        columns.append([line.ljust(width) if column.is_text else line.rjust(width) for line in lines])
    lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return [line for number, line in enumerate(lines) if line or number != 1]


def rounded(value: float) -> str:
    """Four significant digits, whole numbers in full.

    >>> [rounded(value) for value in (1234567.0, 0.0123456, 12.3456, float("nan"))]
    ['1,234,567', '0.01235', '12.35', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value) or value == 0.0:
        return f"{value:g}"
    if abs(value) >= 10**DIGITS or value.is_integer():
        return f"{value:,.0f}"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}" if decimals <= DIGITS + 4 else f"{value:.{DIGITS - 1}e}"


def _write_workbook(path: str, sheets: Iterable[tuple[str, list[Part]]]) -> None:
    from openpyxl import Workbook

    from xlperf.workbook.package import save_workbook
    from xlperf.workbook.result_front import add_front
    from xlperf.workbook.style import add_styles
    from xlperf.workbook.tables import cell_value, write_table

    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    add_styles(workbook)
    columns: dict[str, list[Column]] = {}
    for name, block in sheets:
        if len(block[0][1]) > WORKBOOK_ROWS:
            raise InputError(Fault(path, f"a workbook takes {WORKBOOK_ROWS:,} rows; write .csv or .parquet"))
        sheet = workbook.create_sheet(name)
        series = [[cell_value(column, value) for value in values.tolist()] for column, values in block]
        rows = [list(row) for row in zip(*series, strict=True)]
        columns[name] = [column for column, _ in block]
        write_table(sheet, columns[name], rows, top_left="A1", fitted=len(rows) <= FITTED_ROWS)
    command, asked = _asked()
    add_front(workbook, command, asked, columns)
    save_workbook(workbook, path)


def _asked() -> tuple[str, dict[str, str]]:
    """The command that runs, and what it was given on the command line."""
    context = click.get_current_context(silent=True)
    if context is None:
        return "xlperf", {}
    given: dict[str, str] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if value not in (None, (), False) and source is not None and source.name == "COMMANDLINE":
            given[name] = ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return context.command_path, given


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


def standard_output() -> IO[str]:
    """Standard output for data: UTF-8 with line feeds, as files are written, whatever the terminal takes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n", errors="backslashreplace")
    return sys.stdout


def _write_csv(stream: IO[str], blocks: Iterable[list[Part]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    for number, block in enumerate(blocks):
        if number == 0:
            writer.writerow([column.header for column, _ in block])
        writer.writerows(zip(*(texts(column, values) for column, values in block), strict=True))


def _write_parquet(path: Path | IO[bytes], blocks: Iterable[list[Part]]) -> None:
    pa, pq = _pyarrow()
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


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise InputError(Fault("pyarrow", "is not installed, Parquet needs it: pip install pyarrow")) from None
    return pa, pq


def write_block(stream: IO[bytes], block: list[Part], suffix: str) -> None:
    """Write columns of one length as a whole file.

    Parameters
    ----------
    stream : binary stream
        Where to.
    block : list of (Column, array)
        Columns, in the units used inside.
    suffix : str
        ``.csv`` or ``.parquet``.
    """
    if suffix == ".parquet":
        _write_parquet(stream, [block])
        return
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    _write_csv(text, [block])
    text.detach()


def joined_parquet(path: Path, files: Iterable[Path]) -> None:
    """Write the rows of Parquet files of one schema below each other, in the memory of one of them.

    Parameters
    ----------
    path : Path
        File to write.
    files : iterable of Path
        At least one.
    """
    _, pq = _pyarrow()
    writer = None
    try:
        for file in files:
            table = pq.read_table(file)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
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
