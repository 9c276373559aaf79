"""Published hit rates and times to the first token of sessions beside the closed forms and the engine.

No constant was chosen on these rows.
"""

from __future__ import annotations

import csv
import math
from functools import cache

import numpy as np
from places import ROOT

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.equations.serving import sessions as equations
from xlperf.explore.session_states import Sessions

RANDOM_ORDER = math.sqrt(1.0 / 6.0)
"""Coefficient of variation of the time from a turn to the next where rounds have random orders: triangular. [-]"""
PCI_EXPRESS = 50e9
"""Rate of the row Host PCIe 5 of the sheet kv_tiers. [B/s]"""


@cache
def rows() -> list[dict[str, str]]:
    """The published rows."""
    text = (ROOT / "workbooks/rows/validation/sessions_published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def number(row: dict[str, str], name: str, blank: float = 0.0) -> float:
    return float(row[name]) if row[name] else blank


def predicted_hit_rate(row: dict[str, str]) -> float:
    """Of one turn in which all sessions are, or the mean over a session in an endless cache."""
    tokens = _, added, generated = [number(row, f"{name}_tokens") for name in ("first", "added", "generated")]
    common = number(row, "common_tokens")
    if not row["turn"]:
        return Sessions(number(row, "turns"), *tokens, common, 1.0, RANDOM_ORDER).reused
    turns = number(row, "turn") - 1.0
    own = Sessions(turns, *tokens, common, 1.0, RANDOM_ORDER).last if turns else 0.0
    room = max(number(row, "cache_tokens", np.inf), number(row, "host_tokens"))
    # A round is the unit of time; the sessions hold the tokens of the middle of the round, and none ends
    waiting = own + 0.5 * (added + generated)
    given = number(row, "sessions"), 0.0, 1e12, 1.0, RANDOM_ORDER, 0.0, waiting, 0.0, common
    age = equations.characteristic_time(
        np.asarray(room), np.asarray(1.0), lambda age: equations.cached_tokens(age, *given)
    )
    kept = float(equations.within_time(age, 1.0, RANDOM_ORDER))
    return (common + own * kept) / (common + own + added)


def predicted_time(row: dict[str, str], catalog: Catalog) -> float:
    """Time to the first token of a prompt whose first tokens are nowhere, on the accelerator, or on the host."""
    first, prompt = number(row, "first_tokens"), number(row, "first_tokens") + number(row, "added_tokens")
    kept = 0.0 if row["tier"] == "none" else first / prompt
    asked = {
        "model": row["model"], "accelerator": row["gpu"], "num accelerators": number(row, "n_gpus"),
        "tensor parallel": number(row, "tp"), "prompt length": prompt, "software": "vllm", "mode": "continuous",
        "output length": number(row, "generated_tokens"), "precision": row["precision"],
        "concurrency": number(row, "sessions"),
    }  # fmt: skip
    results = [
        evaluate(table_from_rows("inference", [*asked, "shared prefix"], [[*asked.values(), share]]), catalog)
        for share in (kept, 0.0)
    ]
    size = float(results[1].number("memory_kv_cache")[0]) * first / (prompt + number(row, "generated_tokens"))
    return float(results[0].number("ttft")[0]) + (size / PCI_EXPRESS if row["tier"] == "host" else 0.0)


def test_published_hit_rates_are_predicted_within_ten_points() -> None:
    published = [row for row in rows() if row["hit_rate"]]
    errors = {row["row_id"]: predicted_hit_rate(row) - number(row, "hit_rate") for row in published}
    assert len(errors) >= 20
    assert {name for name, error in errors.items() if abs(error) > 0.105} == {"S003"}, errors  # half of a round evicts
    assert np.median(np.abs(list(errors.values()))) < 0.03


def test_published_times_to_the_first_token_are_of_the_size_that_is_predicted(catalog: Catalog) -> None:
    published = [row for row in rows() if row["ttft_s"]]
    errors = {row["row_id"]: predicted_time(row, catalog) / number(row, "ttft_s") - 1.0 for row in published}
    assert {name for name, error in errors.items() if abs(error) > 0.38} == {"S031", "S032", "S034"}, errors
    assert np.median(np.abs(list(errors.values()))) < 0.38


def test_every_row_states_a_source_and_one_result() -> None:
    for row in rows():
        assert row["source"] and row["notes"] and (row["hit_rate"] == "") != (row["ttft_s"] == ""), row["row_id"]
