"""Output of commands: messages, progress, tables on a terminal, in files and in workbooks.

Blocks are written as they come, so that a table of any length needs the memory of one block.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple

import click

from xlperf.base.errors import Fault, InputError, printable
from xlperf.base.files import replaced
from xlperf.base.units import percent
from xlperf.catalog.schema import Part, displayed, values_of

if TYPE_CHECKING:
    from xlperf.catalog.schema import Column
    from xlperf.catalog.table import Table


STANDARD = "-"
AS_JSON = "json"
"""Name for an output where --json asks for JSON on standard output; no file can have this name."""
FITTED_ROWS = 2_000  # decimals of more rows follow from the unit alone
WORKBOOK_ROWS = 50_000  # more make a file that takes a minute to write and to open


def say(*lines: str, err: bool = False, folded: bool = True) -> None:
    """Print lines. All that a command prints goes through here: names and notes of a file cannot steer the terminal.

    On a terminal sentences are ``folded`` between words; lines that a shell or a file shall take are not.
    """
    if _Progress.on_screen is not None:
        _Progress.on_screen.clear()
    terminal = sys.stderr.isatty() if err else is_terminal()
    coloured = not err and terminal and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size()[0] if terminal and folded else 0
    for line in lines:
        for words in fold(printable(line), width):
            click.echo(_TRUST.sub(_in_colour, words) if coloured else words, err=err)


def fold(line: str, width: int) -> list[str]:
    """A sentence as lines of at most ``width`` letters (0: any); rows of tables and indented lines as they are.

    >>> fold("16 H200 serve 500 users", 12), fold("way  engine  pools", 12), fold("5 % of 3.1 h", 11)
    (['16 H200', 'serve 500', 'users'], ['way  engine  pools'], ['5 % of', '3.1 h'])
    """
    if not width or len(line) <= width or "  " in line or line.startswith(" "):
        return [line]
    indent = "  " if line.startswith("- ") else ""
    whole = _UNIT.sub(_UNBROKEN, line)
    lines = wrap(whole, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)
    return [own.replace(_UNBROKEN, " ") for own in lines]


_UNBROKEN = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|(?:[kMT]|h|m?s|GB|MW)\b)")


_COLOURS = {"MEASURED": "green", "INTERPOLATED": "yellow", "EXTRAPOLATED": "red", "A FORECAST": "red"}
_TRUST = re.compile(rf"\b({'|'.join(_COLOURS)})\b")


def _in_colour(found: re.Match[str]) -> str:
    return click.style(found.group(), fg=_COLOURS[found.group()])


def wrote(output: str, number: int, noun: str) -> None:
    """Report on standard error the number of rows in a file; nothing for standard output."""
    if output not in (STANDARD, AS_JSON):
        say(f"{output}: {number:,} {noun}{'s' if number != 1 else ''}", err=True)


class Legal(NamedTuple):
    """How many of the plans that were evaluated are legal, and why the first that is not is illegal."""

    number: int
    legal: int
    reason: str

    def with_more(self, more: Legal) -> Legal:
        """The count with further plans."""
        return Legal(self.number + more.number, self.legal + more.legal, self.reason or more.reason)

    def words(self, kind: str) -> str:
        """``3 training plans``; how many are legal if not all are, and why the first illegal plan is not.

        >>> Legal(1, 0, "tp beyond heads").words("training"), Legal(2, 2, "").words("training")
        ('0 of 1 plans legal: tp beyond heads', '2 training plans')
        """
        if self.legal == self.number:
            return f"{self.number:,} {kind} plan{'s' if self.number != 1 else ''}"
        first = "; the first illegal plan" if self.number - self.legal > 1 else ""
        return f"{self.legal:,} of {self.number:,} plans legal{first}: {self.reason}"


NONE_COUNTED = Legal(0, 0, "")


def legal_of(results: Table) -> Legal:
    """How many rows of results have numbers, and the reason of the first that has none."""
    memory = results.number("memory")
    lacking = memory != memory
    reason = str(results.text("reason")[lacking.argmax()]) if lacking.any() else ""
    return Legal(len(memory), len(memory) - int(lacking.sum()), reason)


_BEGUN = time.monotonic()
_LONG = 1.0
"""Time after which a terminal shows how long a table took. [s]"""


def took(number: int, noun: str) -> None:
    """Print on a terminal, as the last line, the number of rows and the time if it exceeds a second."""
    seconds = time.monotonic() - _BEGUN
    if sys.stderr.isatty() and seconds > _LONG:
        say(f"{number:,} {noun}{'s' if number != 1 else ''} in {seconds:.1f} s", err=True)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], Any]]:
    """How far the work is, on standard error; yields a function that adds the number of items done. A ``length`` of 0
    is unknown.
    """
    line = _Progress(length, label)
    yield line.advanced
    line.clear()


@contextmanager
def working(label: str) -> Iterator[None]:
    """Elapsed time on a terminal's standard error, for work without progress."""
    if not sys.stderr.isatty():
        yield
        return
    start, done = time.monotonic(), threading.Event()

    def tick() -> None:
        while not done.wait(_LONG):
            sys.stderr.write(f"\r{label}, {time.monotonic() - start:.0f} s")
            sys.stderr.flush()

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        done.set()
        ticking.join()
        sys.stderr.write(f"\r{' ' * (len(label) + 12)}\r")


_EVERY, _EVERY_PIPED = 0.2, 10.0
"""Time between two lines of progress, on a terminal and in a pipe or a file. [s]"""


class _Progress:
    """Line of progress: items done of all, rate, time left. Printing anything else clears it first."""

    on_screen: ClassVar[_Progress | None] = None

    def __init__(self, length: int, label: str) -> None:
        self.length, self.label, self.count, self.width = length, label, 0, 0
        self.moves = sys.stderr.isatty()
        self.begun = time.monotonic()
        self.next = self.begun + (_EVERY if self.moves else _EVERY_PIPED)

    def advanced(self, done: int) -> None:
        self.count += done
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (_EVERY if self.moves else _EVERY_PIPED)
        words = progress_words(self.count, self.length, self.label, now - self.begun)
        if self.moves:
            _Progress.on_screen = self
            sys.stderr.write(f"\r{words:<{self.width}}")
            self.width = len(words)
        else:
            sys.stderr.write(f"{words}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if _Progress.on_screen is self:
            sys.stderr.write(f"\r{' ' * self.width}\r")
            sys.stderr.flush()
            self.width, _Progress.on_screen = 0, None


def progress_words(count: int, length: int, label: str, seconds: float) -> str:
    """Items done of all with their share, the rate, and the time that is left.

    >>> progress_words(250, 1000, "1,000 training plans", 5.0)
    '1,000 training plans: 250 done, 25 %, 50/s, 15 s left'
    >>> progress_words(250, 0, "plans tried", 5.0)
    'plans tried: 250, 50/s, 5 s'
    >>> progress_words(5, 15, "15 answers", 31.0)
    '15 answers: 5 done, 33 %, 6 s each, 62 s left'
    """
    rate = count / max(seconds, 1e-3)
    speed = f"{1.0 / rate:.0f} s each" if 0.0 < rate < 1.0 else f"{rate:,.0f}/s"
    if not length or not count:
        return f"{label}: {count:,}, {speed}, {_time(seconds)}"
    left = (length - count) / rate
    return f"{label}: {count:,} done, {percent(count / length, 0)}, {speed}, {_time(left)} left"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60.0:.0f} min"


# --- tables


def is_workbook(output: str) -> bool:
    """Whether an output is a workbook, which takes several sheets and a limited number of rows."""
    return Path(output).suffix.lower() == ".xlsx"


def is_json(output: str | None) -> bool:
    """Whether an output is JSON, in a file or on standard output."""
    return output is not None and (output == AS_JSON or Path(output).suffix.lower() == ".json")


def is_page(output: str) -> bool:
    """Whether an output is an HTML page."""
    return Path(output).suffix.lower() == ".html"


class Front(NamedTuple):
    """Input of the front sheet of a workbook of results, beside its tables."""

    wanted: Sequence[str] = ()  # columns that the command asked for, drawn first: objectives, results, varied columns
    answers: Sequence[str] = ()  # answers in words
    nested: Mapping[str, list[Part]] = MappingProxyType({})  # tables inside each object of JSON


NOTHING_SAID = Front()


def write_sheets(output: str, sheets: Iterable[tuple[str, list[Part]]], front: Front = NOTHING_SAID) -> None:
    """Write columns by sheet to a workbook, or one below the other to CSV, Parquet or JSON, where all sheets have the
    same columns. A file is replaced whole when everything is written.
    """
    if is_workbook(output):
        _write_workbook(output, sheets, front)
    elif output == STANDARD:
        _write_csv(standard_output(), (block for _, block in sheets))
    elif output == AS_JSON:
        _write_json(standard_output(), (block for _, block in sheets), front.nested)
    else:
        from xlperf.cli.table_files import arrow_table, write_parquet

        with replaced(output) as temporary:
            if temporary.suffix.lower() == ".parquet":
                write_parquet(temporary, (arrow_table(block) for _, block in sheets))
            else:
                with temporary.open("w", encoding="utf-8", newline="") as stream:
                    if is_json(output):
                        _write_json(stream, (block for _, block in sheets), front.nested)
                    else:
                        _write_csv(stream, (block for _, block in sheets))


def _write_csv(stream: IO[str], blocks: Iterable[list[Part]]) -> None:
    from xlperf.cli.table_files import csv_header, csv_rows

    for number, block in enumerate(blocks):
        if number == 0:
            stream.write(csv_header(block))
        stream.write(str(csv_rows(block), "utf-8"))


def _write_json(stream: IO[str], blocks: Iterable[list[Part]], nested: Mapping[str, list[Part]]) -> None:
    """An object for each row, by name and unit as in ``ttft_ms``, with null for blanks; each holds the tables of
    ``nested``.
    """
    inside = {name: list(_objects(block)) for name, block in nested.items()}
    stream.write("[")
    before = "\n"
    for block in blocks:
        for row in _objects(block):
            stream.write(f"{before}{json.dumps(row | inside)}")
            before = ",\n"
    stream.write("\n]\n")


def _objects(block: list[Part]) -> Iterator[dict[str, Any]]:
    keys = [json_key(column.header) for column, _ in block]
    for row in zip(*(values_of(column, values) for column, values in block), strict=True):
        yield dict(zip(keys, row, strict=True))


def json_key(header: str) -> str:
    """Key of a column in JSON: its name and its unit in small letters.

    >>> json_key("ttft (ms)"), json_key("tokens per second (token/s)"), json_key("num accelerators")
    ('ttft_ms', 'tokens_per_second_token_per_s', 'num_accelerators')
    """
    return re.sub(r"\W+", "_", header.replace("/", " per ").casefold()).strip("_")


def deliver(
    output: str | None,
    sheet: str,
    whole: list[Part],
    noun: str,
    shown: list[Part] | None = None,
    number: int | None = None,
    front: Front = NOTHING_SAID,
) -> None:
    """Write a table and report the number of rows; without an output print the part for a terminal."""
    if output is None:
        say(*text_table(whole if shown is None else shown))
        took(len(whole[0][1]) if number is None else number, noun)
    elif is_page(output):
        write_tables_page(output, [(f"{noun}s", whole if shown is None else shown)], front.answers)
        wrote(output, len(whole[0][1]), noun)
    else:
        write_sheets(output, [(sheet, whole)], front)
        wrote(output, len(whole[0][1]) if number is None else number, noun)


def write_tables_page(
    output: str,
    tables: list[tuple[str, list[Part]]],
    lines: Sequence[str],
    title: str = "",
    charts: Sequence[str] | None = None,
) -> None:
    """Write tables as a page to send, below a title, else the command that asked, and some sentences."""
    from xlperf.page.answer import write_tables

    path, given = asked_of()
    asked = ", ".join(f"{name} {words}" for name, words in given.items() if name not in ("output", "study"))
    write_tables(output, title or path, [*lines, *([f"asked: {asked}"] if asked else [])], tables, charts)


def text_table(block: list[Part]) -> list[str]:
    """Columns as lines of text, as wide as the terminal: words to the left, numbers to the right, without columns that
    have no value.
    """
    columns = [TextColumn.of(column, values) for column, values in block]
    return narrowed([column for column in columns if any(column.cells)], terminal_width())


class TextColumn(NamedTuple):
    """Heading, unit and cells of a column of text, and whether they are numbers."""

    name: str
    unit: str
    cells: list[str]
    is_number: bool

    @classmethod
    def of(cls, column: Column, values: Any) -> TextColumn:
        """The column of a table in words."""
        return cls(column.name.replace("_", " "), *displayed(column, values), not column.is_text)

    def folded(self, longest: int) -> TextColumn:
        """The column with cells on lines of at most so many letters."""
        return self._replace(cells=["\n".join(wrap(cell, longest)) for cell in self.cells])

    @property
    def across(self) -> int:
        """Letters of the longest line of a cell."""
        return max(len(line) for cell in self.cells for line in cell.split("\n"))

    def lines(self, heads: int, wrapped: bool) -> list[str]:
        """The heading on ``heads`` lines, the unit, a rule, the cells."""
        across = max(len(word) for word in (self.unit, *self.cells))
        name = wrap(self.name, max(across, *map(len, self.name.split()))) if wrapped else [self.name]
        head = [*[""] * (heads - len(name)), *name, self.unit]
        return [*head, "-" * max(map(len, (*head, *self.cells))), *self.cells]


def terminal_width() -> int:
    """Width that a table may have: that of the terminal; 0: any, in a pipe and with --wide."""
    context = click.get_current_context(silent=True)
    wide = context is not None and context.meta.get(WIDE, False)
    return shutil.get_terminal_size()[0] if is_terminal() and not wide else 0


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


WIDE = "xlperf.wide"
"""Name under which a command keeps that tables have all their columns."""


_DETAILS = (
    *("m", "n", "k", "batch", "model", "accelerator", "sheet", "calls", "plan", "cost before", "cost after"),
    *("sequence length", "arithmetic intensity", "ideal bound", "rank", "num accelerators"),
)
"""Columns that a narrow terminal leaves out before results, the first of them first."""
_KEPT = (
    *("operator", "time", "total time", "share", "bound", "step time", "ttft", "tpot", "memory", "memory reserved"),
    *("constant", "value", "unit", "why", "rows", "runs", "median", "median error", "bias", "in the 80 % band"),
    *("cause", "probability", "predicted", "input", "worth", "trust", "frontier", "tokens per second per accelerator"),
    *(
        "before",
        "after",
        "cash",
        "present cost",
        "cost per million tokens",
        "cost per million output tokens all in",
        "mfu",
    ),
)
"""Columns that it leaves out last; their texts are folded before."""


def narrowed(columns: Sequence[TextColumn], width: int) -> list[str]:
    """A table as lines no wider than ``width`` (0: any); shared values and the names of other columns are below it.

    Long texts are left out first, then :data:`_DETAILS`, then the last columns that are not :data:`_KEPT`.

    >>> rows = [TextColumn("name", "", ["a", "b"], False), TextColumn("model", "", ["GPT", "GPT"], False),
    ...         TextColumn("step time", "s", ["1.5", "2.5"], True), TextColumn("memory", "GiB", ["70", "60"], True)]
    >>> for line in narrowed(rows, 12): print(line)
          step
    name  time
             s
    ----  ----
    a      1.5
    b      2.5
    <BLANKLINE>
    All rows: model GPT.
    Left out: memory; --wide or -o FILE shows all.
    """
    lines = _side_by_side(columns, wrapped=False)
    if not width or max(map(len, lines), default=0) <= width:
        return lines
    first, rest = columns[0], list(columns[1:])
    shared = [column for column in rest if len(column.cells) > 1 and len(set(column.cells)) == 1]
    rest = [column for column in rest if column not in shared]
    longest = max(width // 3, 16)
    first = first.folded(longest)
    left_out: list[TextColumn] = []
    while True:
        lines = _side_by_side([first, *rest], wrapped=True)
        if max(map(len, lines), default=0) <= width or not rest:
            break
        details = [column for name in _DETAILS for column in rest if column.name == name]
        others = [column for column in rest if column.name not in _KEPT]
        long = [column for column in others if not column.is_number and column.across > longest]
        kept = [column for column in rest if not column.is_number and column.across > longest]
        if kept and not (long or details or others):
            rest[rest.index(kept[-1])] = kept[-1].folded(longest)
        else:
            left_out.append(rest.pop(rest.index([*long[-1:], *details, *others[-1:], rest[-1]][0])))
    below = []
    if shared:
        below.append(f"All rows: {', '.join(f'{one.name} {one.cells[0]} {one.unit}'.rstrip() for one in shared)}.")
    if left_out:
        names = ", ".join(column.name for column in reversed(left_out))
        below.append(f"Left out: {names}; {_way_to_all()} shows all.")
    return [*lines, *([""] if below else []), *(line for words in below for line in wrap(words, width))]


def _way_to_all() -> str:
    """What a command that has left out columns may be given instead: its options, or a pipe where it lacks them."""
    context = click.get_current_context(silent=True)
    lacks = context is not None and not any("--wide" in option.opts for option in context.command.params)
    return "a pipe as | less -S" if lacks else "--wide or -o FILE"


def _side_by_side(columns: Sequence[TextColumn], wrapped: bool) -> list[str]:
    parted = [[cell.split("\n") for cell in row] for row in zip(*(column.cells for column in columns), strict=True)]
    tall = [[parts + [""] * (max(map(len, row)) - len(parts)) for parts in row] for row in parted]
    columns = [
        column._replace(cells=[line for row in tall for line in row[place]]) for place, column in enumerate(columns)
    ]
    heads = 1
    if wrapped:
        heads = max(len(column.lines(0, True)) - len(column.cells) - 2 for column in columns)
    lines = aligned([column.lines(heads, wrapped) for column in columns], [column.is_number for column in columns])
    return [line for number, line in enumerate(lines) if line or number != heads]


def aligned(columns: Sequence[Sequence[str]], to_right: Sequence[bool]) -> list[str]:
    """Columns of words side by side as lines, without trailing blanks.

    >>> aligned([["way", "1"], ["$/M", "0.5"]], [False, True])
    ['way  $/M', '1    0.5']
    """
    widths = [max(map(len, words), default=0) for words in columns]
    padded = [
        [word.rjust(width) if right else word.ljust(width) for word in words]
        for words, width, right in zip(columns, widths, to_right, strict=True)
    ]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


_PAGE, _PAGES = 200.0, 4
"""Characters that a page takes across, and pages across at the most: wider tables are printed smaller. [-]"""


def _write_workbook(path: str, sheets: Iterable[tuple[str, list[Part]]], front: Front) -> None:
    from openpyxl import Workbook

    from xlperf.workbook.package import cell_value, save_workbook, write_table
    from xlperf.workbook.report.result_charts import add_front
    from xlperf.workbook.style import add_styles, page_setup

    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    add_styles(workbook)
    tables: dict[str, tuple[list[Column], list[list[Any]]]] = {}
    for name, block in sheets:
        if len(block[0][1]) > WORKBOOK_ROWS:
            raise InputError(Fault(path, f"a workbook takes {WORKBOOK_ROWS:,} rows; write .csv or .parquet"))
        sheet = workbook.create_sheet(name)
        series = [[cell_value(column, value) for value in values.tolist()] for column, values in block]
        rows = [list(row) for row in zip(*series, strict=True)]
        columns = [column for column, _ in block]
        write_table(sheet, columns, rows, top_left="A1", fitted=len(rows) <= FITTED_ROWS)
        across = sum(sheet.column_dimensions[letter].width for letter in sheet.column_dimensions)
        page_setup(sheet, 1, pages_wide=max(1, min(round(across / _PAGE), _PAGES)), key_columns="A:A")
        tables[name] = columns, rows
    command, asked = asked_of()
    add_front(workbook, command, asked, tables, front.wanted, front.answers)
    save_workbook(workbook, path)


def asked_of() -> tuple[str, dict[str, str]]:
    """The running command, and its arguments on the command line."""
    context = click.get_current_context(silent=True)
    if context is None:
        return "xlperf", {}
    called = {option.name: max(option.opts, key=len).strip("-") for option in context.command.params}
    given: dict[str, str] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if value not in (None, (), False) and source is not None and source.name == "COMMANDLINE":
            words = ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
            given[called.get(name, name)] = "yes" if value is True else words
    return context.command_path, given


def standard_output() -> IO[str]:
    """Standard output for data: UTF-8 with line feeds, as files are written, whatever the terminal takes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n", errors="backslashreplace")
    return sys.stdout


def listed_choices(choices: Sequence[str]) -> tuple[str, str]:
    """Choices as they stand beside an option; many have a name there, and are listed in a sentence."""
    beside = "|".join(choices)
    return ("NAME", f" One of {', '.join(choices)}.") if len(beside) > _BESIDE else (beside, "")


_BESIDE = 60
"""Letters of choices that stand beside an option at the most. [-]"""
