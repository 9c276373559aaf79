"""Reader of CSV files, each column as codes into its distinct texts, and the escapes of written CSV."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.catalog.schema import PLAN_TABLES, canonical, schema, split_header
from xlperf.catalog.table import Coded, end_of_plans

STANDARD = "-"
MOST_COLUMNS = 16_384  # columns of a file, as many as a sheet has
SIZE_LIMIT = 2 * 2**30
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how a file of UTF-16 starts
LINE_LIMIT = 4 * 2**20  # characters of a line
_STATED = re.compile(r"sep=([,;\t|])[\r\n]", re.IGNORECASE)
# What a spreadsheet takes for the start of a formula: at the start of a text, or behind whatever it may split a line at
# (a file with commas is split at semicolons where those are the list separator, at tabs by a paste). Signed numbers are
# none. Full-width signs count where East Asian input is set.
_SIGNS = "=@\uff1d\uff20"
_BATCH = r"(?:^|[;,\t|\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])"
_START = rf"(?:[{_SIGNS}\t\r]|[+\-\uff0b\uff0d](?=.)(?![0-9.]+(?:[eE][+-]?[0-9]+)?(?:$|[;,\t|\n\r])))"
_FORMULA = re.compile(rf"({_BATCH}(?:[ \xa0]*\"+|[ \xa0]+(?=['\"]*[{_SIGNS}]))?)('*)(?={_START})", re.DOTALL)
_FIRST = 2**20  # bytes that are read at once of a file whose lines are not known yet. [B]
_BYTES_OF_CHARACTER = 4
_MALFORMED = {
    "unexpected end": 'a value that starts with " is not closed by another',
    "expected after": 'text follows the " that closes a value; write "" for a quotation mark inside it',
}
Wanted = Callable[[Sequence[str]], set[int]]  # positions of the columns to read, from the header
_BLOCK = 500  # small enough for the processor's cache and for rows to die before they are counted as garbage


@dataclass(frozen=True)
class CsvLines:
    """Line numbers of a CSV file, counted from 1: of the header, and of the start of each row."""

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
    """Header of a CSV file, its columns as (codes, distinct texts), and the places of its cells."""

    header: Sequence[str]
    columns: list[Coded]
    locate: CsvLines


def read_csv(path: str | os.PathLike[str]) -> CsvFile:
    """A CSV file, or standard input for ``-``, without blank lines and the apostrophes of :func:`harmless`."""
    with opened(path, SIZE_LIMIT) as (stream, name):
        return _whole_csv(all_of(stream, name), name)


def _whole_csv(data: bytes, name: str) -> CsvFile:
    text = decoded(data, name)
    check_lines(text, name)
    rows = CsvRows(name)
    rows.add(csv.reader(io.StringIO(text, newline=""), delimiter=rows.start(text), strict=True))
    raise_faults(rows.faults)
    return rows.taken(is_whole=True)


def harmless(text: str) -> str:
    """A text for a CSV file, with an apostrophe before each part, such as after a comma or line break, that a
    spreadsheet would take for a formula.

    >>> harmless("=1+1"), harmless("-2"), harmless("plan"), harmless("x;=1+1")
    ("'=1+1", '-2', 'plan', "x;'=1+1")
    """
    return _FORMULA.sub(r"\1'\2", text)


def as_written(text: str) -> str:
    """A text without the apostrophes of :func:`harmless`."""
    return _FORMULA.sub(lambda match: match[1] + match[2][1:], text) if "'" in text else text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as the text of a CSV file."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def read_text(path: Path, meant: str, most: int = 64 * 2**20) -> str:
    """A text file of UTF-8 of limited bytes; InputError, which says what file is ``meant``, if it cannot be read."""
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(Fault(str(path), f"has {size >> 20} MiB; {meant} of {most >> 20} MiB at most is read"))
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "it is no text"
        raise InputError(Fault(str(path), f"cannot be read: {reason.lower()}; {meant} is meant")) from None


def all_of(stream: BinaryIO, name: str, first: bytes = b"") -> bytes:
    """The bytes of a file after ``first``; a file with an endless line is refused before more of it is read."""
    pieces, lines, length, size = [], {b"\n": 0, b"\r": 0}, 0, 0
    piece = first or stream.read(_FIRST)
    while piece:
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        length = len(piece) - 1 - end if end >= 0 else length + len(piece)
        size += len(piece)
        for end_of_line in lines:
            lines[end_of_line] += piece.count(end_of_line)
        if length > _BYTES_OF_CHARACTER * LINE_LIMIT:
            raise InputError(_overlong(name, 1 + (lines[b"\n"] or lines[b"\r"])))
        pieces.append(piece)
        if size > SIZE_LIMIT:
            break
        piece = stream.read(_FIRST)
    return b"".join(pieces)


@contextmanager
def opened(path: str | os.PathLike[str], most: float = math.inf) -> Iterator[tuple[BinaryIO, str]]:
    """A file of a limited number of bytes, or standard input, to read from, and its name in messages."""
    if str(path) == STANDARD:
        yield sys.stdin.buffer, "standard input"
        return
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError(Fault(file.name, "is a folder; a CSV file is meant"))
        if file.stat().st_size > most:
            raise InputError(Fault(file.name, f"is larger than {SIZE_LIMIT >> 30} GiB; split it"))
        stream = file.open("rb")
    except FileNotFoundError:
        raise InputError(Fault(str(path), "there is no such file")) from None
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be read: {error.strerror}")) from None
    with stream:
        yield stream, file.name


def decoded(data: bytes, name: str, line: int = 0) -> str:
    """The text of a file, or of the part after its first lines."""
    if len(data) > SIZE_LIMIT:
        raise InputError(Fault(name, f"is larger than {SIZE_LIMIT >> 30} GiB; split it"))
    if not line and data[:4] in (b"PK\x03\x04", b"PAR1"):
        raise InputError(Fault(name, "is a workbook or a Parquet file; give it its ending, .xlsx or .parquet"))
    encoding = "utf-8" if line else "utf-16" if data[:2] in UTF16 else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start) + 1
        raise InputError(Fault(f"{name} [line {line}]", "is not UTF-8 text; save it as CSV UTF-8")) from None
    if "\0" in text:
        raise InputError(Fault(name, "is no text: it holds zero bytes"))
    return text


_SEPARATORS = ",;\t|"
_SEPARATOR = re.compile(f"[{_SEPARATORS}]")
_MOST_LEADING = 20  # rows that may stand above a header
_KNOWN_NAMES = 3  # columns of plans that a row below another one names if it is the header


class CsvRows:
    """Rows of a CSV file as they are read: each column as codes into the distinct texts since the last block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.header: list[str] = []  # first line that is not blank
        self.width, self.line = 0, 0  # columns of the header, and lines that were read [-]
        self.faults = list[Fault]()  # rows that are longer than the header
        self._header_line = 1
        self._stated, self._is_plans, self._above = False, False, 0
        self._seen: list[dict[str, int]] = []
        self._codes: list[list[np.ndarray]] = []
        self._lines: list[int] = []

    def start(self, text: str) -> str:
        """The separator of a file, from the text that it starts with."""
        lines = [line for line in text[:1_000_000].splitlines() if line.strip()]
        first = next((line for line in lines if _SEPARATOR.search(line)), "".join(lines[:1]))
        if not first:
            raise InputError(Fault(self.name, "is empty; a header row and rows of values are meant"))
        stated = _STATED.match(text)
        self._stated = stated is not None
        separator = stated[1] if stated is not None else max(_SEPARATORS, key=first.count)
        self._above = self._lines_above(text[:_FIRST], separator)
        return separator

    def _lines_above(self, text: str, separator: str) -> int:
        """Lines above the row that names the most columns of plans: titles, and a row of groups of columns."""
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        above, most, before = 0, _KNOWN_NAMES - 1, 0
        with suppress(csv.Error):
            for row in islice(reader, _MOST_LEADING):
                names = [split_header(cell)[0] for cell in row]
                known = max(
                    len({canonical(kind, name) for name in names} & schema()[kind].by_name.keys())
                    for kind in PLAN_TABLES
                )
                if known > most:
                    above, most = before, known
                before = reader.line_num
        self._is_plans = most >= _KNOWN_NAMES
        return above

    def add(self, reader: Any, until: Callable[[], bool] = bool) -> None:
        """Read rows from a strict reader to the end, or until a function, called after each row, returns true."""
        if self._stated:
            self._stated = False
            next(reader)
        before, block = self.line, list[list[str]]()
        end, width = before + reader.line_num, self.width
        while not until():
            start = end + 1
            try:
                row = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                wrong = (words for reason, words in _MALFORMED.items() if reason in str(error))
                raise InputError(Fault(f"{self.name} [line {start}]", next(wrong, f"is no CSV: {error}"))) from None
            end = before + reader.line_num
            if start <= self._above:
                continue
            if not self.header:
                if len(row) > MOST_COLUMNS:
                    problem = f"has {len(row):,} columns; {MOST_COLUMNS:,} are the most"
                    raise InputError(Fault(f"{self.name} [line {start}]", problem))
                written = [cell for cell in row if cell.strip()]
                # A title above the table, alone in its row, or a comment.
                if len(written) > 1 or (written and len(row) == 1 and not written[0].startswith("#")):
                    self.header, self._header_line, self.width = row, start, len(row)
                    width = len(row)
                    self._clear()
                continue
            if len(row) != width:
                if len(row) > width:
                    if any(cell.strip() for cell in row[width:]):
                        problem = f"has {len(row)} values, the header has {width} columns"
                        self.faults.append(Fault(f"{self.name} [line {start}]", problem))
                    row = row[:width]
                else:
                    row = row + [""] * (width - len(row))
            if row[0].startswith("#") and not any(map(str.strip, row[1:])):  # a comment
                row = [""] * width
            block.append(row)
            self._lines.append(start)
            if len(block) == _BLOCK:
                self._flush(block)
        self._flush(block)
        self.line = end

    def _flush(self, block: list[list[str]]) -> None:
        for index, texts in enumerate(zip(*block, strict=True)):
            known = self._seen[index]
            fresh = dict.fromkeys(texts)
            for text in fresh:
                known.setdefault(text, len(known))
            if len(fresh) == 1:
                self._codes[index].append(np.full(len(texts), known[texts[0]], dtype=np.int32))
            else:
                self._codes[index].append(np.fromiter(map(known.__getitem__, texts), np.int32, len(texts)))
        block.clear()

    def _clear(self) -> None:
        self._seen = [{} for _ in self.header]
        self._codes = [[] for _ in self.header]
        self._lines = []

    def taken(self, is_whole: bool = False) -> CsvFile:
        """The rows since the last block; of a file that ``is_whole`` without the notes below its plans."""
        empty = np.zeros(0, dtype=np.int32)
        read = zip(self._codes, self._seen, strict=True)
        columns: list[Coded] = [
            (np.concatenate([empty, *parts]), list(map(as_written, known))) for parts, known in read
        ]
        lines = np.array(self._lines, dtype=np.int64)
        self._clear()
        return self.placed(columns, lines, is_whole and self._is_plans)

    def placed(self, columns: list[Coded], lines: np.ndarray, has_notes: bool = False) -> CsvFile:
        """Columns with the lines that their rows start on; blank rows are left out, and notes below if there may be."""
        filled = np.zeros(len(lines), dtype=np.int32)
        for codes, distinct in columns:
            texts = np.array([bool(str(text).strip()) for text in distinct or ()], dtype=bool)
            filled += True if texts.all() else texts[codes]
        rows = filled > 0
        if has_notes:
            rows[end_of_plans(filled, ~rows) :] = False
        if not rows.all():
            columns = [(codes[rows], distinct) for codes, distinct in columns]
        return CsvFile(self.header, columns, CsvLines(self.name, self.header, self._header_line, lines[rows]))


def check_lines(text: str, name: str, line: int = 1) -> None:
    """Refuse an overlong line before it is parsed: one of twice the limit at the latest."""
    end = "\n" if "\n" in text else "\r"
    at = 0
    while len(text) - at > LINE_LIMIT:
        result = text.find(end, at, at + LINE_LIMIT)
        if result < 0:
            raise InputError(_overlong(name, line + text.count(end, 0, at)))
        at = text.rfind(end, at, at + LINE_LIMIT) + 1


def _overlong(name: str, line: int) -> Fault:
    problem = f"is longer than {LINE_LIMIT:,} characters; a header row and rows of values are meant"
    return Fault(f"{name} [line {line}]", problem)


_LEAST, _MOST = 2**16, 2**24


def csv_blocks(path: str | os.PathLike[str], wanted: Wanted, rows: int) -> Iterator[CsvFile]:
    """A CSV file in blocks of about ``rows`` rows, one in memory; other columns than ``wanted`` may be blank."""
    with opened(path) as (stream, name):
        first = stream.read(_FIRST)
        if len(first) < _FIRST or first[:2] in UTF16 or b"\n" not in first:
            yield _whole_csv(all_of(stream, name, first), name)
        else:
            yield from _Blocks(stream, first, name, wanted, rows)


class _Blocks:
    """A text file read in blocks of whole lines."""

    def __init__(self, stream: BinaryIO, first: bytes, name: str, wanted: Wanted, rows: int) -> None:
        self.stream, self.name, self.wanted, self.num_rows = stream, name, wanted, rows
        self._rest, self._size, self._pending, self._read = first, _FIRST, 0, 0
        self.rows = CsvRows(name)
        self.separator = self.rows.start(decoded(first[: first.rfind(b"\n")], name))
        self._positions: set[int] = set()

    def __iter__(self) -> Iterator[CsvFile]:
        while text := self._next():
            result = self._by_arrow(text)
            if result is None:
                self._pending = 1
                reader = csv.reader(self._lines(text), delimiter=self.separator, strict=True)
                self.rows.add(reader, lambda: self._pending == 0)
                result = self.rows.taken()
            yield result
            if not self._positions and self.rows.header:
                self._positions = self.wanted(self.rows.header)
        raise_faults(self.rows.faults)

    def _next(self) -> str:
        """The next whole lines; nothing at the end of the file."""
        end = 0
        while len(self._rest) < self._size or b"\n" not in self._rest:
            more = self.stream.read(self._size) if len(self._rest) <= 4 * LINE_LIMIT + self._size else b""
            if not more:
                end = len(self._rest)
                break
            self._rest += more
        end = end or self._rest.rfind(b"\n") + 1
        taken, self._rest = self._rest[:end], self._rest[end:]
        lines = taken.count(b"\n")
        self._size = min(max(len(taken) // max(lines, 1) * self.num_rows, _LEAST), _MOST)
        text = decoded(taken, self.name, self._read)
        check_lines(text, self.name, self._read + 1)
        self._read += lines
        return text

    def _lines(self, text: str) -> Iterator[str]:
        """Lines of a block, and of the next block while a quoted value continues."""
        while text:
            lines = list(io.StringIO(text, newline=""))
            self._pending = len(lines)
            for line in lines:
                self._pending -= 1
                yield line
            text = self._next()

    def _by_arrow(self, text: str) -> CsvFile | None:
        """A block without quotation marks, blank lines or rows of another length; None for others."""
        if not self._positions or '"' in text or "\n\n" in text or "\n#" in text or text[0] in "\r\n#":
            return None
        if "\r" in text and (text.count("\r") != text.count("\r\n") or "\n\r" in text):
            return None
        try:
            import pyarrow as pa
            from pyarrow import csv as arrow_csv
        except ImportError:
            return None
        names = [str(position) for position in range(self.rows.width)]
        data = text.encode("utf-8")
        reading = arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names)
        parsing = arrow_csv.ParseOptions(delimiter=self.separator, quote_char=False, ignore_empty_lines=False)
        converting = arrow_csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string())),
            include_columns=[names[position] for position in sorted(self._positions)],
            null_values=[],
        )
        try:
            result = arrow_csv.read_csv(pa.py_buffer(data), reading, parsing, converting, pa.system_memory_pool())
        except pa.ArrowInvalid:
            return None
        number = text.count("\n") + (text[-1] != "\n")
        if len(result) != number:
            return None
        columns: list[Coded] = [(np.zeros(number, dtype=np.int8), [""])] * len(names)
        for place, position in enumerate(sorted(self._positions)):
            columns[position] = _coded(result.column(place).chunk(0))
        before = self.rows.line
        self.rows.line += number
        return self.rows.placed(columns, np.arange(before + 1, before + number + 1))


def _coded(column: Any) -> Coded:
    """Texts of a dictionary as codes, in as few bytes as hold them."""
    distinct = [as_written(text) for text in column.dictionary.to_pylist()]
    codes = column.indices.to_numpy(zero_copy_only=False)
    return codes.astype(np.int8 if len(distinct) < 128 else np.int16 if len(distinct) < 2**15 else np.int32), distinct
