"""What the worker does before its first question: it asks itself what was asked last time.

A spreadsheet host takes seconds to load a workbook before it computes a cell. Questions of earlier sessions are kept,
never their answers, and a new worker answers them while it waits: what it loads and computes is there when the host
asks. Only questions that took a while are kept, and none that would hold up another one for long.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from xlperf.base.files import cache_folder, replaced

SHORTEST, LONGEST = 0.005, 0.5
"""Processor time of a question that is worth keeping, and of one that would make another one wait too long. [s]"""
MOST_QUESTIONS = 64
MOST_BYTES = 4 * 2**20


class Questions:
    """Questions of this session and of those before, least recently asked first.

    ``path``: the file that keeps them, a line each.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or cache_folder() / "questions"
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except OSError:
            lines = []
        self._lines = OrderedDict.fromkeys(line for line in lines if line.endswith(b"\n"))
        self._changed = False

    def __iter__(self) -> Iterator[bytes]:
        """Questions, most recently asked first."""
        return iter([*reversed(self._lines)])

    def answered(self, line: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        """The answer to a question, which is kept if it took a while."""
        begun = time.process_time()
        answered = answer(line)
        if line in self._lines:
            self._lines.move_to_end(line)
        elif SHORTEST <= time.process_time() - begun <= LONGEST and len(line) <= MOST_BYTES // 8:
            self._lines[line] = None
            self._changed = True
        return answered

    def save(self) -> None:
        """Keep the questions asked last; where the folder cannot be written nothing is kept."""
        if not self._changed:
            return
        kept: list[bytes] = []
        size = 0
        for line in self:
            size += len(line)
            if len(kept) == MOST_QUESTIONS or size > MOST_BYTES:
                break
            kept.append(line)
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replaced(self._path, durable=False) as temporary:
                temporary.write_bytes(b"".join(reversed(kept)))


def first_line(requests: BinaryIO, longest: int, steps: Iterable[object]) -> bytes:
    """The first line of requests; steps are taken one after the other until it is there.

    A step that fails ends the warm-up: whatever it is, the question itself will say it.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(requests.readline(longest)), name="first request", daemon=True).start()
    with suppress(Exception):
        for _ in steps:
            if not lines.empty():
                break
    return lines.get()
