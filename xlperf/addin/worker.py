"""The process that computes for a spreadsheet host: lines of JSON on standard input and output.

``python -m xlperf.addin.worker`` greets with its version, then answers each line of
``{"function": name, "arguments": [...]}`` with a line of ``{"rows": [[...]]}`` (see :mod:`xlperf.addin.client`, and
there for ``others``).
It opens no port and no window, writes nothing else to standard output, and ends when its input closes: a worker never
outlives its host. Numbers are written in the shortest form that reads back as the same float.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, BinaryIO

from xlperf import __version__
from xlperf.addin.cells import CellError
from xlperf.addin.session import Session

LONGEST_REQUEST = 256 * 2**20


def answer(session: Session, line: bytes) -> bytes:
    """One line of answer to one line of request.

    Parameters
    ----------
    session : Session
        What computes.
    line : bytes
        A request; anything else is answered with an error.

    Returns
    -------
    bytes
        JSON and a line feed.
    """
    try:
        request = json.loads(line, parse_int=float)  # of an integer of hundreds of digits too
        function, arguments = request["function"], request["arguments"]
        if not isinstance(function, str) or not isinstance(arguments, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        return _line(rows=[[CellError("#VALUE!", "the request is not one that this worker knows")]])
    if isinstance(request.get("others"), list):
        others = session.others(function, arguments, request["others"])  # before: the plan itself is among them
        return _line(rows=session.call(function, arguments), others=others)
    return _line(rows=session.call(function, arguments))


def _line(**answer: list[Any]) -> bytes:
    return json.dumps(answer, default=_plain, separators=(",", ":")).encode("ascii") + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, CellError):
        return {"error": value.code, "message": value.message}
    raise TypeError(f"{type(value).__name__} is no cell value")


def serve(session: Session, requests: BinaryIO, answers: BinaryIO, longest: int = LONGEST_REQUEST) -> None:
    """Answer requests until there are no more.

    Parameters
    ----------
    session : Session
        What computes.
    requests, answers : binary streams
        A line each.
    longest : int
        Bytes of a request; of a longer one nothing is kept, and its answer says so. [B]
    """
    answers.write(json.dumps({"version": __version__}).encode("ascii") + b"\n")
    answers.flush()
    while line := requests.readline(longest + 1):
        if len(line) > longest:
            while line and not line.endswith(b"\n"):
                line = requests.readline(longest)
            words = f"the cells of this call take more than {longest >> 20} MiB; give it fewer rows"
            answers.write(_line(rows=[[CellError("#VALUE!", words)]]))
        else:
            answers.write(answer(session, line))
        answers.flush()


def main() -> None:
    """Serve the process's own pipes; what anything prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the host; we end with our input
    with os.fdopen(os.dup(1), "wb") as answers, os.fdopen(os.dup(0), "rb") as requests:
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdout = sys.stderr
        try:
            serve(Session(), requests, answers)
        except BrokenPipeError:
            os._exit(0)  # the host is gone


if __name__ == "__main__":
    main()
