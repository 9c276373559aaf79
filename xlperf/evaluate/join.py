"""Names joined to columns: the rows of the catalog that plans refer to, as the arrays that equations take."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.arrays import Array
from xlperf.catalog.calibration import Keys, calibration_keys
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.cost.tco import accelerator_cost_rate
from xlperf.errors import Fault, InputError
from xlperf.hardware.device import Device
from xlperf.network.tiers import Network
from xlperf.parallel.plan import Rule
from xlperf.units import YEAR, factor
from xlperf.workload.model import Architecture, Model

L2_BYTES_PER_CLOCK = 64.0
SHARED_BYTES_PER_CLOCK = 128.0
_SWITCHED = ("switch", "fat-tree")


class Precision(NamedTuple):
    """What a precision means: calibration key, column of the peak rate, bytes in products, bytes in between."""

    key: str
    peak: str
    product_size: float
    element_size: float


_FP4_SIZE = 0.5 + 1.0 / 16.0  # one scale byte per block of 16
PRECISIONS = {
    "fp32": Precision("fp32", "fp32", 4.0, 4.0),
    "tf32": Precision("tf32", "tf32", 4.0, 4.0),
    "fp16": Precision("bf16", "bf16", 2.0, 2.0),
    "bf16": Precision("bf16", "bf16", 2.0, 2.0),
    "fp8": Precision("fp8", "fp8", 1.0, 2.0),
    "int8": Precision("int8", "int8", 1.0, 2.0),
    "fp4": Precision("fp4", "fp4", _FP4_SIZE, 2.0),
    "int4": Precision("bf16", "bf16", _FP4_SIZE, 2.0),
}
_PRECISION_NAMES = tuple(PRECISIONS)
_PATTERN = re.compile(r"(?P<near>\d+) (?P<kind>sliding|chunked) (?P<window>\d+) : (?P<far>\d+) full")
_WIDE = {"fp32": "fp32", "tf32": "tf32"}


@dataclass(frozen=True)
class _Arrays:
    """Columns of a whole catalog, made once and then taken from by row."""

    model: dict[str, Array]
    unmodelled: np.ndarray
    architecture: np.ndarray
    max_sequence_length: Array
    generation: np.ndarray
    peaks: Array
    device: dict[str, Array]
    thermal_design_power: Array
    reserved_memory: Array
    cost_rate: Array
    server_power: Array
    power_usage_effectiveness: Array


_cache: WeakKeyDictionary[Catalog, _Arrays] = WeakKeyDictionary()


def _model_columns(models: Table) -> tuple[dict[str, Array], np.ndarray]:
    heads = models.number("num_attention_heads")
    hidden = models.number("hidden_size")
    position = models.filled("position_embedding")
    bias = models.filled("linear_bias")
    head_size = models.number("head_size")
    groups = models.number("num_query_groups")
    columns = {
        "num_layers": models.number("num_layers"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": np.where(np.isnan(groups), heads, groups),
        "head_size": np.where(np.isnan(head_size), hidden / heads, head_size),
        "ffn_hidden_size": models.number("ffn_hidden_size"),
        "vocab_size": models.number("vocab_size"),
        "gated_mlp": models.filled("gated_mlp"),
        "tied_embeddings": models.filled("tied_embeddings"),
        "learned_positions": np.where(position == "learned", models.number("max_sequence_length", 0.0), 0.0),
        "rotary": (position == "rope").astype(float),
        "layer_norm": (models.filled("normalization") == "layernorm").astype(float),
        "bias_qkv": (bias != "none").astype(float),
        "bias_all": (bias == "all").astype(float),
        "query_key_norm": models.filled("query_key_norm"),
        "dropout": models.filled("dropout"),
    }
    latent = models.filled("attention_type") == "MLA"
    experts = models.number("num_experts", 0.0)
    local, chunked, windows, reasons = _layer_kinds(models)
    nope, rope = models.number("qk_nope_head_size"), models.number("qk_rope_head_size", 0.0)
    qk_head = np.where(latent, np.where(np.isnan(nope), columns["head_size"], nope + rope), columns["head_size"])
    step = models.number("moe_layer_step", 1.0)
    leading = models.number("first_dense_layers", 0.0)
    layers = columns["num_layers"]
    expert_ffn = np.where(experts > 0, models.number("moe_ffn_hidden_size"), 0.0)
    columns |= {
        "latent_attention": latent.astype(float),
        "q_lora_rank": np.where(latent, models.number("q_lora_rank", 0.0), 0.0),
        "kv_lora_rank": np.where(latent, models.number("kv_lora_rank", 0.0), 0.0),
        "qk_rope_head_size": np.where(latent, rope, 0.0),
        "qk_head_size": qk_head,
        "v_head_size": np.where(latent, models.number("v_head_size"), columns["head_size"]),
        "num_local_layers": local,
        "window": windows,
        "chunked": chunked,
        "num_moe_layers": np.where(experts > 0, np.floor((layers - leading) / step), 0.0),
        "moe_layer_step": step,
        "num_experts": experts,
        "top_k": np.where(experts > 0, models.number("top_k"), 0.0),
        "expert_ffn_hidden_size": expert_ffn,
        "shared_ffn_hidden_size": np.where(experts > 0, models.number("num_shared_experts", 0.0) * expert_ffn, 0.0),
    }
    return columns, reasons


def _layer_kinds(models: Table) -> tuple[Array, Array, Array, np.ndarray]:
    """Local layers, whether they are chunks, their window, and why a row cannot be modelled ("" where it can)."""
    attention, pattern = models.filled("attention_type"), models.text("attention_pattern")
    window, layers = models.number("sliding_window"), models.number("num_layers")
    local, chunked = np.zeros(len(models)), np.zeros(len(models))
    windows = np.full(len(models), np.inf)
    reasons = np.full(len(models), "", dtype=object)
    other = np.isin(attention.astype(str), ("linear", "sparse", "hybrid"))
    for row in np.flatnonzero(other | (window > 0) | (pattern != "")).tolist():
        found = _PATTERN.fullmatch(str(pattern[row]).strip())
        if other[row]:
            reasons[row] = f"has {attention[row]} attention"
        elif found is not None:
            near, far = float(found["near"]), float(found["far"])
            local[row] = np.round(layers[row] * near / (near + far))
            windows[row] = float(found["window"])
            chunked[row] = float(found["kind"] == "chunked")
        elif pattern[row]:
            reasons[row] = f'has layers of a kind that is not known ("{pattern[row]}")'
        elif window[row] > 0:
            local[row], windows[row] = layers[row], window[row]
    return local, chunked, windows, reasons


def _catalog_arrays(catalog: Catalog) -> _Arrays:
    found = _cache.get(catalog)
    if found is not None:
        return found
    models, accelerators, prices = (catalog.tables[kind] for kind in ("models", "accelerators", "prices"))
    model, unmodelled = _model_columns(models)
    units = accelerators.number("num_multiprocessors")
    clocked = units * accelerators.number("clock_rate")

    def or_else(column: str, fallback: Array) -> Array:
        values = accelerators.number(column)
        return np.where(np.isnan(values), fallback, values)

    infinite = np.full(len(accelerators), np.inf)
    power = accelerators.number("thermal_design_power")
    row = catalog.price_rows
    priced = row >= 0

    def price(column: str) -> Array:
        values = prices.filled(column) if len(prices) else np.zeros(0)
        if not len(prices):
            default = table_schema("prices").by_name[column].default
            return np.full(len(row), float(default or "nan"))
        default = table_schema("prices").by_name[column].default
        unit = table_schema("prices").by_name[column].unit or "-"
        return np.where(priced, values[np.maximum(row, 0)], float(default or "nan") * factor(unit))

    server_power = np.where(np.isnan(price("server_power")), power, price("server_power"))
    effectiveness = price("power_usage_effectiveness")
    cost_rate = accelerator_cost_rate(
        price("rental_price"),
        price("capex"),
        price("life"),
        price("utilization"),
        server_power,
        effectiveness,
        price("energy_price"),
        price("opex_share"),
        YEAR,
    )
    arrays = _Arrays(
        model=model,
        unmodelled=unmodelled,
        architecture=np.asarray(
            (model["latent_attention"] > 0) * 1 + (model["num_experts"] > 0) * 2 + (model["num_local_layers"] > 0) * 4
        ),
        max_sequence_length=models.number("max_sequence_length"),
        generation=accelerators.text("generation"),
        peaks=np.stack([accelerators.number(f"peak_flop_rate_{PRECISIONS[name].peak}") for name in PRECISIONS], -1),
        device={
            "vector_flop_rate": or_else("peak_flop_rate_fp32", accelerators.number("peak_flop_rate_bf16") / 16.0),
            "memory_bandwidth": accelerators.number("memory_bandwidth"),
            "memory_capacity": accelerators.number("memory_capacity"),
            "l2_capacity": accelerators.number("l2_capacity", 0.0),
            "l2_bandwidth": or_else(
                "l2_bandwidth", np.where(np.isnan(clocked), infinite, L2_BYTES_PER_CLOCK * clocked)
            ),
            "shared_memory_capacity": or_else("shared_memory_capacity", infinite),
            "shared_memory_bandwidth": or_else(
                "shared_memory_bandwidth", np.where(np.isnan(clocked), infinite, SHARED_BYTES_PER_CLOCK * clocked)
            ),
            "num_multiprocessors": units,
            "thermal_design_power": power,
        },
        thermal_design_power=power,
        reserved_memory=accelerators.filled("reserved_memory"),
        cost_rate=cost_rate,
        server_power=server_power,
        power_usage_effectiveness=effectiveness,
    )
    _cache[catalog] = arrays
    return arrays


@dataclass(frozen=True)
class Joined:
    """Plans with what they refer to; arrays of shape (rows,) but for the network's and the device's."""

    model: Model
    device: Device
    wide_device: Device
    network: Network
    keys: Keys
    wide_keys: Keys
    product_size: Array
    element_size: Array
    reserved_memory: Array
    max_sequence_length: Array
    cost_rate: Array
    server_power: Array
    power_usage_effectiveness: Array
    rules: list[Rule]
    peaks: Array
    generation: list[str]
    software: list[str]

    def keys_for(self, precision: np.ndarray) -> Keys:
        """Calibration keys of the plans at another precision.

        Parameters
        ----------
        precision : np.ndarray
            Names, (rows,).

        Returns
        -------
        Keys
            For :meth:`xlperf.catalog.calibration.Calibration.constants_of`.
        """
        names = [PRECISIONS[name].key for name in precision.tolist()]
        return calibration_keys(self.generation, names, self.software)

    def peak_for(self, precision: np.ndarray) -> Array:
        """Dense peak of the plans' accelerators at another precision.

        Parameters
        ----------
        precision : np.ndarray
            Names, (rows,).

        Returns
        -------
        Array
            NaN where the accelerator states none, (rows,). [FLOP/s]
        """
        codes = [_PRECISION_NAMES.index(name) for name in precision.tolist()]
        return np.asarray(self.peaks[np.arange(len(codes)), codes])


def refuse_auto(plans: Table) -> None:
    """Refuse values ``auto``, which a search has to expand first.

    Parameters
    ----------
    plans : Table
        Plans as read.

    Raises
    ------
    InputError
        Naming every cell that says ``auto``.
    """
    faults = [
        Fault(
            plans.place(int(row), column), f"{column.replace('_', ' ')} is auto: write a value, nothing expands it yet"
        )
        for column, mask in plans.auto.items()
        for row in np.flatnonzero(mask)
    ]
    if faults:
        raise InputError(faults)


class Named(NamedTuple):
    """Rows of the catalog that plans name, (rows,): models, accelerators, networks (-1 where blank)."""

    models: np.ndarray
    accelerators: np.ndarray
    networks: np.ndarray

    def take(self, rows: np.ndarray) -> Named:
        """Some of the plans."""
        return Named(*(values[rows] for values in self))


def named_rows(plans: Table, catalog: Catalog) -> Named:
    """Look the names of plans up.

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Named
        Rows, (rows,).

    Raises
    ------
    InputError
        Naming every cell whose name is not in the catalog.
    """
    faults: list[Fault] = []

    def found(look_up: Callable[..., np.ndarray], *arguments: object) -> np.ndarray:
        try:
            return look_up(*arguments)
        except InputError as error:
            faults.extend(error.faults)
            return np.zeros(len(plans), dtype=np.int64)

    named = Named(
        found(catalog.rows, "models", plans.text("model"), plans, "model"),
        found(catalog.rows, "accelerators", plans.text("accelerator"), plans, "accelerator"),
        found(catalog.network_index, plans.text("network"), plans, "network"),
    )
    if faults:
        raise InputError(faults)
    return named


def architecture_codes(named: Named, catalog: Catalog) -> np.ndarray:
    """Structure of the models of plans as codes: rows of one code are evaluated together.

    Parameters
    ----------
    named : Named
        Rows of the catalog.
    catalog : Catalog
        What they refer to.

    Returns
    -------
    array of int64
        For :func:`architecture_of`.
    """
    return np.asarray(_catalog_arrays(catalog).architecture[named.models])


def architecture_of(code: int) -> Architecture:
    """The structure that a code stands for.

    Parameters
    ----------
    code : int
        One of :func:`architecture_codes`.

    Returns
    -------
    Architecture
        Which operators the layers have at all.
    """
    return Architecture(*(bool(code >> bit & 1) for bit in range(len(Architecture._fields))))


def join(plans: Table, catalog: Catalog, named: Named | None = None) -> Joined:
    """Join plans to the catalog.

    Parameters
    ----------
    plans : Table
        Training or inference plans.
    catalog : Catalog
        What they refer to.
    named : Named, optional
        As :func:`named_rows` has it, where that is known already.

    Returns
    -------
    Joined
        Arrays for the equations, and the rules that only the catalog can judge.
    """
    arrays = _catalog_arrays(catalog)
    num_rows = len(plans)
    model_rows, rows, asked = named or named_rows(plans, catalog)
    names = plans.filled("precision")
    codes = np.array([_PRECISION_NAMES.index(name) for name in names.tolist()], dtype=np.int64)
    wide_names = [_WIDE.get(name, "bf16") for name in names.tolist()]
    wide_codes = np.array([_PRECISION_NAMES.index(name) for name in wide_names], dtype=np.int64)
    table = list(PRECISIONS.values())
    product_size = np.array([precision.product_size for precision in table])[codes]
    element_size = np.array([precision.element_size for precision in table])[codes]
    peak = arrays.peaks[rows, codes]
    wide_peak = arrays.peaks[rows, wide_codes]

    common = {name: values[rows][:, None] for name, values in arrays.device.items()}
    device = Device(peak_flop_rate=peak[:, None], **common)
    wide_device = Device(peak_flop_rate=wide_peak[:, None], **common)

    default = catalog.default_networks[rows]
    network_rows = np.where(asked >= 0, asked, default)
    accelerators = plans.number("num_accelerators")
    network, network_rules = _network(catalog, network_rows, accelerators)

    software = plans.filled("software").tolist()
    generation = arrays.generation[rows].tolist()
    keys = calibration_keys(generation, [PRECISIONS[name].key for name in names.tolist()], software)
    wide_keys = calibration_keys(generation, [PRECISIONS[name].key for name in wide_names], software)
    unmodelled = arrays.unmodelled[model_rows]
    model_names = plans.text("model")
    rules = [
        Rule(unmodelled != "", "model {} {}, which is not modelled yet", (model_names, unmodelled)),
        Rule(
            np.isnan(peak),
            "accelerator {} states no peak rate for precision {}",
            (plans.text("accelerator"), names),
        ),
        *network_rules,
    ]
    return Joined(
        model=Model(**{field.name: arrays.model[field.name][model_rows] for field in fields(Model)}),
        device=device,
        wide_device=wide_device,
        network=network,
        keys=keys,
        wide_keys=wide_keys,
        product_size=product_size,
        element_size=element_size,
        reserved_memory=np.broadcast_to(arrays.reserved_memory[rows], num_rows),
        max_sequence_length=arrays.max_sequence_length[model_rows],
        cost_rate=arrays.cost_rate[rows],
        server_power=arrays.server_power[rows],
        power_usage_effectiveness=arrays.power_usage_effectiveness[rows],
        rules=rules,
        peaks=arrays.peaks[rows],
        generation=generation,
        software=software,
    )


def _network(catalog: Catalog, rows: np.ndarray, accelerators: Array) -> tuple[Network, list[Rule]]:
    single = accelerators <= 1
    if not catalog.networks:
        one = np.full((len(rows), 1), np.nan)
        network = Network(one, one, one, one, one, np.zeros(one.shape, dtype=np.int64))
        return network, [Rule(~single, "the catalog has no network for {} accelerators", (accelerators,))]
    tiers = catalog.network_arrays
    index = np.maximum(rows, 0)
    choices = table_schema("networks").by_name["topology"].choices
    known = np.isin(tiers["topology"], [choices.index(name) for name in _SWITCHED])
    switched = np.asarray(known.all(axis=-1))
    names = np.array(catalog.networks, dtype=object)
    reach = tiers["size"].max(axis=-1)
    network = Network(
        size=tiers["size"][index],
        link_bandwidth=(tiers["link_bandwidth"] / tiers["oversubscription"])[index],
        latency=tiers["latency"][index],
        links_per_peer=tiers["links_per_peer"][index],
        in_network_reduction=tiers["in_network_reduction"][index],
        topology=tiers["topology"][index],
    )
    rules = [
        Rule(
            (rows < 0) & ~single,
            "the accelerator has no default network: name one for {} accelerators",
            (accelerators,),
        ),
        Rule(
            (rows >= 0) & ~single & ~switched[index],
            "network {} has a tier that is neither switch nor fat-tree, which is not modelled yet",
            (names[index],),
        ),
        Rule(
            (rows >= 0) & (accelerators > reach[index]),
            "network {} connects {} accelerators at most, the plan has {}",
            (names[index], reach[index], accelerators),
        ),
    ]
    return network, rules


def catalog_models(catalog: Catalog) -> tuple[Model, np.ndarray]:
    """All models of a catalog as the equations need them.

    Parameters
    ----------
    catalog : Catalog
        Whose sheet ``models`` is meant.

    Returns
    -------
    tuple of Model and np.ndarray
        One entry per row of the sheet, and what of each is not modelled as a dense decoder ("" where all is).
    """
    arrays = _catalog_arrays(catalog)
    return Model(**arrays.model), arrays.unmodelled
