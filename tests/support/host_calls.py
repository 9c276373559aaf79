"""The parity table: calls of worksheet functions that every host must answer alike, to the last bit.

A call is a function and its arguments: rows of cells, one cell, or None where it is left out.
"""

from __future__ import annotations

import csv
from typing import Any

from xlperf.addin.cells import CellError
from xlperf.addin.functions import example_ranges, functions
from xlperf.addin.worker import Session

Rows = list[list[Any]]
CARD: Rows = [
    ["model", "Llama3-70B"],
    ["accelerator", "H100-SXM-80GB"],
    ["num accelerators", 64.0],
    ["tensor parallel", 8.0],
    ["pipeline parallel", 4.0],
]
SERVING: Rows = [
    ["model", "Llama3-70B"],
    ["accelerator", "H100-SXM-80GB"],
    ["num accelerators", 8.0],
    ["tensor parallel", 8.0],
    ["concurrency", 16.0],
    ["prompt length", 1024.0],
    ["output length", 1024.0],
]
NA = "#N/A"
"""A cell that holds an error; each host passes it in its own way."""
NETWORK: Rows = [["network", "tier", "size", "link bandwidth (GB/s)", "latency (us)"], ["N", 1.0, 8.0, 100.0, 1.0]]


def changed(card: Rows, name: str, value: Any) -> Rows:
    """A card with another value."""
    return [[row[0], value if row[0] == name else row[1]] for row in card]


def calls() -> dict[str, tuple[str, list[Any]]]:
    """The calls by what they show."""
    tensor = [
        [row[0] for row in CARD],
        *[[*(row[1] for row in CARD[:3]), degree, 2.0] for degree in (1.0, 2.0, 3.0, 8.0)],
    ]
    return {
        "card": ("XLPERF_STEP_TIME", [CARD]),
        "table with an illegal row": ("XLPERF_MFU", [tensor]),
        "header apart": ("XLPERF_MEMORY", [tensor[1:], None, tensor[:1]]),
        "flag": ("XLPERF_FITS", [tensor]),
        "text": ("XLPERF_REASON", [tensor]),
        "serving": ("XLPERF_TPOT", [SERVING]),
        "capacity": ("XLPERF_MAX_BATCH_SIZE", [SERVING]),
        "all of training": ("XLPERF_TRAINING", [tensor]),
        "some of training": ("XLPERF_TRAINING", [tensor, "step time, mfu"]),
        "all of inference": ("XLPERF_INFERENCE", [SERVING]),
        "operators": ("XLPERF_EXPLAIN", [CARD]),
        "search": ("XLPERF_SEARCH", [changed(CARD, "tensor parallel", "auto"), 3.0]),
        "collective": ("XLPERF_TIME", [[["operation", "all-reduce"], ["accelerator", "H100-SXM-80GB"],
                                        ["group", 8.0], ["size", 67108864.0]]]),
        "yield": ("XLPERF_DIE_YIELD", [814.0, 0.1]),
        "yields": ("XLPERF_DIE_YIELD", [[[100.0], [400.0], [814.0]], [[0.05, 0.1]], "murphy"]),
        "row of dies": ("XLPERF_DIES_PER_WAFER", [[[10.0, 20.0, 30.0]], 26.0]),
        "words": ("XLPERF_CHECK", [changed(CARD, "tensor parallel", 3.0)]),
        "unknown model": ("XLPERF_STEP_TIME", [changed(CARD, "model", "Lama9")]),
        "text number": ("XLPERF_STEP_TIME", [changed(CARD, "tensor parallel", "8")]),
        "empty cells": ("XLPERF_STEP_TIME", [[*CARD, [None, None]]]),
        "no table": ("XLPERF_CATALOG", [[[1.0, 2.0], [3.0, 4.0]]]),
        "negative area": ("XLPERF_DIE_YIELD", [-1.0, 0.1]),
        "catalog": ("XLPERF_CATALOG", [NETWORK]),
        "error cell": ("XLPERF_STEP_TIME", [changed(CARD, "tensor parallel", NA)]),
        "error cell in a table": ("XLPERF_MFU", [[*tensor[:2], [*tensor[2][:3], NA, 2.0], tensor[4]]]),
        "error cell of an equation": ("XLPERF_DIE_YIELD", [[[100.0], [NA], [814.0]], 0.1]),
    }  # fmt: skip


def example(name: str) -> tuple[str, list[Any]]:
    """The call of the example of a function, as the registry writes it."""
    given = []
    for text in next(csv.reader([functions()[name].arguments_of_example], skipinitialspace=True)):
        if text.startswith("{"):
            given.append([list(row) for row in example_ranges()[text[1:-1]]])
        else:
            given.append(None if not text else float(text) if text.replace(".", "").isdigit() else text)
    return name, given


ODD: dict[str, Any] = {
    "number": 5.0, "negative": -1.0, "words": "words", "text number": "8", "error": NA, "flag": True, "empty": [[None]],
    "cells": [[1.0, "a"], [None, NA]], "one row": [["model", 7.0]], "card": CARD, "table": NETWORK,
}  # fmt: skip
"""What people point functions at by mistake."""
ERRORS = {"#VALUE!", "#N/A", "#NUM!"}
SAYS = ("XLPERF_CHECK", "XLPERF_CATALOG")
"""Functions that answer with words."""


def odd_calls() -> dict[str, tuple[str, list[Any]]]:
    """Every function with odd arguments in every place, with too few and too many."""
    found = {}
    for name, function in functions().items():
        count = len(function.arguments)
        found |= {f"{name}: {what}": (name, [value] * count) for what, value in ODD.items()}
        found |= {f"{name}: too few": (name, []), f"{name}: too many": (name, [5.0] * (count + 2))}
    return found


def odd_faults(answers: dict[str, Rows]) -> list[str]:
    """Odd calls whose answers are not what the engine answers, or a text where an error value belongs."""
    session, wrong = Session(), []
    for call, (name, arguments) in odd_calls().items():
        cells = [cell for row in answers[call] for cell in row]
        texts = {cell for cell in cells if isinstance(cell, str) and cell}
        if name in SAYS:
            sound = not any("Traceback" in text or "internal" in text for text in texts)
        else:
            sound = texts <= ERRORS
        if not sound or answers[call] != plain(session.call(name, arguments)):
            wrong.append(call)
    return wrong


def expected() -> dict[str, Rows]:
    """What the engine answers to each call."""
    session = Session()
    return {call: plain(session.call(name, arguments)) for call, (name, arguments) in calls().items()}


def plain(answer: Any) -> Rows:
    """An answer of any host as rows of numbers and texts: errors are their code, TRUE is 1, blank is ""."""
    rows = answer if isinstance(answer, list) else [[answer]]
    rows = rows if isinstance(rows[0], list) else [rows]
    return [[_plain(cell) for cell in row] for row in rows]


def _plain(cell: Any) -> Any:
    if isinstance(cell, CellError):
        return cell.code
    if cell is None:
        return ""
    return float(cell) if isinstance(cell, (bool, int)) else cell
