"""Warms the caches of a new worker by replaying questions of earlier sessions.

A spreadsheet host needs seconds to load a workbook before it computes a cell. A worker stores questions, never their
answers, and a new worker answers them while it waits. Only questions that took some time are stored, and none that
would block another one for long. A question holds the cells of a plan: its owner alone may read the file, and
``XLPERF_QUESTIONS=off`` disables it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from xlperf.base.files import cache_folder, store, stored

SHORTEST, LONGEST = 0.005, 0.5
"""Processor time of a question that is worth keeping, and of one that would make another one wait too long. [s]"""
SWITCH, OFF = "XLPERF_QUESTIONS", ("off", "no", "0", "false")
"""Variable of the environment that turns the storing of questions off, and its values that do."""
MOST_QUESTIONS = 64
MOST_BYTES = 4 * 2**20


class Questions:
    """Questions of this and earlier sessions, least recently asked first, in a file with a line each.

    With :data:`SWITCH` off the file is removed and none is written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or cache_folder() / "questions"
        self._off = os.environ.get(SWITCH, "").strip().casefold() in OFF
        lines: list[bytes] = []
        with suppress(OSError):
            if self._off:
                self._path.unlink()
            with stored(self._path) as stream:
                lines = stream.read(MOST_BYTES).splitlines(keepends=True)
        self._lines = OrderedDict.fromkeys(line for line in lines if line.endswith(b"\n"))
        self._changed = False

    def __iter__(self) -> Iterator[bytes]:
        """Questions, most recently asked first."""
        return iter([*reversed(self._lines)])

    def answered(self, line: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        """The answer to a question, which is stored if it took some time."""
        begun = time.process_time()
        answered = answer(line)
        if line in self._lines:
            self._lines.move_to_end(line)
        elif SHORTEST <= time.process_time() - begun <= LONGEST and len(line) <= MOST_BYTES // 8:
            self._lines[line] = None
            self._changed = True
            while len(self._lines) > MOST_QUESTIONS:
                self._lines.popitem(last=False)
        return answered

    def save(self) -> None:
        """Store the latest questions; nothing if the folder is read-only."""
        if self._off or not self._changed:
            return
        kept: list[bytes] = []
        size = 0
        for line in self:
            size += len(line)
            if len(kept) == MOST_QUESTIONS or size > MOST_BYTES:
                break
            kept.append(line)
        with suppress(OSError):
            store(self._path, b"".join(reversed(kept)))


def first_line(requests: BinaryIO, longest: int, steps: Iterable[object]) -> bytes:
    """The first line of requests; until it arrives, steps run one after the other.

    A failing step ends the warm-up: the question itself will report the fault.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=lambda: lines.put(requests.readline(longest)), name="first request", daemon=True).start()
    with suppress(Exception):
        for _ in steps:
            if not lines.empty():
                break
    return lines.get()
