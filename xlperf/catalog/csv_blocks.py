"""CSV files of any length in blocks of rows: by Arrow where it is installed and a block is plain, else line by line."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from xlperf.base.errors import InputError
from xlperf.catalog.csv_files import (
    LINE_LIMIT,
    SIZE_LIMIT,
    STANDARD,
    UTF16,
    CsvFile,
    CsvRows,
    as_written,
    check_lines,
    decoded,
    opened,
    whole_csv,
)
from xlperf.catalog.parse import Coded

_FIRST = 2**20
_LEAST, _MOST = 2**16, 2**24


def csv_blocks(
    path: str | os.PathLike[str], wanted: Callable[[Sequence[str]], set[int]], rows: int
) -> Iterator[CsvFile]:
    """A CSV file, or standard input for ``-``, in blocks of about the given number of rows; one block is in memory.

    Parameters
    ----------
    path : path-like
        File.
    wanted : callable
        Positions of the columns that matter, by the header; others may come back blank.
    rows : int
        Rows of a block if all lines are of one length. [-]

    Yields
    ------
    CsvFile
        One at least; together they are what :func:`xlperf.catalog.csv_files.read_csv` reads.

    Raises
    ------
    InputError
        As :func:`xlperf.catalog.csv_files.read_csv`, once the reading has come so far; rows that are longer than the
        header are refused at the end.
    """
    standard = str(path) == STANDARD
    name = "standard input" if standard else Path(path).name
    stream = sys.stdin.buffer if standard else opened(Path(path), name)
    try:
        first = stream.read(_FIRST)
        if len(first) < _FIRST or first[:2] in UTF16 or b"\n" not in first:
            yield whole_csv(first + stream.read(SIZE_LIMIT + 1), name)
        else:
            yield from _Blocks(stream, first, name, wanted, rows)
    finally:
        if not standard:
            stream.close()


class _Blocks:
    """A file that is read by its lines, as many at a time as make up a block."""

    def __init__(
        self, stream: BinaryIO, first: bytes, name: str, wanted: Callable[[Sequence[str]], set[int]], rows: int
    ) -> None:
        self.stream, self.name, self.wanted, self.num_rows = stream, name, wanted, rows
        self._rest, self._size, self._pending, self._read = first, _FIRST, 0, 0
        self.rows = CsvRows(name)
        self.separator = self.rows.start(decoded(first[: first.rfind(b"\n")], name))
        self._positions: set[int] = set()

    def __iter__(self) -> Iterator[CsvFile]:
        while text := self._next():
            found = self._by_arrow(text)
            yield self._by_line(text) if found is None else found
            if not self._positions and self.rows.header:
                self._positions = self.wanted(self.rows.header)
        if self.rows.faults:
            raise InputError(self.rows.faults)

    def _next(self) -> str:
        """The next whole lines; nothing at the end of the file."""
        while len(self._rest) < self._size or b"\n" not in self._rest:
            if len(self._rest) > 4 * LINE_LIMIT + self._size:
                break
            more = self.stream.read(self._size)
            if not more:
                break
            self._rest += more
        else:
            end = self._rest.rfind(b"\n") + 1
            taken, self._rest = self._rest[:end], self._rest[end:]
            return self._text(taken)
        taken, self._rest = self._rest, b""
        return self._text(taken)

    def _text(self, taken: bytes) -> str:
        lines = taken.count(b"\n")
        self._size = min(max(len(taken) // max(lines, 1) * self.num_rows, _LEAST), _MOST)
        text = decoded(taken, self.name, self._read)
        check_lines(text, self.name, self._read + 1)
        self._read += lines
        return text

    def _lines(self, text: str) -> Iterator[str]:
        """Lines of a block; those of the next where a value goes on there."""
        while text:
            lines = list(io.StringIO(text, newline=""))
            self._pending = len(lines)
            for line in lines:
                self._pending -= 1
                yield line
            text = self._next()

    def _by_line(self, text: str) -> CsvFile:
        self._pending = 1
        reader = csv.reader(self._lines(text), delimiter=self.separator, strict=True)
        self.rows.add(reader, lambda: self._pending == 0)
        return self.rows.taken()

    def _by_arrow(self, text: str) -> CsvFile | None:
        """A block without quotation marks, blank lines or rows of another length; None for others."""
        if not self._positions or '"' in text or "\n\n" in text or text[0] in "\r\n":
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
            found = arrow_csv.read_csv(pa.py_buffer(data), reading, parsing, converting, pa.system_memory_pool())
        except pa.ArrowInvalid:
            return None
        number = text.count("\n") + (text[-1] != "\n")
        if len(found) != number:
            return None
        columns: list[Coded] = [(np.zeros(number, dtype=np.int8), [""])] * len(names)
        for place, position in enumerate(sorted(self._positions)):
            columns[position] = _coded(found.column(place).chunk(0))
        before = self.rows.line
        self.rows.line += number
        return self.rows.placed(columns, np.arange(before + 1, before + number + 1))


def _coded(column: Any) -> Coded:
    """Texts of a dictionary as codes, in as few bytes as hold them."""
    distinct = [as_written(text) for text in column.dictionary.to_pylist()]
    codes = column.indices.to_numpy(zero_copy_only=False)
    return codes.astype(np.int8 if len(distinct) < 128 else np.int16 if len(distinct) < 2**15 else np.int32), distinct
