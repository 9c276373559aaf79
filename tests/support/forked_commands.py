"""Commands in processes of their own, forked from one that has imported what most of them need: seconds less each.

As a program it reads a line of JSON for each command (its arguments, the files of its output and errors) and answers
with its exit code, the seconds of the processor that it took, and the MiB that it held at most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


class ForkedCommands:
    """The process that forks; the first command starts it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def measured(self, *arguments: str | Path) -> tuple[int, str, float, float]:
        """Exit code, errors, seconds of the processor and MiB of a command."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            errors = Path(folder) / "errors"
            line = json.dumps([[str(argument) for argument in arguments], str(Path(folder) / "out"), str(errors)])
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            code, seconds, size = json.loads(self._process.stdout.readline())
            return code, errors.read_text(encoding="utf-8"), seconds, size

    def end(self) -> None:
        """End the process, if a command has started it."""
        if self._process is not None:
            self._process.communicate(timeout=60)


def _run(arguments: list[str], out: str, errors: str) -> tuple[int, float]:
    """Exit code and MiB of a command in this process, whose output goes to files."""
    from xlperf.cli import run

    for number, name in ((1, out), (2, errors)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1048576)
    if sys.platform == "linux":  # ru_maxrss starts from that of the process that forked this one
        with open("/proc/self/status") as status:
            size = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    return code, size


def main() -> None:
    """Fork for each line, until there are no more."""
    import xlperf.catalog.read
    import xlperf.cli.app
    import xlperf.engine  # noqa: F401

    for line in sys.stdin:
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            os._exit(_answer(line, send))
        os.close(send)
        with os.fdopen(receive) as answer:
            words = answer.read()
        _, status, used = os.wait4(child, 0)
        code, size = json.loads(words) if words else (os.waitstatus_to_exitcode(status), 0.0)
        print(json.dumps([code, used.ru_utime + used.ru_stime, size]), flush=True)


def _answer(line: str, send: int) -> int:
    """Run the command of a line, and send its exit code and MiB."""
    answer = _run(*json.loads(line))
    os.write(send, json.dumps(answer).encode())
    return 0


if __name__ == "__main__":
    main()
