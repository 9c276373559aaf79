"""Published deployments: fleets that people run, beside the fleet that the form Serve answers for the same load.

A row of ``published_deployments.csv`` states a load as its publisher does: tokens per second that come in and go out,
the mean context of a request that is decoded, and requests in flight. Prompt and output of the form follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xlperf.base.resources import rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.explore.fleet_plans import ONE, TWO
from xlperf.explore.search_results import Answer, short_name
from xlperf.explore.serve import serve_answer, serving_ways, way_words

_FILE = "calibrate/published_deployments.csv"
_STATED = ("prefix_hit_rate", "draft_tokens", "acceptance_rate", "precision", "kv_precision", "ttft_target")
"""Columns that a deployment has in common with the form, each blank if its publisher states nothing."""


@dataclass(frozen=True)
class Deployment:
    """A fleet that its publisher runs, its load, and the answer of the form for that load.

    ``accelerators``: of the published fleet [-]. ``asked``: the form by column, in the units of the sheet. ``answer``:
    results of the cheapest way. ``same``: accelerators of the way with the published engine and pools; NaN if the
    search has no such way [-].
    """

    name: str
    source: str
    accelerators: float
    asked: dict[str, Any]
    answer: Answer
    same: float

    @property
    def ratio(self) -> float:
        """Accelerators of the answer over the published ones; NaN if there is no answer. [-]"""
        return float(self.answer.get("accelerators", np.nan)) / self.accelerators


def lengths(input_rate: float, output_rate: float, context: float) -> tuple[float, float]:
    """Prompt and output of a request with a given mean context while it is decoded.

    ``input_rate``, ``output_rate``: tokens of a fleet [token/s]. ``context``: prompt and half of the output [token].
    Returns both lengths [token].

    >>> lengths(1000.0, 500.0, 2500.0)
    (2000.0, 1000.0)
    """
    share = output_rate / input_rate
    prompt = context / (1.0 + share / 2.0)
    return prompt, prompt * share


def asked_of(row: dict[str, str]) -> dict[str, Any]:
    """The form that asks for the load of a published deployment, by column, in the units of the sheet.

    ``row``: a row of ``published_deployments.csv``.
    """
    users, put_in, put_out = (float(row[name]) for name in ("users", "input_rate", "output_rate"))
    prompt, output = lengths(put_in, put_out, float(row["context"]))
    asked: dict[str, Any] = {
        "model": row["model"],
        "accelerator": row["accelerator"],
        "users": users,
        "prompt length": float(round(prompt)),
        "output length": float(round(output)),
        "speed per user": put_out / users,
    }
    texts = ("precision", "kv_precision")
    stated = {name: row[name] for name in _STATED if row[name]}
    return asked | {name.replace("_", " "): word if name in texts else float(word) for name, word in stated.items()}


def deployments(
    catalog: Catalog, progress: Callable[[int], None] | None = None, names: Sequence[str] = ()
) -> list[Deployment]:
    """Published deployments with the answer of the form Serve for each.

    ``progress``: called with 1 after each. ``names``: of those to answer; all without.
    """
    result = []
    for row in rows(_FILE):
        if names and row["name"] not in names:
            continue
        asked = asked_of(row)
        form = table_from_rows("serve", list(asked), [list(asked.values())])
        answer = serve_answer(form, catalog)
        mode = TWO if row["pools"] == "2" else ONE
        same = [
            fleet.accelerators
            for fleet in serving_ways(form, catalog)
            if fleet.plan["mode"][0] == mode and row["software"] in ("", fleet.plan["software"][0])
        ]
        result.append(
            Deployment(
                row["name"], row["source"], float(row["accelerators"]), asked, answer, min(same, default=float("nan"))
            )
        )
        if progress is not None:
            progress(1)
    return result


def deployment_table(result: Sequence[Deployment]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and a row for each deployment: the published fleet, the answer, its band and the way; then the median.

    ``found``: as :func:`deployments` gives them. Returns as text.
    """
    header = (
        "deployment", "model", "accelerator", "users", "tokens/s each", "published", "xlperf", "80 % band", "way",
        "published way", "over published",
    )  # fmt: skip
    table: list[tuple[str, ...]] = []
    for one in result:
        answer = one.answer
        if answer.get("reason"):
            numbers = ("-", "-", str(answer["reason"]), "-", "-")
        else:
            numbers = (
                f"{answer['accelerators']:,.0f}",
                f"{answer['accelerators_low']:,.0f} to {answer['accelerators_high']:,.0f}",
                way_words(str(answer["software"]), str(answer["mode"]), answer).removeprefix("with "),
                "-" if one.same != one.same else f"{one.same:,.0f}",
                f"{one.ratio:.2f}",
            )
        asked = one.asked
        each = f"{asked['speed per user']:.1f}"
        table.append(
            (one.name, str(asked["model"]), short_name(asked["accelerator"]), f"{asked['users']:,.0f}", each,
             f"{one.accelerators:,.0f}", *numbers)
        )  # fmt: skip
    return header, table
