"""Published deployments: production fleets beside the fleet that the form Serve recommends for the same load.

A row of ``published_deployments.csv`` states a load as its publisher does: input and output tokens per second,
the mean context of a request during decoding, and requests in flight. Prompt and output lengths follow from them.
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
from xlperf.explore.objectives import Answer, short_name
from xlperf.explore.serve import serve_answer, serving_ways, way_words

_FILE = "calibrate/published_deployments.csv"
_STATED = ("shared_prefix", "draft_tokens", "acceptance_rate", "precision", "kv_precision", "ttft_target")
"""Columns that a deployment shares with the form, each blank if its publisher states nothing."""


@dataclass(frozen=True)
class Deployment:
    """A published fleet, its load, and the form's answer for that load.

    ``accelerators``: of the published fleet [-]. ``asked``: the form by column, in the units of the sheet. ``answer``:
    results of the cheapest plan. ``same``: accelerators of the plan with the published engine and pools; NaN if the
    search has no such plan [-].
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
    """Prompt and output length of a request from its mean context during decoding. [token]

    ``input_rate`` and ``output_rate`` are token rates of a fleet [token/s]; ``context`` is the prompt and half of the
    output [token].

    >>> lengths(1000.0, 500.0, 2500.0)
    (2000.0, 1000.0)
    """
    share = output_rate / input_rate
    prompt = context / (1.0 + share / 2.0)
    return prompt, prompt * share


def asked_of(row: dict[str, str]) -> dict[str, Any]:
    """Inputs of the form Serve for a row of ``published_deployments.csv``, by column, in the units of the sheet."""
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
    """Published deployments with the answer of the form Serve for each, or for the given ``names``.

    ``progress`` receives 1 after each deployment.
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
    """Header and a row of text per deployment: published fleet, answer, band, plan."""
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
