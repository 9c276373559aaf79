"""Single collectives and kernels, timed by the equations and calibration of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import results_of
from xlperf.catalog.table import Table
from xlperf.engine.catalog_arrays import catalog_arrays
from xlperf.engine.join import architecture_codes, join, named_rows, plan_columns
from xlperf.engine.link_lists import listed_network
from xlperf.engine.models import architecture_of
from xlperf.engine.served import serving_setting
from xlperf.engine.software import with_software_defaults
from xlperf.engine.training import training_setting
from xlperf.equations.hardware.attention import (
    attention_time,
    core_attention_flop,
    engine_decode_attention_time,
    flash_traffic,
    kv_cache_traffic,
    tiled_heads,
    visible_pairs,
)
from xlperf.equations.hardware.gemm import gemm_time, product_traffic
from xlperf.equations.hardware.roofline import (
    CORE,
    PLANNED,
    RESOURCES,
    Device,
    Faster,
    ideal_times,
    limiting_resources,
    vector_time,
)
from xlperf.equations.model.blocks import Gemms
from xlperf.equations.model.operators import ServingGemms
from xlperf.equations.network.collectives import OPERATIONS, collective_time
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import Remark, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.kernels import product_times
from xlperf.equations.serving.messages import engine_all_reduce_time
from xlperf.equations.serving.phases import VECTOR_FLOP

COLLECTIVES = {name.replace("_", "-"): operation for name, operation in OPERATIONS.items()}
_EVERY = ("operation", "accelerator", "stack", "software")
_NETWORK = ("network", "size", "group", "stride", "num_accelerators", "precision")
_LISTED = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_HEADS = ("num_attention_heads", "num_query_groups", "head_size", "batch", "precision", "kv_precision")
# Columns that an operation needs
NEEDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(COLLECTIVES, ("size", "group")),
    "gemm": ("m", "n", "k"),
    "prefill-attention": ("num_attention_heads", "query_length"),
    "decode-attention": ("num_attention_heads", "key_length"),
    "memory": ("size",),
}
# Columns that apply to an operation, beside the columns of all
TAKES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(COLLECTIVES, _NETWORK),
    **dict.fromkeys(_LISTED, (*_NETWORK, "links", "beside")),
    "gemm": ("m", "n", "k", "batch", "precision"),
    "prefill-attention": (*_HEADS, "query_length", "key_length", "causal"),
    "decode-attention": (*_HEADS, "key_length"),
    "memory": ("size", "precision"),
}
_SOFTWARE_ONLY = {"decode-attention": "training"}
_FAMILIES = {
    "gemm": "gemm", "prefill-attention": "attention", "decode-attention": "attention_decode", "memory": "vector",
}  # fmt: skip
_NUMBERS = (
    "size", "group", "stride", "m", "n", "k", "batch", "num_attention_heads", "num_query_groups", "head_size",
    "query_length", "key_length", "causal",
)  # fmt: skip


class _Place(NamedTuple):
    """Hardware of an operation."""

    device: Device
    network: Network

    def faster(self, faster: Faster) -> _Place:
        """Hardware with accelerators and links that are faster by some factors."""
        links = faster.network * self.network.link_bandwidth
        return _Place(faster.device(self.device), replace(self.network, link_bandwidth=links))


Timed = Callable[[_Place], Array]


def evaluate_operations(operations: Table, catalog: Catalog) -> Table:
    """Time, rates and bound of single collectives and kernels: kind ``operations_results``, row by row. An operation
    that the accelerator or the network does not support is blank with a reason. Raises InputError if a column that an
    operation needs is missing, a column does not apply to it, or a name is unknown.
    """
    _check(operations)
    schema = results_of("operations")
    count, kinds = len(operations), {True: ("", object), False: (np.nan, float)}
    columns: dict[str, np.ndarray] = {c.name: np.full(count, *kinds[c.is_text]) for c in schema.columns}
    keys = list(zip(operations.filled("stack").tolist(), operations.text("operation").tolist(), strict=True))
    for key in dict.fromkeys(keys):
        rows = np.flatnonzero([own == key for own in keys])
        with np.errstate(all="ignore"):
            results = _evaluated(operations.take(rows), catalog, *key)
        for name, values in results.items():
            columns[name][rows] = values
    return Table(schema.name, columns, operations.place)


def _check(operations: Table) -> None:
    faults = []
    for row, (operation, stack) in enumerate(
        zip(operations.text("operation").tolist(), operations.filled("stack").tolist(), strict=True)
    ):
        for name, values in operations.columns.items():
            if name in _EVERY:
                continue
            blank = values[row] == "" or values[row] != values[row]
            words = name.replace("_", " ")
            if blank and name in NEEDS[operation]:
                faults.append(Fault(operations.place(row, name), f"{operation} needs {words}"))
            if not blank and name not in TAKES[operation]:
                known = ", ".join(known.replace("_", " ") for known in TAKES[operation])
                problem = f"{words} says nothing of {operation}, which takes {known}"
                faults.append(Fault(operations.place(row, name), problem))
        faults += [
            Fault(operations.place(row, "operation"), f"{operation} needs {name.replace('_', ' ')}")
            for name in NEEDS[operation]
            if name not in operations
        ]
        if _SOFTWARE_ONLY.get(operation) == stack:
            faults.append(Fault(operations.place(row, "stack"), f"{operation} is of inference, not of {stack}"))
    if faults:
        raise InputError(faults)


def _plans(operations: Table, catalog: Catalog, stack: str) -> Table:
    """Plans of a dense model on the accelerators and the network of operations."""
    every = catalog_arrays(catalog, np.zeros(0, dtype=np.int64))
    model = int(np.flatnonzero((every.architecture == 0) & ~every.is_unmodelled)[0])
    count, asked = len(operations), operations.number("num_accelerators")
    together = np.nan_to_num(operations.number("group"), nan=1.0) * operations.filled("stride")
    columns: dict[str, np.ndarray] = {
        "model": np.full(count, catalog.tables["models"].text("model")[model], dtype=object),
        "accelerator": operations.text("accelerator"),
        "network": operations.text("network"),
        "num_accelerators": np.where(np.isnan(asked), together, asked),
        "software": operations.text("software"),
        "precision": operations.filled("precision"),
    }
    if stack == "inference":
        columns |= {"prompt_length": np.full(count, 1.0), "output_length": np.full(count, 2.0)}
        columns["kv_precision"] = operations.text("kv_precision")
    plans = Table(stack, columns, operations.place)
    choices = plans.schema.by_name["precision"].choices
    wrong = [row for row, word in enumerate(columns["precision"].tolist()) if word not in choices]
    if wrong:
        problem = f'{stack} has no precision "{columns["precision"][wrong[0]]}", only {", ".join(choices)}'
        raise InputError(Fault(operations.place(wrong[0], "precision"), problem))
    return plans


class _Stack(NamedTuple):
    """Hardware, kernel constants and bytes per element of a software stack."""

    place: _Place
    kernels: Mapping[str, Mapping[str, Array]]
    products: tuple[Array, Array]  # bytes of inputs and outputs of a product [B]
    attention: Array  # bytes of an input of attention [B]
    cache: Array  # bytes of an element of the KV cache [B]
    vector_flop: Array  # work of the vector units per byte [FLOP/B]
    slowdown: Array  # factor of training on the time of each kernel [-]
    serving: Deployment | None  # None in training
    remarks: list[Remark]
    extrapolated: Mapping[str, np.ndarray]


def _stack(operations: Table, catalog: Catalog, stack: str) -> _Stack:
    plans = _plans(operations, catalog, stack)
    named = named_rows(plans, catalog)
    plans = with_software_defaults(plans, catalog, named.models)
    architecture = architecture_of(int(architecture_codes(named, catalog)[0]))
    if stack == "inference":
        setting = serving_setting(plans, plan_columns(plans, InferencePlan), catalog, named, architecture)
        serving, sizes = setting.deployment, setting.deployment.plan
        place = _Place(serving.device, serving.network)
        wide, keys = sizes.activation_size[:, None], join(plans, catalog, named).keys
        missing = [family for family in OPERATIONS if family not in serving.kernels]  # collectives of experts alone
        more = {family: catalog.calibration.constants_of(family, keys) for family in missing}
        kernels = {**serving.kernels, **{family: constants for family, (constants, _) in more.items()}}
        far = dict(setting.extrapolated) | {family: rows for family, (_, rows) in more.items()}
        return _Stack(
            place,
            kernels,
            (wide, wide),
            sizes.attention_size[:, None],
            sizes.kv_size[:, None],
            VECTOR_FLOP / wide,
            np.ones_like(wide),
            serving,
            setting.remarks,
            far,
        )
    own, joined, extrapolated = training_setting(plans, catalog, named, architecture)
    narrow, wide = own.plan.product_size[:, None], own.plan.element_size[:, None]
    return _Stack(
        _Place(own.device, own.network),
        own.constants,
        (narrow, wide),
        wide,
        wide,
        np.zeros_like(wide),
        own.constants["training_software"]["kernel_slowdown"],
        None,
        joined.rules,
        dict(extrapolated),
    )


class _Work(NamedTuple):
    """One operation: FLOP, bytes, and its time on some accelerator and network."""

    flop: Array
    traffic: Array
    timed: Timed


def _collective(operation: str, stack: _Stack, column: Mapping[str, Array]) -> _Work:
    size, group, stride = column["size"], column["group"], column["stride"]
    name = operation.replace("-", "_")

    def timed(place: _Place) -> Array:
        if operation == "all-reduce" and stack.serving is not None:
            return engine_all_reduce_time(size, group, stride, place.network, stack.kernels)
        return collective_time(name, size, group, stride, place.network, stack.kernels[name])

    return _Work(np.full_like(size, np.nan), size, timed)


def _product(operation: str, stack: _Stack, column: Mapping[str, Array]) -> _Work:
    m, n, k, batch = (column[name] for name in ("m", "n", "k", "batch"))
    gemms, serving = Gemms((operation,), m, n, k, batch), stack.serving
    if serving is None:
        constants = stack.kernels["gemm"]
        slowdown = stack.slowdown * constants["training_slowdown"]

        def timed(place: _Place) -> Array:
            return slowdown * gemm_time(place.device, constants, m, n, k, batch, *stack.products)

        return _Work(gemms.flop, product_traffic(m, n, k, batch, *stack.products), timed)
    one = np.ones(1, dtype=bool)
    products = ServingGemms(gemms, np.ones_like(m), one, ~one, ~one)

    def served(place: _Place) -> Array:
        return product_times(replace(serving, device=place.device), products)[1]

    return _Work(gemms.flop, product_times(serving, products)[0], served)


def _attention(operation: str, stack: _Stack, column: Mapping[str, Array]) -> _Work:
    batch, heads, width, queries = (column[n] for n in ("batch", "num_attention_heads", "head_size", "query_length"))
    groups = np.where(np.isnan(column["num_query_groups"]), heads, column["num_query_groups"])
    keys = np.where(np.isnan(column["key_length"]), queries, column["key_length"])
    if operation == "prefill-attention":
        shape, causal = (batch, heads, groups, queries, keys, width), column["causal"]

        def timed(place: _Place) -> Array:
            rate, given = place.device.rate(CORE), (*shape, causal, stack.attention)
            return stack.slowdown * attention_time(place.device, stack.kernels["attention"], *given, rate=rate)

        flop = core_attention_flop(batch, heads, width, visible_pairs(queries, keys, causal))
        return _Work(flop, flash_traffic(*shape, stack.attention), timed)

    constants = stack.kernels["attention_decode"]

    def decoded(place: _Place) -> Array:
        cached = batch, heads, groups, keys, width, stack.cache
        return engine_decode_attention_time(place.device, constants, *cached, np.nan, place.device.rate(CORE))

    flop = core_attention_flop(batch, tiled_heads(heads, groups, constants["tile_rows"]), width, keys)
    return _Work(flop, kv_cache_traffic(batch, groups, keys, width, stack.cache), decoded)


def _memory(operation: str, stack: _Stack, column: Mapping[str, Array]) -> _Work:
    size = column["size"]

    def timed(place: _Place) -> Array:
        return stack.slowdown * vector_time(place.device, stack.kernels["vector"], size, size * stack.vector_flop)

    return _Work(np.full_like(size, np.nan), size, timed)


_WORK: Mapping[str, Callable[[str, _Stack, Mapping[str, Array]], _Work]] = {
    **dict.fromkeys(COLLECTIVES, _collective),
    "gemm": _product,
    "prefill-attention": _attention,
    "decode-attention": _attention,
    "memory": _memory,
}


def _evaluated(operations: Table, catalog: Catalog, stack: str, operation: str) -> dict[str, np.ndarray]:
    software = _stack(operations, catalog, stack)
    if operation in _LISTED and ("links" in operations or "beside" in operations):
        place = software.place
        network = listed_network(operations, operation.replace("-", "_"), place.network)
        software = software._replace(place=place._replace(network=network))
    column = {name: operations.filled(name)[:, None] for name in operations.schema.by_name if name in _NUMBERS}
    flop, traffic, timed = _WORK[operation](operation, software, column)
    time, size = timed(software.place), column["size"]
    illegal, reason = remarks_of_rows(software.remarks, len(operations))
    family = _FAMILIES.get(operation, operation.replace("-", "_"))
    shared = operation in COLLECTIVES
    results = {
        "time": time,
        "flop": flop,
        "flop_rate": flop / time,
        "traffic": traffic,
        "memory_rate": np.nan * time if shared else traffic / time,
        "algorithm_bandwidth": size / time if shared else np.nan * time,
        "bus_bandwidth": size / time * COLLECTIVES[operation].bus_factor(column["group"]) if shared else np.nan * time,
    }
    shown: dict[str, np.ndarray] = {
        name: np.where(illegal | ~np.isfinite(values[:, 0]), np.nan, values[:, 0]) for name, values in results.items()
    }
    device = software.place.device
    rate = device.rate(CORE if operation.endswith("attention") else PLANNED)
    ideal, code = ideal_times(np.nan_to_num(flop), traffic, rate.peak_flop_rate, device.memory_bandwidth)
    no_ideal = illegal | shared
    shown["ideal_time"] = np.where(no_ideal, np.nan, ideal[:, 0])
    (bound,) = limiting_resources(lambda faster: [timed(software.place.faster(faster))[:, 0]], network=True)
    words = np.array(RESOURCES, dtype=object)
    shown["bound"] = np.where(illegal, "", words[bound])
    shown["ideal_bound"] = np.where(no_ideal, "", words[np.nan_to_num(code[:, 0]).astype(np.int64)])
    far = software.extrapolated.get(family, np.zeros(len(time), dtype=bool))
    measured = np.where(far | (not catalog.calibration.is_measured(family)), "extrapolated", "measured")
    return {**shown, "calibration": np.where(illegal, "", measured).astype(object), "reason": reason}
