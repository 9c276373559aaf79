"""Published times of serving engines beside what is predicted of them, and the constants that both depend on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.units import factor
from xlperf.calibrate.comparison import FIRST_TOKEN, TIME_PER_TOKEN, Record, compare
from xlperf.calibrate.fit_training import NEVER_FITTED
from xlperf.calibrate.fitted_constants import FittedConstant, calibration_table, joined_tables
from xlperf.calibrate.published import Published, PublishedPlans
from xlperf.calibrate.published_inference import inference_plans
from xlperf.catalog.calibration import ANY, declared_constants, precision_key
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate

NEVER_FITTED_SOURCES = ("deepseek_infersim", "deepseek_infra")
"""Sources that are predicted and never fitted, beside the group of the papers."""
NEVER_FITTED_ATTENTION = ("hybrid",)
"""Attention whose models are predicted and never fitted: the scans of linear layers have one set of constants for all
accelerators, and what they miss is not to be found in the constants of engines."""
BUILT_ON = {"nim": "tensorrt-llm"}
"""Servers whose rows also tell about the engine that they are built on."""
WEIGHT_OF_FIRST = 0.5
"""Weight of a time to the first token beside a time per token."""

_RATES = ("tokens_per_s", "tokens_per_s_per_gpu")

Group = tuple[str, ...]


class Kind(NamedTuple):
    """Constants of one sort, one for each group of rows.

    Attributes
    ----------
    family : str
        Of the calibration sheet.
    constant : str
        Its name.
    keys : tuple of str
        What tells groups apart, of generation, precision and software; none: one value for all rows.
    step : float
        Change by which its effect is measured, in the unit of the constant.
    reference : str
        Group whose value stays at the default, the most frequent one where it is absent; "" for none.
    start : float
        Where the search starts; NaN: the default.
    shared : bool
        Whether groups without rows take the median of the others; else the declared default.
    """

    family: str
    constant: str
    keys: tuple[str, ...]
    step: float
    reference: str = ""
    start: float = math.nan
    shared: bool = True

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and largest value."""
        declared = declared_constants()[self.family][self.constant]
        return declared.low, declared.high

    @property
    def default(self) -> float:
        """Declared default."""
        return declared_constants()[self.family][self.constant].default


Values = tuple[dict[Group, float], ...]
"""Value of each group, for each kind."""


def time_of(record: Record, value: float) -> float:
    """A value of the record's metric as a time. [s]"""
    unit = {"ttft_ms": "ms", "tpot_ms": "ms"}.get(record.metric, "s")
    return 1.0 / value if record.metric in _RATES else value * factor(unit)


@dataclass(frozen=True)
class ServingRows:
    """Published times that constants are fitted on, one entry per row and quantity.

    Attributes
    ----------
    plans : PublishedPlans
        The rows as plans.
    entries : Array
        Position among what :func:`xlperf.calibrate.comparison.compare` gives.
    row_ids, software, generation, precision, family : np.ndarray
        Published row, engine, accelerator generation, precision of the weights, and what is held out together (model,
        accelerator, mapping).
    first_token : np.ndarray
        Whether the time is that to the first token, else it is per output token or end to end.
    times : Array
        Measured; 1 / rate for rates. [s]
    """

    plans: PublishedPlans
    entries: Array
    row_ids: np.ndarray
    software: np.ndarray
    generation: np.ndarray
    precision: np.ndarray
    family: np.ndarray
    first_token: np.ndarray
    times: Array

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def weights(self) -> Array:
        """Weight of each entry: engines count by the square root of their entries."""
        names = self.software.tolist()
        count = Counter(names)
        sizes = np.array([count[name] for name in names], dtype=np.float64)
        return np.where(self.first_token, WEIGHT_OF_FIRST, 1.0) * np.sqrt(np.median(sizes) / sizes)

    def groups(self, kind: Kind) -> list[Group]:
        """Group of each entry."""
        columns = [getattr(self, name).tolist() for name in kind.keys]
        return list(zip(*columns, strict=True)) if columns else [()] * len(self)

    def num_rows(self, mask: np.ndarray) -> int:
        """Published rows that some of the entries come from."""
        return len(set(self.row_ids[mask].tolist()))

    def errors(self, calibration: Sequence[FittedConstant], base: Catalog) -> Array:
        """Logarithm of predicted over measured time of each entry, NaN where there is no prediction."""
        catalog = self.plans.catalog.with_tables(
            [joined_tables(base.tables["calibration"], calibration_table(calibration))]
        )
        records = compare(self.plans, evaluate(self.plans.plans, catalog))
        chosen = [records[int(entry)] for entry in self.entries.tolist()]
        predicted = [time_of(record, record.predicted) if record.covered else math.nan for record in chosen]
        return np.asarray(np.log(np.array(predicted) / self.times))


def serving_rows(published: Published, catalog: Catalog) -> ServingRows:
    """Published rows that constants can be fitted on.

    Parameters
    ----------
    published : Published
        Inference rows; those of the papers, of :data:`NEVER_FITTED_SOURCES`, of models with
        :data:`NEVER_FITTED_ATTENTION` and without a prediction are left out.
    catalog : Catalog
        With the calibration of the kernels.

    Returns
    -------
    ServingRows
        Primary times per token and times to the first token.
    """
    told = zip(published.text["group"], published.text["source_id"], strict=True)
    kept = [row for row, (group, source) in enumerate(told) if _may_be_fitted(group, source)]
    plans = inference_plans(published.take(kept), catalog)
    records = compare(plans, evaluate(plans.plans, plans.catalog)) if len(plans.plans) else []
    table = plans.plans
    models = plans.catalog.rows("models", table.text("model"), table, "model")
    attention = plans.catalog.tables["models"].text("attention_type")[models].tolist()
    plan_of = {name: row for row, name in enumerate(table.text("name").tolist())}
    chosen = [
        index
        for index, record in enumerate(records)
        if record.primary
        and record.covered
        and record.quantity in (TIME_PER_TOKEN, FIRST_TOKEN)
        and attention[plan_of[record.row_id]] not in NEVER_FITTED_ATTENTION
    ]
    of_plan = np.array([plan_of[records[index].row_id] for index in chosen], dtype=np.int64)
    accelerators = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")[of_plan]
    keys = [table.text(name)[of_plan].tolist() for name in ("model", "accelerator")]
    mapping = table.number("tensor_parallel")[of_plan].tolist()
    stored = [precision_key(str(name)) for name in table.filled("precision")[of_plan].tolist()]
    return ServingRows(
        plans=plans,
        entries=np.array(chosen, dtype=np.int64),
        row_ids=np.array([records[index].row_id for index in chosen], dtype=object),
        software=table.text("software")[of_plan],
        generation=catalog.tables["accelerators"].text("generation")[accelerators],
        precision=np.array(stored, dtype=object),
        family=np.array([f"{a}/{b}/{tp:g}" for a, b, tp in zip(*keys, mapping, strict=True)], dtype=object),
        first_token=np.array([records[index].quantity == FIRST_TOKEN for index in chosen], dtype=bool),
        times=np.array([time_of(records[index], records[index].measured) for index in chosen]),
    )


def _may_be_fitted(group: str, source: str) -> bool:
    return group != NEVER_FITTED and source not in NEVER_FITTED_SOURCES


def plain_constants(kinds: Sequence[Kind], values: Values) -> list[FittedConstant]:
    """Constants as rows of the calibration sheet, with what holds where no group does."""
    found = []
    for kind, of_group in zip(kinds, values, strict=True):
        for group, value in of_group.items():
            if group or not kind.keys:
                found.append(plain_constant(kind, group, value))
        if kind.keys and kind.shared and of_group:
            found.append(plain_constant(kind, (ANY,) * len(kind.keys), middle(of_group)))
    return found


def plain_constant(kind: Kind, group: Group, value: float) -> FittedConstant:
    """One row of the calibration sheet without a word on where it comes from."""
    at = dict(zip(kind.keys, group, strict=True))
    generation, precision, software = (at.get(name, ANY) for name in ("generation", "precision", "software"))
    constant = kind.constant
    return FittedConstant(kind.family, generation, precision, software, constant, value, "", 0, math.nan, "", "")


def middle(of_group: Mapping[Group, float]) -> float:
    """Median over the groups."""
    return float(np.median(list(of_group.values()))) if of_group else math.nan
