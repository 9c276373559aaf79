"""Catalogs in cells, and questions: tables on disk under a hash of their content, valid between sessions.

The store is a bounded folder of JSON files in the user's cache. A new worker knows the answers to stored questions, so
that a workbook opens at once; ``XLPERF_QUESTIONS=off`` disables it.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from xlperf.addin.cells import Block, read_table
from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import cache_folder, store, stored
from xlperf.catalog.cells import table_kind
from xlperf.catalog.schema import EVERY_TABLE
from xlperf.catalog.table import CASES, Table

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog


HANDLE_PREFIX = "xlperf:"
MOST_FILES = 64
_MOST_TABLES = 48
MOST_BYTES = 64 * 2**20
_HANDLE = re.compile(re.escape(HANDLE_PREFIX) + r"(?P<digest>[0-9a-f]{24})")


class UnknownHandleError(LookupError):
    """The store has no tables under this handle."""


def content_of(tables: Sequence[Block]) -> bytes:
    """Tables as JSON, with numbers in the shortest form that reads back as the same float."""
    return b'{"tables":[' + b",".join(map(_content, tables)) + b"]}"


def _content(block: Block) -> bytes:
    return json.dumps(block, separators=(",", ":")).encode("ascii")


def handle_of(content: bytes) -> str:
    """Text that names some content: equal content, equal text."""
    return HANDLE_PREFIX + hashlib.sha256(content).hexdigest()[:24]


class CatalogStore:
    """Tables by handle, in a folder; beyond its bounds the least recently used tables are removed."""

    def __init__(self, folder: Path | None = None, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder or cache_folder() / "catalogs"
        self._most_files = most_files
        self._most_bytes = most_bytes

    def put(self, tables: Sequence[Block]) -> str:
        """Store tables, header row first, and return their handle; a read-only folder stores none."""
        content = content_of(tables)
        handle = handle_of(content)
        path = self._path(handle)
        with suppress(OSError):
            if not self._touched(path):
                store(path, content)
                self._remove_oldest(path)
        return handle

    def get(self, handle: str) -> list[Block]:
        """Tables of a handle. Raises UnknownHandleError if there are none, or if the file has another content."""
        if not _HANDLE.fullmatch(handle):
            raise UnknownHandleError(handle)
        path = self._path(handle)
        try:
            with stored(path) as stream:
                content = stream.read()
        except OSError:
            raise UnknownHandleError(handle) from None
        if handle_of(content) != handle:
            raise UnknownHandleError(handle)
        self._touched(path)
        tables: list[Block] = json.loads(content)["tables"]
        return tables

    def _path(self, handle: str) -> Path:
        return self.folder / (handle.removeprefix(HANDLE_PREFIX) + ".json")

    @staticmethod
    def _touched(path: Path) -> bool:
        """Note that a file was used; whether there is one."""
        with suppress(OSError):
            os.utime(path)
        return path.is_file()

    def _remove_oldest(self, newest: Path) -> None:
        files = []
        for path in self.folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                files.append((path == newest, status.st_mtime_ns, status.st_size, path))
        files.sort(reverse=True)
        size = 0
        for place, (_, _, length, path) in enumerate(files):
            size += length
            if place and (place >= self._most_files or size > self._most_bytes):
                with suppress(OSError):
                    path.unlink()


def with_blocks(catalog: Catalog, blocks: Sequence[Block]) -> Catalog:
    """A catalog with tables of cells in the place of its own, in the case that a single cell names."""
    tables: dict[str, Table] = {}
    case = "base"
    for block in blocks:
        if len(block) == len(block[0]) == 1 and block[0][0] in CASES:
            case = str(block[0][0])
            continue
        kind = table_kind(block[0])
        if kind not in EVERY_TABLE:
            raise InputError(Fault("", "XLPERF_CATALOG takes catalog tables, got a table of plans"))
        if kind in tables:
            raise InputError(Fault("", f"two tables of {kind} were given to XLPERF_CATALOG"))
        tables[kind] = _table(kind, _content(block))
    return catalog.with_tables(list(tables.values())).in_case(case)


@lru_cache(maxsize=_MOST_TABLES)
def _table(kind: str, content: bytes) -> Table:
    """A table from its cells, cached because most tables of a changed catalog are the same."""
    header, *rows = json.loads(content)
    return read_table(kind, header, rows)


SWITCH, OFF = "XLPERF_QUESTIONS", ("off", "no", "0", "false")
"""Variable of the environment that turns the storing of questions off, and its values that do."""
MOST_QUESTIONS = 4096
MOST_NAME = 80  # start of a question in which its function stands [B]
MOST_QUESTION_BYTES = 16 * 2**20


class Questions:
    """Questions of this and earlier sessions with their answers, least recently asked first. They hold for one package
    and its catalog (``stamp``); none are stored with :data:`SWITCH` off.
    """

    def __init__(self, path: Path | None = None, stamp: str | None = None) -> None:
        self._path = path or cache_folder() / "questions"
        self._stamp = (resources.stamp() if stamp is None else stamp).encode("ascii") + b"\n"
        self._off = os.environ.get(SWITCH, "").strip().casefold() in OFF
        lines: list[bytes] = []
        with suppress(OSError):
            if self._off:
                self._path.unlink()
            with stored(self._path) as stream:
                lines = [line + b"\n" for line in stream.read(2 * MOST_QUESTION_BYTES).split(b"\n")]
        pairs = zip(lines[1::2], lines[2::2], strict=False) if lines[:1] == [self._stamp] else ()
        self._answers = OrderedDict(pairs)
        self._changed = False

    def __len__(self) -> int:
        return len(self._answers)

    def ask(self, functions: Collection[str]) -> bool:
        """Whether a question asks one of some functions."""
        names = [f'"{name}"'.encode("ascii") for name in functions]
        return any(name in line[:MOST_NAME] for line in self._answers for name in names)

    def answered(self, line: bytes, answer: Callable[[bytes], bytes], keeps: Callable[[float], bool]) -> bytes:
        """The answer to a question; ``keeps``: whether one that took so many seconds of the processor is kept."""
        known = self._answers.get(line)
        if known is not None:
            self._answers.move_to_end(line)
            return known
        begun = time.process_time()
        answered = answer(line)
        took = time.process_time() - begun
        if len(line) + len(answered) <= MOST_QUESTION_BYTES // 8 and keeps(took):
            self._answers[line] = answered
            self._changed = True
            while len(self._answers) > MOST_QUESTIONS:
                self._answers.popitem(last=False)
        return answered

    def save(self) -> None:
        """Store the latest questions; nothing if the folder is read-only."""
        if self._off or not self._changed:
            return
        latest = [line + answer for line, answer in reversed(self._answers.items())]
        sizes = accumulate(map(len, latest))
        pairs = [pair for pair, size in zip(latest, sizes, strict=True) if size <= MOST_QUESTION_BYTES]
        with suppress(OSError):
            store(self._path, self._stamp + b"".join(reversed(pairs)))


def first_line(requests: BinaryIO, longest: int, steps: Iterable[object]) -> bytes:
    """The first line of requests; until it arrives, steps run one after the other, up to one that fails."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(requests.readline(longest)), name="first request", daemon=True).start()
    with suppress(Exception):
        for _ in steps:
            if not lines.empty():
                break
    return lines.get()
