"""The entry of the command line: signals are heard before anything large is imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from xlperf.cli.stop import end_at_once, listen


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command: see :func:`xlperf.cli.app.run`."""
    from xlperf.cli.app import run as found

    return found(arguments)


def main() -> None:
    """Entry point of the console script: signals are heard from its first line to its last."""
    heard = listen(end_at_once)
    code = run()
    for number, _ in heard:
        signal.signal(number, signal.SIG_IGN)
    if code in (128 + number for number, _ in heard):  # what was stopped says nothing as it is taken down
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
