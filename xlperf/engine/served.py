"""Served plans with their settings: model, accelerators, calibration, prices and limits of replicas or pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.formats import with_formats, with_parts
from xlperf.engine.join import POOLS, Joined, Named, constants_by_family, join, plan_columns, pool_rows
from xlperf.engine.software import memory_constants
from xlperf.equations.cost.tokens import Terms
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.model.cores import own_families
from xlperf.equations.model.model import Architecture
from xlperf.equations.network.collectives import OPERATIONS
from xlperf.equations.plan.records import FP4, PRECISION_CODES, Remark
from xlperf.equations.plan.serving_plan import PARTS, SERVED_PRECISIONS, InferencePlan, pool_plans, with_defaults
from xlperf.equations.serving import Deployment, pools_of
from xlperf.equations.serving.deployment import engine_constants, with_copied_groups
from xlperf.equations.serving.pools import Pools

_EXPERTS = ("all_to_all", "reduce_scatter")
_KERNELS = ("gemm", "vector", "engine_all_reduce", *(name for name in OPERATIONS if name not in _EXPERTS))
_ATTENTION = {False: ("attention", "attention_decode"), True: ("attention", "attention_latent")}
# Families that never mark a plan as extrapolated; the family of their engine or kernel does
_BESIDE_OTHERS = ("gemm_wide", "serving_eager", "serving_memory", "engine_all_reduce", "serving_load", "serving_host",
                  "serving_attention", "serving_experts", "attention_latent", "linear_attention", "power")  # fmt: skip
_IN_TABLE = np.array([PRECISION_CODES[name] for name in SERVED_PRECISIONS])
_BAND = "band"
_POWER = "power"
_OF_FORMATS = ("precision", "activation_precision", "kv_precision", "wide_attention")
_SOFTWARE = ("serving_software", "serving_memory", "serving_load", "serving_host", "serving_attention", _BAND)


@dataclass(frozen=True)
class ServingSetting:
    """A block of served plans with their model, accelerators, calibration, prices and limits, (rows,)."""

    deployment: Deployment
    band: Mapping[str, Array]  # calibrated half-widths of bands
    power: Mapping[str, Array]  # calibrated power constants
    extrapolated: list[tuple[str, np.ndarray]]  # family, and rows without constants of their own
    remarks: list[Remark]  # rules that need the catalog
    max_sequence_length: Array  # of the model [token]
    accelerators: np.ndarray  # rows of the sheet accelerators
    terms: Terms  # prices and power
    rented: np.ndarray  # whether the price is a rent
    limits: PowerLimits

    @property
    def plan(self) -> InferencePlan:
        """The plans with their defaults."""
        return self.deployment.plan

    def take(self, rows: slice) -> ServingSetting:
        """Select rows; of plan columns the numbers alone."""
        return ServingSetting(
            self.deployment.take(rows),
            {name: values[rows] for name, values in self.band.items()},
            {name: values[rows] for name, values in self.power.items()},
            [(family, far[rows]) for family, far in self.extrapolated],
            [remark.take(rows) for remark in self.remarks],
            self.max_sequence_length[rows],
            self.accelerators[rows],
            self.terms.take(rows),
            self.rented[rows],
            self.limits.take(rows),
        )


@dataclass(frozen=True)
class Served:
    """Plans of one mode with the settings of their replicas or pools."""

    stated: InferencePlan  # as in the sheet
    setting: ServingSetting  # of replicas or decode pools, (rows,)
    all_pools: ServingSetting | None = None  # decode, prefill and expert pools, one after the other
    prefilling: ServingSetting | None = None  # of prefill pools, (rows,)
    experts: ServingSetting | None = None  # of expert pools, (expert pools,)
    split: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # row of each expert pool
    requests: Array | None = None  # in flight over all pools

    def pools(self) -> Pools | None:
        """Pools of disaggregated plans, else None."""
        if self.all_pools is None or self.requests is None:
            return None
        return pools_of(self.all_pools.deployment, self.requests, self.split)


def _constants(
    calibration: Calibration, joined: Joined, plan: InferencePlan, architecture: Architecture
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    eager = ("serving_eager",) if (plan.graphs == 0.0).any() else ()
    # Matrix units without FP4 or FP8 run weights of these formats with the kernels of INT4 weights.
    peaks = np.where(plan.four_bits, joined.peaks[:, FP4], joined.peak_for(plan.stored_in_table))
    widened = plan.is_float & np.isnan(peaks)
    stored = np.where(widened, PRECISION_CODES["int4"], plan.stored_in_table)
    wanted = (
        (("gemm_wide",), joined.wide_keys),
        ((*_KERNELS, *(_EXPERTS if architecture.experts else ())), joined.keys),
        (("serving_experts",) if architecture.experts else (), joined.keys_named(stored)),
        (_ATTENTION[architecture.one_vector], joined.keys_for(plan.attention_in_table)),
        (own_families(architecture), joined.keys),
        ((*_SOFTWARE, _POWER, *eager), joined.keys),
    )
    constants, extrapolated = constants_by_family(calibration, wanted, beside=_BESIDE_OTHERS)
    for part in PARTS:
        if plan.part_sizes(part) is not None:
            constants[f"gemm_{part}"] = _of_part(calibration, joined, plan, part)
    return constants, extrapolated


def _of_part(calibration: Calibration, joined: Joined, plan: InferencePlan, part: str) -> Mapping[str, Array]:
    """GEMM constants of a part with a precision of its own, and its peak rate relative to that of the plan, (rows, 1).

    Of plans without such a part they are those of the plan.
    """
    own = getattr(plan, f"{part}_product")
    codes = np.where(np.isnan(own), _IN_TABLE[plan.product_codes], own).astype(np.int64)
    constants = constants_by_family(calibration, [(("gemm",), joined.keys_for(codes))], beside=("gemm",))[0]["gemm"]
    peaks = joined.peak_for(codes), joined.device.rate().peak_flop_rate[:, 0]
    return {**constants, "peak_ratio": np.where(codes == _IN_TABLE[plan.product_codes], 1.0, divide(*peaks))[:, None]}


def serving_setting(
    plans: Table, plan: InferencePlan, catalog: Catalog, named: Named, architecture: Architecture
) -> ServingSetting:
    """Model, accelerators, calibration, prices and limits of a block of plans."""
    if plan.has("activation_precision"):
        plans = replace(plans, columns={**plans.columns, "precision": plan.product_precision})
    joined = join(plans, catalog, named)
    constants, extrapolated = _constants(catalog.calibration, joined, plan, architecture)
    band, power = constants.pop(_BAND), constants.pop(_POWER)
    kernels, software = engine_constants(constants, architecture)
    for name, values in memory_constants(plans, catalog, named.models).items():
        software[name] = np.where(np.isnan(values), software[name], values)
    complete = with_defaults(plan)
    deployment = Deployment(
        model=with_copied_groups(joined.model, complete, software["ranks"][:, 0]),
        device=joined.device.with_attention(joined.peak_for(plan.attention_in_table)),
        network=joined.network,
        plan=complete,
        kernels=kernels,
        software=software,
        reserved_memory=joined.reserved_memory,
        architecture=architecture,
    )
    facts = joined.max_sequence_length, joined.accelerators, joined.terms, joined.rented, joined.power
    return ServingSetting(deployment, band, power, extrapolated, joined.rules, *facts)


def served_plans(plans: Table, catalog: Catalog, named: Named, architecture: Architecture, mode: str) -> Served:
    """Plans of one ``mode`` (static, continuous, disaggregated) with the settings of their replicas or pools."""
    sheet, plans = plans, with_formats(plans, catalog, named)
    stated = with_parts(plan_columns(plans, InferencePlan), plans)
    if mode != "disaggregated":
        return Served(stated, serving_setting(plans, stated, catalog, named, architecture))
    # One table of all pools: decode, prefill, expert.
    pools, requests, split = pool_plans(stated)
    number, rows = len(plans), np.arange(len(plans))
    rows = np.concatenate([rows, rows, split])

    def of_pools(decode: np.ndarray, prefill: np.ndarray, experts: np.ndarray) -> np.ndarray:
        return np.concatenate([decode, prefill, experts[split]])

    accelerators, networks = (
        of_pools(decode, *(pool_rows(plans, catalog, decode, column, pool) for pool in POOLS))
        for decode, column in ((named.accelerators, "accelerator"), (named.networks, "network"))
    )
    pool_table = sheet.take(rows)
    columns = {**pool_table.columns, "num_accelerators": pools.num_accelerators}
    names = [f"{pool}_accelerator" for pool in POOLS]
    if any(name in plans for name in names):
        decode = plans.text("accelerator")
        words = (plans.text(name) for name in names)
        columns["accelerator"] = of_pools(decode, *(np.where(word == "", decode, word) for word in words))
    pool_names = Named(named.models[rows], accelerators, networks)
    pool_table = replace(pool_table, columns=columns)
    if plans is not sheet:
        pool_table, pools = _formats_of_pools(pool_table, pools, catalog, pool_names)
    setting = serving_setting(pool_table, pools, catalog, pool_names, architecture)
    decoding, prefilling = setting.take(slice(0, number)), setting.take(slice(number, 2 * number))
    experts = setting.take(slice(2 * number, None)) if len(split) else None
    return Served(stated, decoding, setting, prefilling, experts, split, requests)


def _formats_of_pools(
    table: Table, pools: InferencePlan, catalog: Catalog, named: Named
) -> tuple[Table, InferencePlan]:
    """Pools with the products that their own accelerators compute in the formats of the checkpoint."""
    table = with_formats(table, catalog, named)
    own = plan_columns(table, InferencePlan)
    columns = {name: getattr(own, name) for name in _OF_FORMATS}
    return table, with_parts(pools.replaced(**columns), table)
