"""Results under uncertainty: seeded draws of uncertain inputs and calibration bands, and which input decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.schema import Column, table_schema, unit_of
from xlperf.catalog.table import Table
from xlperf.explore.objectives import objective_of
from xlperf.explore.samples import RANDOM, Sampling, normal_scores, uniforms
from xlperf.explore.sweep import BLOCK, Sweep

BAND = "calibration band"
DRAWS = 10_000
"""Draws of each plan by default. [-]"""
PERCENTILES = (5.0, 50.0, 95.0)
_BANDED = {"training": "step_time", "inference": "tpot"}
_DECILE = 1.2815515655446004
"""Standard deviations from the median to the end of an 80 % band. [-]"""
_AS_TIME = (
    "step_time", "time_", "layer_time", "step_cost", "ttft", "tpot", "latency", "prefill_time", "decode_time",
    "queue_time", "cost_per", "energy_per", "carbon_per", "run_time", "run_cost", "run_energy", "run_carbon",
)  # fmt: skip
_AS_RATE = ("tokens_per", "model_flop_rate", "mfu", "hfu", "max_request_rate")
_BAND_INPUT = 1 << 12


@dataclass(frozen=True)
class Uncertainty:
    """Draws of one result of plans; all plans are drawn with the same inputs, so that they can be compared.

    Attributes
    ----------
    sweep : Sweep
        Plans, catalog, what varies, and how it is sampled.
    result : str
        A result in numbers, or cost, energy or throughput.
    banded : bool
        Whether times also vary within the band of the calibration, together for plans of one software and machine.
    """

    sweep: Sweep
    result: str
    banded: bool = True

    @cached_property
    def column(self) -> Column:
        """The result that is looked at."""
        return objective_of(self.sweep.plans.kind, self.result, "--result").column

    @cached_property
    def sampling(self) -> Sampling:
        """Number, method and seed of the draws."""
        if self.sweep.sampling is None:
            raise ValueError("no sampling")
        return self.sweep.sampling

    @cached_property
    def _groups(self) -> np.ndarray:
        """Software and machine of each plan as a number."""
        plans = self.sweep.plans
        pairs = list(zip(plans.filled("software").tolist(), plans.text("accelerator").tolist(), strict=True))
        known = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        return np.array([known[pair] for pair in pairs], dtype=np.int64)

    @cached_property
    def inputs(self) -> list[tuple[str, str]]:
        """What varies: its sheet and its header."""
        kind = self.sweep.plans.kind
        names = [(kind, table_schema(kind).by_name[name].header) for name in self.sweep.values]
        names += [(one.sheet, one.column.header) for one in self.sweep.varied]
        return [*names, ("calibration", BAND)] if self.banded else names

    def draws(self) -> tuple[Array, Array]:
        """The result of each draw of each plan, NaN where it is illegal, and whether it fits, (plans, draws)."""
        index = np.arange(self.sampling.number)
        shares = np.empty((self.sweep.num_inputs, len(index)))
        for place in range(len(shares)):
            shares[place] = uniforms(self.sampling, place, index)
        bands = np.array([uniforms(self.sampling, _BAND_INPUT + int(group), index) for group in self._groups])
        return self._at(shares, bands if self.banded else None)

    def _at(self, shares: Array, bands: Array | None) -> tuple[Array, Array]:
        """The result of each plan with its inputs at shares, (inputs, draws), and bands at shares, (plans, draws)."""
        plans, number = len(self.sweep.plans), shares.shape[1]
        found, fits = np.empty(plans * number), np.empty(plans * number)
        for start in range(0, plans * number, BLOCK):
            rows = slice(start, min(start + BLOCK, plans * number))
            plan, draw = np.divmod(np.arange(rows.start, rows.stop), number)
            results = self.sweep.evaluated(*self.sweep.at(plan, shares[:, draw])).results
            values = results.number(self.column.name)
            found[rows] = values if bands is None else values * self._slower(results, bands[plan, draw])
            fits[rows] = results.number("fits")
        return found.reshape(plans, number) / unit_of(self.column).factor, fits.reshape(plans, number)

    def _slower(self, results: Table, share: Array) -> Array:
        """Factor of the result where times lie at a share of their band: two halves of lognormal distributions."""
        name = self.column.name
        power = 1.0 if name.startswith(_AS_TIME) else -1.0 if name.startswith(_AS_RATE) else 0.0
        time = results.number(_BANDED[self.sweep.plans.kind])
        low, high = (results.number(f"{_BANDED[self.sweep.plans.kind]}_{end}") / time for end in ("low", "high"))
        score = normal_scores(share) / _DECILE
        logarithm = np.where(score < 0.0, -np.log(low) * score, np.log(high) * score)
        return np.asarray(np.exp(power * np.nan_to_num(logarithm)))

    def summary(self) -> Table:
        """``uncertainty``: percentiles of the result of each plan, and how likely each plan is the best of all."""
        found, fits = self.draws()
        larger = objective_of(self.sweep.plans.kind, self.result).larger
        usable = np.where(fits == 1.0, np.where(larger, -found, found), np.inf)
        usable = np.where(np.isnan(usable), np.inf, usable)
        best = np.isfinite(usable.min(axis=0)) & (usable == usable.min(axis=0))
        base, _ = self._at(np.full((self.sweep.num_inputs, 1), 0.5), None)
        with np.errstate(all="ignore"):
            percentiles = np.array([_percentiles(row) for row in found])
            columns = {
                "plan": _names(self.sweep.plans),
                "result": np.full(len(found), self.column.header, dtype=object),
                "median_inputs": base[:, 0],
                "mean": np.array([row[~np.isnan(row)].mean() if (~np.isnan(row)).any() else np.nan for row in found]),
                "p5": percentiles[:, 0],
                "p50": percentiles[:, 1],
                "p95": percentiles[:, 2],
                "probability_fits": (fits == 1.0).mean(axis=1),
                "probability_best": (best / np.maximum(best.sum(axis=0), 1)).mean(axis=1),
                "probability_beats_first": (usable < usable[:1]).mean(axis=1),
            }
        return Table("uncertainty", columns)

    def effects(self, number: int = 0) -> Table:
        """``input_effects``: what each input does to the result of each plan, the one with the largest swing first.

        Parameters
        ----------
        number : int
            Base samples of the Sobol indices, a power of two; 0 for none. [-]

        Returns
        -------
        Table
            Results with one input at its 5th and 95th percentile and all others at their median; first-order and
            total Sobol indices (blank without samples).

        Raises
        ------
        InputError
            Where scipy is not installed.
        """
        count, plans = len(self.inputs), len(self.sweep.plans)
        shares = np.full((count, 2 * count), 0.5)
        for place in range(count):
            shares[place, 2 * place : 2 * place + 2] = 0.05, 0.95
        ends, _ = self._inputs_at(shares)
        first, total = self._sobol(number) if number else (np.full((plans, count), np.nan),) * 2
        low, high = ends[:, 0::2], ends[:, 1::2]
        swing = np.abs(high - low)
        order = np.argsort(-swing, axis=1, kind="stable")

        def flat(values: np.ndarray) -> np.ndarray:
            return np.asarray(np.take_along_axis(values, order, axis=1).ravel())

        words = np.array(self.inputs, dtype=object)[order.ravel()]
        return Table("input_effects", {
            "plan": np.repeat(_names(self.sweep.plans), count),
            "result": np.full(plans * count, self.column.header, dtype=object),
            "rank": np.tile(np.arange(1.0, count + 1.0), plans),
            "input": words[:, 1], "sheet": words[:, 0],
            "result_low": flat(low), "result_high": flat(high), "swing": flat(swing),
            "first_order_index": flat(first), "total_index": flat(total),
        })  # fmt: skip

    def _inputs_at(self, shares: Array) -> tuple[Array, Array]:
        """The result with all inputs, that of the band last, at shares, (plans, draws)."""
        bands = np.broadcast_to(shares[-1], (len(self.sweep.plans), shares.shape[1]))
        return self._at(shares[: self.sweep.num_inputs], bands if self.banded else None)

    def _sobol(self, number: int) -> tuple[Array, Array]:
        """First-order and total Sobol indices, (plans, inputs)."""
        try:
            from scipy.stats import sobol_indices
        except ImportError:
            raise InputError(Fault("--sobol", 'needs scipy: pip install "xlperf[fit]"')) from None
        count = len(self.inputs)
        sampling = Sampling(number, RANDOM, self.sampling.seed)
        index = np.arange(number)
        one, other = (
            np.array([uniforms(sampling, 2 * place + turn, index) for place in range(count)]) for turn in (0, 1)
        )
        mixed = [np.where(np.arange(count)[:, None] == place, other, one) for place in range(count)]
        values, _ = self._inputs_at(np.concatenate([one, other, *mixed], axis=1))
        parts = values.reshape(len(values), count + 2, number)
        found = [
            sobol_indices(
                func={"f_A": row[:1] - row.mean(), "f_B": row[1:2] - row.mean(), "f_AB": row[2:, None] - row.mean()},
                n=number,
            )
            for row in parts
        ]
        return tuple(  # type: ignore[return-value]
            np.array([np.ravel(getattr(one, name)) for one in found]) for name in ("first_order", "total_order")
        )


def _names(plans: Table) -> np.ndarray:
    """Names of plans, or their numbers."""
    names = plans.text("name").tolist()
    return np.array([name or f"plan {row}" for row, name in enumerate(names, start=1)], dtype=object)


def _percentiles(values: Array) -> Array:
    known = values[~np.isnan(values)]
    return np.percentile(known, PERCENTILES) if len(known) else np.full(len(PERCENTILES), np.nan)
