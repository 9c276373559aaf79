"""Power of accelerators from the work of plans, and what that draws from the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.table import Table
from xlperf.engine.join import PowerLimits
from xlperf.equations.cost.tco import daily_mean
from xlperf.equations.hardware.gemm import product_memory_traffic
from xlperf.equations.hardware.memory import resident_share
from xlperf.equations.hardware.power import idle_power, narrow_energy, work_power
from xlperf.equations.hardware.roofline import Device
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.plan.records import Remark
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.serving.energy import decode_step_traffic, feed_forward_flop, token_flop, visited_share
from xlperf.equations.training.step import MESSAGE_PARTS

_STEP = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")
_TILE = (256.0, 128.0)
_USUAL_CACHE = 50.0 * 2.0**20
"""Last-level cache of the machines whose energy was measured. [B]"""
Machine = tuple[Device, PowerLimits, Mapping[str, Array]]
"""Accelerators (rows, 1), their power limits (rows,), and constants of the family power (rows, 1)."""


class _Rates(NamedTuple):
    """Work of one accelerator in a second, and the share of the time in which anything runs.

    Of the bytes that the units read ``from_memory`` come from the main memory, over those that do with a usual cache.
    """

    flop: Array
    traffic: Array
    from_memory: Array
    sending: Array
    busy: Array


def _power(machine: Machine, product_size: Array, rates: _Rates) -> Array:
    """Mean power of an accelerator, (rows,). [W]"""
    device, limits, constants = machine
    own = {name: values[:, 0] for name, values in constants.items()}
    clocks = own["active_share"] * limits.own * (limits.clock_share * limits.clock_share * limits.clock_share)
    rest = idle_power(limits.own, own["idle_share"], device.static_power[:, 0]) + rates.busy * clocks
    flop_energy = narrow_energy(own["flop_energy"], product_size) * device.energy_ratio[:, 0]
    # The way from the cache to the units is paid for every byte, that from the memory for those not in the cache.
    byte_energy = (own["memory_ratio"] - 1.0 + rates.from_memory) * device.memory_energy[:, 0]
    messages = own["message_share"] * limits.own
    work = rates.flop, flop_energy, rates.traffic, byte_energy, rates.sending, messages
    return work_power(limits.kept, rest, *work)


def _from_memory(device: Device, model: Model, tokens: Array, ranks: Array, element_size: Array) -> Array:
    """Traffic of the widest product of a layer through the main memory, over that with a usual cache, (rows,)."""
    width = np.where(model.ffn_hidden_size > 0.0, model.ffn_hidden_size, model.hidden_size) / ranks
    sizes = np.maximum(tokens, 1.0), width, model.hidden_size, 1.0, element_size, element_size
    own, units = device.l2_capacity[:, 0], device.num_multiprocessors[:, 0]
    known = np.where(np.isnan(own), _USUAL_CACHE, own)
    found, usual = (product_memory_traffic(*sizes, *_TILE, units, capacity) for capacity in (known, _USUAL_CACHE))
    return np.where(np.isfinite(found), found / usual, 1.0)


def training_power(machine: Machine, model: Model, plan: TrainingPlan, results: Mapping[str, Array]) -> Array:
    """Mean power of an accelerator over a training step; links draw power for hidden messages too.

    ``machine``: accelerators with limits and constants. ``model``: trained models, (rows,). ``plan``: precision,
    degrees, (rows,). ``results``: times and utilisation of the step, (rows,). Returns (rows,) [W].
    """
    (device, _, constants), step = machine, results["step_time"]
    sending = np.minimum(
        sum((results[name] for name in (*MESSAGE_PARTS, "hidden_communication_time")), 0.0 * step) / step, 1.0
    )
    flop = results["hfu"] * device.peak_flop_rate[:, 0]
    traffic = flop / constants["compute_intensity"][:, 0]
    missing = _from_memory(device, model, plan.tokens, plan.tensor_parallel, plan.product_size)
    return _power(machine, plan.product_size, _Rates(flop, traffic, missing, sending, np.ones_like(step)))


def serving_power(
    machines: tuple[Machine, Machine],
    model: Model,
    plan: InferencePlan,
    architecture: Architecture,
    results: Mapping[str, Array],
) -> tuple[Array, Array]:
    """Mean power of an accelerator while it decodes and while it prefills, or of the pools that do.

    At a low rate of arrivals accelerators are idle meanwhile.

    ``machines``: accelerators that decode and those that prefill, with limits and constants. ``model``: served models,
    (rows,). ``plan``: plans as the sheet has them: all accelerators, (rows,). ``architecture``: structure that the
    models share. ``results``: rates, times of a decode step and memory, (rows,). Returns decoding and prefilling,
    (rows,) [W].
    """
    share, rate = results["prefill_share"], results["tokens_per_second"]
    step = sum((results[name] for name in _STEP), 0.0 * rate)
    running = results["running_batch"]
    busy = np.where(np.isnan(plan.request_rate), 1.0, np.minimum(running, 1.0))
    flop = token_flop(model, plan.prompt_length + 0.5 * plan.output_length)
    each = rate / plan.num_accelerators
    decoding = np.maximum(1.0 - share, 1e-9)
    sizes = results["memory_weights"], results["memory_kv_cache"], running
    traffic = decode_step_traffic(model, plan, architecture, *sizes)
    held = resident_share(results["memory_weights"] + results["memory_kv_cache"], machines[0][0].l2_capacity[:, 0])
    sending = divide(results["time_communication"], step)
    decode = _Rates(
        np.nan_to_num(each / decoding * flop),
        np.nan_to_num(busy * divide(traffic, step)),
        1.0 - held,
        np.nan_to_num(busy * sending),
        busy,
    )
    prompts = each * divide(plan.prompt_length, plan.output_length)
    prompt_flop = token_flop(model, 0.5 * plan.prompt_length)
    prompt_rate = np.nan_to_num(divide(prompts * prompt_flop, share))
    moved = prompt_rate / machines[1][2]["compute_intensity"][:, 0]
    size = plan.input_size
    missing = _from_memory(machines[1][0], model, plan.prompt_length, plan.tensor_parallel, size)
    prefill = _Rates(prompt_rate, moved, missing, 0.0 * rate, busy)
    return _power(machines[0], size, decode), _power(machines[1], size, prefill)


def expert_pool_power(
    machines: tuple[Machine, Machine],
    model: Model,
    plan: InferencePlan,
    architecture: Architecture,
    counts: tuple[Array, Array],
    results: Mapping[str, Array],
) -> tuple[Array, Array]:
    """Mean power of an accelerator of the attention pool and of the expert pool.

    Parameters
    ----------
    machines : tuple
        Accelerators of both pools, with limits and constants.
    model : Model
        Served models, (rows,).
    plan : InferencePlan
        Plans as the sheet has them, with the bytes of an input of a product, (rows,).
    architecture : Architecture
        Structure that the models share.
    counts : tuple of Array
        Accelerators of both pools, (rows,). [-]
    results : mapping of str to Array
        Rates, times of a decode step, shares of the pools and memory, (rows,).

    Returns
    -------
    tuple of Array
        Attention and experts, (rows,). [W]
    """
    rate, running = results["tokens_per_second"], results["running_batch"]
    step = sum((results[name] for name in _STEP), 0.0 * rate)
    loaded = np.where(np.isnan(plan.request_rate), 1.0, np.minimum(running, 1.0))
    fed = feed_forward_flop(model)
    flop = token_flop(model, plan.prompt_length + 0.5 * plan.output_length) - fed, fed
    batches = np.minimum(plan.ping_pong_batches, np.maximum(np.ceil(running), 1.0))
    # Every micro-batch reads the weights.
    weights, none = batches * results["memory_weights"], 0.0 * rate
    sizes = none, results["memory_kv_cache"], running
    cache = decode_step_traffic(model, plan, architecture, *sizes)
    visited = visited_share(model, running / batches)
    traffic = weights + cache, batches * results["expert_memory"] * visited
    sending = loaded * results["expert_link_share"]
    found = []
    for pool, name in enumerate(("attention_pool_share", "expert_pool_share")):
        rates = _Rates(
            np.nan_to_num(divide(rate * flop[pool], counts[pool])),
            np.nan_to_num(loaded * divide(traffic[pool], step)),
            np.ones_like(rate),
            np.nan_to_num(sending),
            np.nan_to_num(loaded * np.minimum(results[name], 1.0)),
        )
        found.append(_power(machines[pool], plan.input_size, rates))
    return found[0], found[1]


def slowed_clock(limits: PowerLimits, illegal: np.ndarray) -> Remark:
    """Where a lowered power limit slows long products, and to what share of their clock.

    ``limits``: of the plans, (rows,).
    """
    said = ~illegal & (limits.clock_share < 1.0)
    numbers = limits.kept, np.round(100.0 * limits.clock_share), limits.own
    return Remark(said, "power limit {} W: the clock of long products falls to {} % of that at {} W", numbers)


_HOURS = 24


def _by_hour(table: Table, column: str, rows: np.ndarray) -> Array:
    """What the rows of a table say by hour of the day in a column of words, (rows, 24); 1 where they say nothing."""
    found, words = np.ones((len(rows), _HOURS)), table.text(column)
    for place, row in enumerate(rows.tolist()):
        stated = str(words[row]).replace(";", " ").split() if row >= 0 else []
        if not stated:
            continue
        try:
            values = [float(word) for word in stated]
        except ValueError:
            values = []
        if len(values) != _HOURS or not all(0.0 <= value < np.inf for value in values) or not sum(values) > 0.0:
            problem = f"{column.replace('_', ' ')} must be {_HOURS} numbers of 0 or more, got {shown(words[row])}"
            raise InputError(Fault(table.place(row, column), problem))
        found[place] = values
    return found


def run_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray, run_time: Array) -> Array:
    """Carbon of the grid's energy while runs last, over the mean of a day, (rows,). [-]

    ``accelerators``: rows that the plans name; ``run_time`` [s].
    """
    if "start_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    flat = (grid == grid[:, :1]).all(axis=1)
    return np.where(flat, 1.0, daily_mean(list(grid.T), plans.number("start_hour"), run_time))


def load_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> Array:
    """Carbon of the grid's energy weighted by the load of each hour, over the mean of a day, (rows,). [-]

    ``accelerators``: rows that the plans name.
    """
    if "load_by_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    load = _by_hour(plans, "load_by_hour", np.arange(len(plans)))
    return np.asarray((grid * load).mean(axis=1) / (grid.mean(axis=1) * load.mean(axis=1)))
