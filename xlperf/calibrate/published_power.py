"""Measured power and energy per token of served models beside predictions: at the predicted and at the measured rate.

At the measured rate the work of a token is as predicted, done in the time that was measured: what is left is the error
of the watts alone. At the predicted rate the error of the rate comes in too.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from xlperf.calibrate.comparison import Record
from xlperf.calibrate.published import POWER, Published, PublishedPlans, published_columns
from xlperf.calibrate.published_inference import engine_default, engine_of, inference_plans
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate
from xlperf.engine.inference import power_at_rates

WATTS, JOULES = "avg_power_w_per_gpu", "energy_j_per_output_token"
AT_MEASURED_RATE = "power at the measured rate"
QUANTITIES = (AT_MEASURED_RATE, "power", "energy per token")
_GROUPS = ("not fitted", "fitted")
_RESULTS = {WATTS: "accelerator_power", JOULES: "accelerator_energy_per_token"}
_OTHER_SCOPE = 'power of "{}": more than the accelerators'
_NO_SERVING = 'rows of kind "{}" are no served model'
_SERVED = ("inference", "decode")
_WEIGHTS_IN_FOUR_BITS = "mxfp4"
"""vLLM's kernels of 2025 for such weights take 16-bit activations, on Blackwell too."""


def served_rows(published: Published) -> tuple[Published, list[str]]:
    """Rows of measured power as inference rows, and what no plan can say of them, "" where one can.

    ``published``: rows of kind ``power``. An output length that is not printed follows from the energies of a request
    and of a token, a prompt length from the benchmark of the source.
    """
    size, columns = len(published), published_columns()["inference"]
    text = {name: list(published.text.get(name, [""] * size)) for name in columns}
    blank = np.full(size, math.nan)
    number = {name: published.number.get(name, blank).copy() for name, sort in columns.items() if sort != "text"}
    with np.errstate(all="ignore"):
        length = published.number["energy_j_per_request"] / published.number[JOULES]
    number["osl"] = np.rint(np.where(np.isnan(number["osl"]), length, number["osl"]))
    number["tokens_per_s"], number["batch"] = blank, np.rint(number["batch"])
    refused = []
    for row in range(size):
        kind, scope = published.text["kind"][row], published.text["scope"][row]
        wrong = "" if kind in _SERVED else _NO_SERVING.format(kind)
        refused.append(wrong or ("" if scope == "gpu_only" else _OTHER_SCOPE.format(scope)))
        text["group"][row] = _GROUPS[int(published.number["fitted"][row] == 1.0)]
        text["mode"][row] = "serving" if kind == "inference" else ""
        if _WEIGHTS_IN_FOUR_BITS in text["precision"][row]:
            text["precision"][row] += " weights"
        own = {name: text[name][row] for name in text}
        prompt = engine_default(engine_of(own["framework"]), own, "prompt_length")[0]
        if math.isnan(number["isl"][row]) and prompt:
            number["isl"][row] = float(prompt)
        if math.isnan(number["tp"][row]):
            number["tp"][row] = number["n_gpus"][row]
    return Published("inference", text, number, published.place), refused


def power_plans(published: Published, catalog: Catalog) -> PublishedPlans:
    """Turn rows of measured power into inference plans; why the others are none.

    ``published``: rows of kind ``power``.
    """
    rows, refused = served_rows(published)
    kept = [row for row, why in enumerate(refused) if not why]
    found = inference_plans(rows.take(kept), catalog)
    reasons, notes = (np.array(values, dtype=object) for values in (refused, [""] * len(rows)))
    reasons[kept], notes[kept] = found.reasons, found.notes
    index = np.array(kept, dtype=np.int64)[found.index]
    return replace(found, published=published, index=index, reasons=reasons, notes=notes)


def power_records(published: Published, catalog: Catalog) -> list[Record]:
    """Measured watts and joules per token beside the predicted ones, a record for each row and quantity.

    ``published``: rows of kind ``power``.
    """
    plans, found = power_plans(published, catalog), {name: np.full(len(published), math.nan) for name in QUANTITIES}
    if len(plans.plans):
        results = evaluate(plans.plans, plans.catalog)
        rate = published.number["tokens_per_s"][plans.index]
        found[AT_MEASURED_RATE][plans.index] = power_at_rates(plans.plans, plans.catalog, rate)
        for name, quantity in zip((WATTS, JOULES), QUANTITIES[1:], strict=True):
            found[quantity][plans.index] = results.number(_RESULTS[name])
    columns = dict(zip(QUANTITIES, (WATTS, WATTS, JOULES), strict=True))
    return [
        _record(plans, row, quantity, columns[quantity], float(found[quantity][row]))
        for row in range(len(published))
        for quantity in QUANTITIES
        if not math.isnan(published.number[columns[quantity]][row])
        and not (quantity == AT_MEASURED_RATE and math.isnan(published.number["tokens_per_s"][row]))
    ]


def _record(plans: PublishedPlans, row: int, quantity: str, column: str, value: float) -> Record:
    text = {name: cells[row] for name, cells in plans.published.text.items()}
    measured = float(plans.published.number[column][row])
    words = plans.reasons[row] or plans.notes[row]
    return Record(
        row_id=text["row_id"],
        source_id=text["source_id"],
        group=_GROUPS[int(plans.published.number["fitted"][row] == 1.0)],
        accelerator=text["gpu"],
        metric=f"{column}{' (measured rate)' if quantity == AT_MEASURED_RATE else ''}",
        measured=measured,
        predicted=value,
        relative_error=abs(value / measured - 1.0),
        reason=str(words),
        kind=POWER,
        quantity=quantity,
        primary=True,
    )
