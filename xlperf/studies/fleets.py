"""Study of fleets over years: whether to buy now or to rent for a year and wait, by demand and growth."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

from xlperf.catalog.schema import Column, first_words
from xlperf.engine import evaluate
from xlperf.explore.forms import answers_of, answers_table, asked_form
from xlperf.explore.objectives import PLAN, dollars
from xlperf.explore.search import stacked
from xlperf.studies.outcome import Finding, Inputs, Outcome, charts_of, in_short, result_columns, sheet_of


def buy_or_wait(inputs: Inputs) -> Outcome:
    """What buying at once and waiting a year cost, for each demand of the first year and growth."""
    cases = list(product(inputs.numbers("request_rates"), inputs.numbers("growths")))
    first = first_words("fleet") | {name: inputs.text(name) for name in ("model", "generations")}
    forms = [
        asked_form("fleet", first | {"request_rate": f"{rate:g}", "growth": f"{growth:g}"})[1] for rate, growth in cases
    ]
    answers = [answers_of(form, inputs.catalog)[0] for form in forms]
    results = answers_table(stacked(forms), answers)
    names = [f"{rate:,g} requests/s, growth {growth:.0%}" for rate, growth in cases]
    shown = ("first_purchase", "present_cost", "cost_per_million_output_tokens", "buy_now_cost", "wait_cost",
             "value_of_waiting", "peak_power")  # fmt: skip
    worth = results.number("value_of_waiting") / results.number("present_cost")
    columns: list[tuple[Column | str, Iterable[object]]] = [
        ("case", names),
        ("request_rate", [f"{rate:,g} requests/s" for rate, _ in cases]),
        ("growth", [growth for _, growth in cases]),
        *result_columns(results, shown),
        ("waiting_share", worth),
    ]
    sheet = sheet_of("buy or wait", columns, charts_of("buy or wait"))
    findings = _findings(names, worth, results.number("value_of_waiting"), results["first_purchase"])
    plans = [answer[PLAN] for answer in answers if PLAN in answer]
    return Outcome(findings, [sheet], inputs.catalog, [(each, evaluate(each, inputs.catalog)) for each in plans])


def _findings(names: list[str], worth: np.ndarray, value: np.ndarray, bought: np.ndarray) -> list[Finding]:
    """In how many cases waiting is cheaper, and the case in which it is worth most and least."""
    if not np.isfinite(worth).any():
        return [in_short("no case has an answer", "choose accelerators that the sheet generations prices", tone="bad")]
    best, least = int(np.nanargmax(worth)), int(np.nanargmin(worth))
    wins = int(np.nansum(worth > 0.0))
    first = f"renting for a year and waiting is cheaper in {wins} of {len(names)} cases"
    ends = [
        f"{dollars(abs(value[row]))} {'cheaper' if value[row] > 0.0 else 'dearer'} than buying now with {names[row]}"
        for row in (best, least)
    ]
    findings = [in_short(first, f"at best it is {ends[0]}, at worst {ends[1]}")]
    return [*findings, *(Finding(name, f"Buy {words} at once.") for name, words in zip(names, bought, strict=True))]
