"""What the worker does before its first question: it asks itself what was asked last time.

A spreadsheet host takes seconds to load a workbook before it computes a cell. Questions of earlier sessions are stored,
never their answers, and a new worker answers them while it waits: what it loads and computes is there when the host
asks. Only questions that took a while are stored, and none that would hold up another one for long. A question holds
the cells of a plan: its owner alone may read the file, and with ``XLPERF_QUESTIONS=off`` there is none.
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
    """Questions of this session and of those before, least recently asked first.

    ``path``: the file that keeps them, a line each. It is removed, and none is written, when :data:`SWITCH` is off.
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
        """The answer to a question, which is kept if it took a while."""
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
        """Keep the questions asked last; where the folder cannot be written nothing is kept."""
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
