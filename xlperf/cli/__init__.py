"""Command line. Signals are handled before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from xlperf.cli.stop import end_at_once, listen

__all__ = ["main", "run"]


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
