"""Answers calls inside the Office add-in, where a worker of its page runs Python (Pyodide)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from xlperf import __version__
from xlperf.addin.functions import functions, result_functions
from xlperf.addin.neighbours import by_own_function
from xlperf.addin.worker import Session, as_json

__all__ = ["__version__", "answers"]


@cache
def _session() -> Session:
    return Session()


def answers(request: str) -> str:
    """Answers to calls, both as JSON: ``[{"id": 1, "function": name, "arguments": [...]}]`` and ``[{"id": 1, "rows":
    [[...]]}]``. Single plans under one header are evaluated together.

    >>> answers('[{"id": 1, "function": "XLPERF_DIE_YIELD", "arguments": [100, 0.1]}]')
    '[{"id": 1, "rows": [[0.9052869546929831]]}]'
    """
    session, calls = _session(), json.loads(request, parse_int=float)
    for call in calls:
        asked = by_own_function(call["function"], call["arguments"], result_functions())
        call["function"], call["arguments"] = asked
    for name, arguments, rows in _together(calls):
        session.others(name, arguments, rows)  # their results are in the cache of the session then
    answered = [{"id": int(call["id"]), "rows": session.call(call["function"], call["arguments"])} for call in calls]
    return json.dumps(answered, default=as_json)


def _together(calls: list[dict[str, Any]]) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Function, arguments and rows of calls that ask for one result of plans under one header and catalog."""
    groups: dict[str, tuple[str, list[Any], list[Any]]] = {}
    for call in calls:
        name, arguments = call["function"], call["arguments"]
        function = functions().get(name)
        if function is None or not function.is_per_plan or len(arguments) < 3 or not arguments[2]:
            continue
        plan, *others = arguments
        if isinstance(plan, list) and len(plan) == 1:
            groups.setdefault(json.dumps([name, others]), (name, arguments, []))[2].append(plan[0])
    return (group for group in groups.values() if len(group[2]) > 1)
