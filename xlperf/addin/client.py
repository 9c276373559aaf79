"""Calls the worker: starts it, sends one line and reads one line per call, restarts it when it dies.

Standard library only and no import of xlperf: a copy of this file runs inside LibreOffice's own Python, which has no
numpy. A request is a line of JSON ``{"function": name, "arguments": [...]}``; an answer is a line of JSON with
``rows`` (a block of values). A cell that cannot be shown is ``{"error": "#N/A", "message": words}``. A request with
``others`` (rows under the same header) is answered with ``others`` too: a cell for each, null for one to ask for alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, cast

TIME_LIMIT = 120.0
RETRY_DELAY = 5.0
TRIES = 3  # of a start and of a call whose worker ends: a cell that shows an error is not computed again
LAST_WORDS = 4000
# What an office suite sets for its own Python and libraries; it would break another interpreter.
HOST_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "LD_LIBRARY_PATH", "LD_PRELOAD")


def stale_words(built: str, computes: str, host: str) -> str:
    """A sentence if an add-in is of another version than the xlperf that computes; nothing if they are equal.

    >>> stale_words("0.1.0", "0.2.0", "excel")
    'The add-in is of xlperf 0.1.0 and xlperf 0.2.0 computes: run xlperf install excel'
    """
    stale = f"The add-in is of xlperf {built} and xlperf {computes} computes: run xlperf install {host}"
    return "" if built == computes else stale


class WorkerError(Exception):
    """The worker cannot be started, died or exceeded its time; the text names the fault and a remedy."""


def cache_folder() -> Path:
    """Folder of xlperf's cache for this user; see :mod:`xlperf.base.files`."""
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in the list of users
        home = Path(os.devnull)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "xlperf" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "xlperf"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else home / ".cache") / "xlperf"


def worker_environment() -> dict[str, str]:
    """The environment of the host without the variables for its own Python."""
    return {name: value for name, value in os.environ.items() if name not in HOST_VARIABLES}


def _log() -> BinaryIO:
    """The empty log of a worker, which this user alone may read; the null device if there can be none."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return open(folder / "worker.log", "wb", opener=_at_once)
    except OSError:
        return open(os.devnull, "wb")


def _at_once(path: str, flags: int) -> int:
    """Open a file, and nothing else that has its name: a pipe would be waited for."""
    descriptor = os.open(path, flags & ~os.O_TRUNC | getattr(os, "O_NONBLOCK", 0), 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no file")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
            os.chmod(path, 0o600)  # an older xlperf let everybody read it
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Client:
    """One worker process and the calls to it, from any thread; a call beyond ``time_limit`` [s] ends it."""

    def __init__(self, command: list[str], time_limit: float = TIME_LIMIT) -> None:
        self._command = list(command)
        self._time_limit = time_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: tuple[float, str] | None = None
        self._watch = threading.Condition()
        self._deadline: float | None = None
        self._watching = False
        self._late = False
        self._ahead = self._asked = False
        self.version = ""
        """Version of xlperf that the worker has named."""

    def start(self) -> None:
        """Start the worker, once, in the background, so that it is ready for the first call."""
        if self._ahead or self._asked:
            return
        self._ahead = True
        threading.Thread(target=self._start_ahead, name="xlperf worker start", daemon=True).start()

    def _start_ahead(self) -> None:
        with self._lock, contextlib.suppress(WorkerError):  # the first call will say it
            if not self._asked:
                self._running()

    def rest(self) -> None:
        """End a worker that was started ahead and that nobody has called."""
        if not self._asked:
            threading.Thread(target=self._end_unasked, name="xlperf worker end", daemon=True).start()

    def _end_unasked(self) -> None:
        with self._lock:
            if not self._asked:
                self._end()

    def call(self, function: str, arguments: list[Any]) -> list[list[Any]]:
        """Block of values of a worksheet function of scalars, None, or lists of rows. Raises WorkerError."""
        return cast("list[list[Any]]", self._answer({"function": function, "arguments": arguments})["rows"])

    def call_with_others(
        self, function: str, arguments: list[Any], others: list[Any]
    ) -> tuple[list[list[Any]], list[Any]]:
        """As :meth:`call`, and a cell for each of other plans under the same header; None for one to ask for alone."""
        answer = self._answer({"function": function, "arguments": arguments, "others": others})
        return answer["rows"], answer["others"]

    @property
    def process_id(self) -> int | None:
        """Process id of the worker that answered last."""
        return None if self._process is None else self._process.pid

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        request = json.dumps(asked).encode("ascii") + b"\n"
        self._asked = True
        with self._lock:
            for _ in range(TRIES):  # calls change nothing, so one that was lost is made again
                try:
                    return cast("dict[str, Any]", json.loads(self._exchange(request)))
                except ValueError:
                    self._end()
                    raise WorkerError("what answered is not the worker of xlperf; run `xlperf install` again") from None
                except (OSError, EOFError):
                    if self._late:
                        raise WorkerError(
                            f"the worker was ended after {self._time_limit:g} s; ask for fewer plans in one call"
                        ) from None
                    self._end()
            raise WorkerError(f"the worker ended during the call{self._last_words()}")

    def close(self) -> None:
        """End the worker; the next call starts another."""
        with self._lock:
            self._end()

    def _exchange(self, request: bytes) -> bytes:
        process = self._running()
        stdin, stdout = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
        self._start_clock()
        try:
            stdin.write(request)
            stdin.flush()
            answer = stdout.readline()
        finally:
            self._stop_clock()
        if not answer.endswith(b"\n"):
            self._end()
            raise EOFError
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._failure is not None and time.monotonic() < self._failure[0]:
            raise WorkerError(self._failure[1])  # a sheet of broken cells must not start a thousand processes
        for left in reversed(range(TRIES)):
            self._end()
            try:
                process, greeting = self._started()
                break
            except (OSError, EOFError) as error:
                if left and isinstance(error, EOFError) and not self._late:
                    continue  # it may have been killed
                ended = "it took too long" if self._late else "it ended at once"
                reason = error.strerror if isinstance(error, OSError) and error.strerror else ended
                words = (
                    f"the worker cannot be started with {self._command[0]} ({reason}{self._last_words()}); "
                    "run `xlperf install` again"
                )
                self._end()
                self._failure = (time.monotonic() + RETRY_DELAY, words)
                raise WorkerError(words) from None
        self._failure = None
        self.version = str(greeting.get("version", ""))
        if not self.version:
            self._end()
            raise WorkerError("what was started is not the worker of xlperf; run `xlperf install` again")
        return process

    def _started(self) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
        """A new worker and its greeting."""
        with _log() as stderr:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=worker_environment(),
                cwd=os.path.dirname(self._command[0]) or None,
                close_fds=True,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        return self._process, self._greeting(self._process)

    def _greeting(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """First line of the worker: its version. Whatever else comes is not the worker."""
        self._start_clock()
        try:
            line = cast("BinaryIO", process.stdout).readline()
        finally:
            self._stop_clock()
        if not line.endswith(b"\n"):
            raise EOFError
        try:
            greeting = json.loads(line)
        except ValueError:
            return {}
        return greeting if isinstance(greeting, dict) else {}

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(timeout=1.0)  # it ends by itself when its input closes
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError), open(cache_folder() / "worker.log", "rb", opener=_at_once) as log:
            log.seek(-min(LAST_WORDS, log.seek(0, os.SEEK_END)), os.SEEK_END)
            text = log.read(LAST_WORDS).decode("utf-8", "replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            return f": {lines[-1][:200]}" if lines else ""
        return ""

    # A blocking read has no time limit of its own on pipes that all platforms share. One watching thread ends the
    # worker when a call is overdue, which ends the read. It sleeps until the deadline and is not woken by calls that
    # finish in time, so that a thousand short calls cost nothing.
    def _start_clock(self) -> None:
        with self._watch:
            self._late = False
            idle = self._deadline is None
            self._deadline = time.monotonic() + self._time_limit
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watchdog, name="xlperf worker watch", daemon=True).start()
            elif idle:
                self._watch.notify()

    def _stop_clock(self) -> None:
        with self._watch:
            if self._deadline is not None:
                self._deadline = float("inf")

    def _watchdog(self) -> None:
        with self._watch:
            while True:
                if self._deadline is None:
                    if not self._watch.wait(timeout=60.0):
                        self._watching = False
                        return
                    continue
                left = self._deadline - time.monotonic()
                if left == float("inf"):
                    # Idle since: look again after one time limit, then wait to be woken.
                    self._watch.wait(timeout=self._time_limit)
                    if self._deadline == float("inf"):
                        self._deadline = None
                elif left > 0:
                    self._watch.wait(timeout=left)
                else:
                    self._late = True
                    self._deadline = None
                    if self._process is not None:
                        self._process.kill()
