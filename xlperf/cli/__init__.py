"""Command line. Signals are handled before anything large is imported: a command that Ctrl-C or SIGTERM stops ends in
one line, and files are as they were.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

__all__ = ["main", "run"]

WORDS = "stopped; files are as they were"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 2.0
"""Time after which a second signal ends a command that is still cleaning up. [s]"""
_ENDED = 128
"""Exit code of a command that a signal ends, less the number of the signal, as shells count."""

Handler = Callable[[int, FrameType | None], Any]


class Stopped(BaseException):
    """The user or the system stops this command; open files are closed and removed on the way out."""


def listen(handler: Handler) -> list[tuple[int, Any]]:
    """Set a handler for the signals that are not ignored; returns the handlers before. None outside the main thread."""
    known: list[tuple[int, Any]] = [(number, signal.getsignal(number)) for number in SIGNALS]
    before = [(number, own) for number, own in known if own not in (signal.SIG_IGN, None)]
    try:
        for number, _ in before:
            signal.signal(number, handler)
    except ValueError:
        return []
    return before


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """End a process that has not written anything yet."""
    os.write(2, f"{WORDS}\n".encode())
    os._exit(_ENDED + number)


class Stop:
    """Signals while a command runs: the first one raises :class:`Stopped`, once."""

    def __init__(self) -> None:
        self.number, self.over, self._since = 0, False, 0.0

    def __enter__(self) -> Stop:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._before = listen(self._came)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.over = True
        for number, handler in self._before:
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    @property
    def exit_code(self) -> int:
        """Exit code of a command that was stopped."""
        return _ENDED + self.number

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self.number:  # some send a signal twice: to a process and to its group
            if time.monotonic() - self._since > PATIENCE:
                os._exit(self.exit_code)
        elif not self.over:
            self.number, self._since = number, time.monotonic()
            raise Stopped

    def _unraisable(self, what: sys.UnraisableHookArgs) -> None:
        """Hide failures on the way out; stop again if a destructor has swallowed the exception."""
        if not self.number:
            self._hook(what)
        elif issubclass(what.exc_type, Stopped):
            from threading import Timer

            number, self.number = self.number, 0
            Timer(0.05, signal.raise_signal, (number,)).start()


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command: see :func:`xlperf.cli.app.run`."""
    from xlperf.cli import app

    return app.run(arguments)


def main() -> None:
    """Entry point of the console script, which handles signals from its first line to its last."""
    handlers = listen(end_at_once)
    code = run()
    for number, _ in handlers:
        signal.signal(number, signal.SIG_IGN)
    if code in (128 + number for number, _ in handlers):  # a stopped command is silent during its teardown
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
