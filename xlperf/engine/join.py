"""Sheets as records for the equations: plans with their defaults, the catalog rows that they name, and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import (
    Array,
    finite,
    in_sequence,
    known_or,
    mapped,
    repeated,
    rows_of,
    side_by_side,
    some,
    taken,
)
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.calibration import ANY, COMPILED, EAGER, FLASHATTENTION_2, Calibration, Found
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Keys, Table, Words, coded_words, combined_keys, default_value
from xlperf.engine.catalog_arrays import (
    DEVICE_COLUMNS,
    HOST_COLUMNS,
    catalog_arrays,
    network_of,
    own_links,
    switched_networks,
)
from xlperf.engine.prices import priced
from xlperf.equations.cost.tco import Terms, daily_mean
from xlperf.equations.hardware.power import (
    PRODUCT_ENERGY,
    PowerLimits,
    capped_clock_share,
    energy_at_clock,
    narrow_energy,
    power_at_clock,
)
from xlperf.equations.hardware.roofline import STATIC_SHARE, Device
from xlperf.equations.model.model import Model
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import (
    BLOCK_SCALED,
    CASTS,
    ELEMENT_SIZES,
    FP4,
    INPUT_SIZES,
    PRECISION_CODES,
    PRECISION_KEYS,
    PRECISION_STORED,
    WIDE_CODES,
    PlanColumns,
    Remark,
)
from xlperf.interop.software import calibrated_release

Record = TypeVar("Record", bound=PlanColumns)
# Calibration name of each library in the column attention
_LIBRARIES = {"flash-2": FLASHATTENTION_2, "flash-3": ANY}


@cache
def choice_codes(kind: str, column: str) -> dict[str, float]:
    """Position of each word among the choices of a column; a blank has the default's position, NaN without a default.

    >>> choice_codes("training", "optimizer")
    {'adam': 0.0, 'sgd': 1.0, '': 0.0}
    """
    declared = table_schema(kind).by_name[column]
    codes = {word: float(position) for position, word in enumerate(declared.choices)}
    return {**codes, "": codes.get(declared.default, float("nan"))}


class _Declared(NamedTuple):
    """A plan column of the schema."""

    name: str
    default: Any  # as equations use it
    dtype: type
    codes: dict[str, float] | None  # of a choice
    names_row: bool  # whether it refers to a catalog row


@cache
def _declared(kind: str) -> tuple[_Declared, ...]:
    columns = []
    for column in table_schema(kind).columns:
        codes = choice_codes(kind, column.name) if column.kind == "choice" else None
        default = default_value(kind, column.name) if codes is None else codes[""]
        default = np.nan if default != default else default  # the same NaN object, usable as a dict key
        dtype = object if isinstance(default, str) else float
        columns.append(_Declared(column.name, default, dtype, codes, column.kind == "reference"))
    return tuple(columns)


def plan_columns(plans: Table, record: type[Record]) -> Record:
    """A table of plans as a ``record``: numbers and flags with the schema's defaults, choices as codes, texts, (rows,).
    Blanks without a default are NaN or ""; :meth:`PlanColumns.words` gives the original words.
    """
    columns: dict[str, np.ndarray] = {}
    words: dict[str, np.ndarray] = {}
    absent: dict[float | str, np.ndarray] = {}
    stated = plans.columns
    for name, default, dtype, codes, names_row in _declared(plans.kind):
        if name not in stated:
            if default not in absent:  # columns with equal defaults share an array, which equations never change
                absent[default] = np.broadcast_to(np.array(default, dtype=dtype), len(plans))
            if not names_row:
                columns[name] = absent[default]
            continue
        if codes is not None:
            words[name] = stated[name]
            columns[name] = mapped(codes.__getitem__, stated[name], np.float64)
        elif dtype is float:
            columns[name] = plans.number(name, default)
        else:
            words[name] = stated[name]
            if not names_row:
                columns[name] = plans.text(name, default)
    return record(columns, words, stated.keys())


@dataclass(frozen=True, eq=False)
class Joined:
    """Plans with the catalog rows that they name, (rows,) unless stated otherwise."""

    model: Model
    device: Device  # (rows, 1); attention at the wide precision
    network: Network  # (rows, tiers)
    keys: Keys  # calibration keys at the plan's precision
    wide_keys: Keys  # at the wide precision
    fused_keys: Keys  # of the software whose kernel fusion applies
    attention_keys: Keys  # of the attention library
    product_size: Array  # bytes of a GEMM input [B]
    element_size: Array  # bytes of a stored element [B]
    casts: Array  # element conversions of the precision
    reserved_memory: Array  # [B]
    max_sequence_length: Array  # of the model [token]
    accelerators: np.ndarray  # rows of the sheet accelerators
    terms: Terms  # prices and power
    rented: np.ndarray  # whether the price is a rent
    power: PowerLimits
    rules: list[Remark]  # rules that need the catalog
    peaks: Array  # dense peak rates by precision, (rows, precisions) [FLOP/s]
    generation: Words
    software: Words

    def keys_for(self, codes: np.ndarray) -> Keys:
        """Calibration keys at another precision, by positions in PRECISIONS, (rows,)."""
        return combined_keys(self.generation, Words(codes, PRECISION_KEYS), self.software)

    def keys_named(self, codes: np.ndarray) -> Keys:
        """Calibration keys by the precision's own name, with INT4 weights apart from 16-bit weights."""
        return combined_keys(self.generation, Words(codes, PRECISION_STORED), self.software)

    def peak_for(self, codes: np.ndarray) -> Array:
        """Dense peak rate at another precision, NaN if not stated, (rows,). [FLOP/s]"""
        return np.asarray(self.peaks[np.arange(len(codes)), codes])


_NAMES = [field.name for field in fields(Model)]
_FIRST_OPTIONAL = _NAMES.index("num_linear_layers")
_OPTIONAL_NAMES = ("moe_latent_size", "uneven", "local_heads", "per_layer_size", "latent_gate")
_OPTIONAL = [
    index
    for index, name in enumerate(_NAMES[_FIRST_OPTIONAL:], _FIRST_OPTIONAL)
    if name in _OPTIONAL_NAMES or name.endswith("_layers")
]
_ABSENT = {name: getattr(Model(), name) for name in _NAMES[_FIRST_OPTIONAL:]}
# Values of the optional fields of hybrid and sparse models elsewhere; equations never change them


class Named(NamedTuple):
    """Catalog rows that plans name, (rows,): models, accelerators, networks (-1 for a blank)."""

    models: np.ndarray
    accelerators: np.ndarray
    networks: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Named:
        """Select rows."""
        return Named(*(taken(values, rows) for values in self))


def named_rows(plans: Table, catalog: Catalog) -> Named:
    """Catalog rows that plans name; InputError lists every cell with an unknown name."""
    faults: list[Fault] = []

    def rows(look_up: Callable[..., np.ndarray], *arguments: object) -> np.ndarray:
        try:
            return look_up(*arguments)
        except InputError as error:
            faults.extend(error.faults)
            return np.zeros(len(plans), dtype=np.int64)

    named = Named(
        rows(catalog.rows, "models", plans.text("model"), plans, "model"),
        rows(catalog.rows, "accelerators", plans.text("accelerator"), plans, "accelerator"),
        rows(catalog.network_index, plans.text("network"), plans, "network"),
    )
    if faults:
        raise InputError(faults)
    return named


# Pools besides the decode pool that may have an accelerator and a network of their own
POOLS = ("prefill", "expert")


def pool_rows(
    plans: Table, catalog: Catalog, rows: np.ndarray, column: str = "accelerator", pool: str = "prefill"
) -> np.ndarray:
    """Accelerator or network rows of the prefill or expert pool, by default ``rows``; InputError if unknown."""
    column_of_pool = f"{pool}_{column}"
    if column_of_pool not in plans:
        return rows
    names = plans.text(column_of_pool)
    if column == "accelerator":
        stated = catalog.rows("accelerators", names, plans, column_of_pool)
    else:
        stated = catalog.network_index(names, plans, column_of_pool)
    return np.where((stated >= 0) & (plans.filled("mode") == "disaggregated"), stated, rows)


def architecture_codes(named: Named, catalog: Catalog) -> np.ndarray:
    """Architecture codes of the plans' models for :func:`xlperf.engine.models.architecture_of`."""
    return np.asarray(catalog_arrays(catalog, named.accelerators).architecture[named.models])


def software_words(plans: Table) -> Words:
    """Training stack or engine of each plan at its release; compiled PyTorch FSDP is a stack of its own."""
    declared = plans.schema.by_name["software"].default
    if "software" not in plans and "software_release" not in plans:
        return Words(repeated(0, len(plans), np.int64), (declared,))
    names = plans.filled("software").tolist()
    releases = plans.text("software_release").tolist() if "software_release" in plans else [""] * len(names)
    names = [calibrated_release(plans.kind, name, release) for name, release in zip(names, releases, strict=True)]
    if "compiled" in plans:
        pairs = zip(names, plans.number("compiled").tolist(), strict=True)
        names = [_compiled(name, how) if name.strip().casefold() in (COMPILED, EAGER) else name for name, how in pairs]
    words = coded_words(names)
    return Words(words.codes, [word or declared for word in words.words])


def _fused_as(plans: Table, software: Words) -> Words:
    """Software whose kernel fusion applies; ``compiled`` overrides the plan's software."""
    if "compiled" not in plans or np.isnan(plans["compiled"]).all():
        return software
    pairs = zip(software.codes.tolist(), plans.number("compiled").tolist(), strict=True)
    return coded_words([_compiled(software.words[code], how) for code, how in pairs])


def _attention_of(plans: Table, software: Words) -> Words:
    """Library of each plan's attention kernels: the stated one, else the software's."""
    if "attention" not in plans:
        return software
    named = plans.filled("attention").tolist()
    if _LIBRARIES.keys().isdisjoint(named):
        return software
    pairs = zip(software.codes.tolist(), named, strict=True)
    return coded_words([_LIBRARIES.get(kernel, software.words[code]) for code, kernel in pairs])


def _keys(generation: Words, codes: np.ndarray, software: Words, library: Words) -> tuple[Keys, Keys]:
    """Calibration keys for the plan's software and for the library that supplies some kernels."""
    stored = Words(codes, PRECISION_KEYS)
    keys = combined_keys(generation, stored, software)
    return keys, keys if library is software else combined_keys(generation, stored, library)


def _compiled(name: str, how: float) -> str:
    return name if math.isnan(how) else COMPILED if how else EAGER


def _model_of(columns: Array) -> Model:
    """Models, with the optional last fields only if a hybrid or sparse model is among them."""
    more = any(some(columns[index]) for index in _OPTIONAL)
    if more:
        return Model.of_rows(columns)
    return Model(**dict(zip(_NAMES[:_FIRST_OPTIONAL], columns, strict=False)), **_ABSENT)


def _capped(
    asked: Array, power_limit: Array, peaks: Array, energy: Array, columns: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Clock of long GEMMs under lowered power limits and device columns at it; ``energy`` at 5 nm, nominal clock."""
    nominal = energy * columns["energy_ratio"]
    limits = asked[:, None], power_limit[:, None], columns["static_power"]
    share = capped_clock_share(nominal * peaks, *limits)
    share = np.where(np.isnan(limits[0]) | np.isnan(share), 1.0, share)
    # Calibrated fractions of the power limit remain valid under the lower one; leakage does not depend on the clock.
    static = finite(columns["static_power"])
    slowed = {
        "energy_ratio": energy_at_clock(columns["energy_ratio"], share),
        "thermal_design_power": static + power_at_clock(columns["thermal_design_power"] - static, share),
    }
    return share, {**columns, **slowed}


def _most_energy(catalog: Catalog, families: Sequence[tuple[str, Keys]], sizes: Array) -> Array:
    """Largest energy per operation of the kernels of a precision, which the clock must suit, (rows, 1). [J/FLOP]"""
    energy = narrow_energy(PRODUCT_ENERGY, sizes)[:, None]
    for family, keys in families:
        energy = np.maximum(energy, constants_of(catalog.calibration, family, keys)[0]["energy_per_flop"])
    return np.asarray(energy)


def _remark_if_any(rows: np.ndarray, sentence: str, values: Callable[[], tuple[np.ndarray, ...]]) -> list[Remark]:
    """A remark, or nothing if no row is selected."""
    return [Remark(rows, sentence, values())] if some(rows) else []


def join(plans: Table, catalog: Catalog, named: Named | None = None) -> Joined:
    """Catalog columns of each plan, and the rules that need the catalog; ``named`` saves looking the names up again."""
    model_rows, rows, asked = named or named_rows(plans, catalog)
    arrays = catalog_arrays(catalog, rows)
    codes = plans.codes("precision", PRECISION_CODES)
    wide_codes = WIDE_CODES[codes]
    peak, wide_peak = arrays.peaks[rows, codes], arrays.peaks[rows, wide_codes]

    # Device columns and calibration keys.
    common = dict(zip(DEVICE_COLUMNS, rows_of(arrays.device, rows, 1)[..., None], strict=True))
    for name in HOST_COLUMNS:
        if name in plans:
            common[name] = known_or(plans.number(name)[:, None], common[name])
    limit, peaks = arrays.thermal_design_power[rows], arrays.peaks[rows]
    limits = PowerLimits(limit, limit, np.ones_like(limit))
    software = software_words(plans)
    generation = arrays.generation.take(rows)
    keys, fused_keys = _keys(generation, codes, software, _fused_as(plans, software))
    wide_keys, attention_keys = _keys(generation, wide_codes, software, _attention_of(plans, software))
    narrow, wide, limit_rules = common, common, []
    if "power_limit" in plans:
        # Clock and peak rates of the plan's precision, of the wide one, and of all others.
        lowered = plans.number("power_limit")
        idle = known_or(known_or(common["idle_power"], common["static_power"])[:, 0], STATIC_SHARE * limit)
        words = "power limit {} W is no more than the {} W that {} draws with nothing to run: no clock keeps it"
        values = lowered, np.round(idle), plans.text("accelerator")
        limit_rules = _remark_if_any(lowered <= idle, words, lambda: values)
        energy = _most_energy(catalog, [("gemm", keys)], INPUT_SIZES[codes])
        share, narrow = _capped(lowered, limit, peak[:, None], energy, common)
        families = [("gemm", wide_keys), *((name, attention_keys) for name in ("attention", "attention_backward"))]
        energy = _most_energy(catalog, families, INPUT_SIZES[wide_codes])
        wide_share, wide = _capped(lowered, limit, wide_peak[:, None], energy, common)
        peaks = peaks * _capped(lowered, limit, peaks, narrow_energy(PRODUCT_ENERGY, INPUT_SIZES), common)[0]
        peak, wide_peak = share[:, 0] * peak, wide_share[:, 0] * wide_peak
        peaks[np.arange(len(peaks)), wide_codes], peaks[np.arange(len(peaks)), codes] = wide_peak, peak
        limits = PowerLimits(limit, np.fmin(lowered, limit), share[:, 0])
    for name in narrow.keys() if narrow is not wide else ():
        if narrow[name] is not wide[name]:
            narrow[name] = side_by_side(narrow[name][:, 0], wide[name][:, 0], wide[name][:, 0])
    device = Device(side_by_side(peak, wide_peak, wide_peak), **narrow)

    # Network, with the links that accelerators bring along.
    network_rows = np.where(asked >= 0, asked, catalog.default_networks[rows])
    network, network_rules = network_of(catalog, network_rows, plans.number("num_accelerators"))
    if arrays.linked:
        network = own_links(catalog, network, network_rows, arrays.link_bandwidth[rows])
    stated, device_rules = ~np.isnan(peak), []
    if arrays.unbuilt is not None:
        unbuilt = arrays.unbuilt[rows]
        stated = stated | (unbuilt != "")
        device_rules = [Remark(unbuilt != "", "{}", (unbuilt,))]

    rules = [
        *_remark_if_any(
            arrays.is_unmodelled[model_rows],
            "model {} {}, which is not modelled yet",
            lambda: (plans.text("model"), arrays.unmodelled[model_rows]),
        ),
        *(device_rules + limit_rules),
        *_remark_if_any(
            ~stated,
            "accelerator {} states no peak rate for precision {}",
            lambda: (plans.text("accelerator"), plans.filled("precision")),
        ),
        *_remark_if_any(
            BLOCK_SCALED[codes] & np.isnan(arrays.peaks[rows, FP4]),
            "the matrix units of accelerator {} do not scale blocks (it states no FP4 rate): use fp8-block, not {}",
            lambda: (plans.text("accelerator"), plans.filled("precision")),
        ),
        *network_rules,
    ]
    of_model, terms = arrays.max_sequence_length[model_rows], priced(plans, catalog, arrays, rows)
    machine = _model_of(rows_of(arrays.model, model_rows, 1)), device, network
    sizes = INPUT_SIZES[codes], ELEMENT_SIZES[codes], CASTS[:, codes], arrays.reserved_memory[rows], of_model
    all_keys = keys, wide_keys, fused_keys, attention_keys
    return Joined(*machine, *all_keys, *sizes, rows, *terms, limits, rules, peaks, generation, software)


def constants_of(calibration: Calibration, family: str, keys: Keys) -> Found:
    """Constants of a family, and the rows whose generation or software has none of its own."""
    if len(keys.codes) == 1:
        return calibration.single[(family, *keys.distinct[0])]
    return calibration.constants_of(family, keys)


def constants_by_family(
    calibration: Calibration, wanted: Iterable[tuple[Sequence[str], Keys]], beside: Collection[str] = ()
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    """Constants of families (rows, 1), and by family the rows whose generation or software has none of its own.
    ``wanted``: families and their keys; ``gemm_wide`` is ``gemm`` with other keys. Families in ``beside`` never mark a
    plan as extrapolated.
    """
    constants: dict[str, Mapping[str, Array]] = {}
    extrapolated: list[tuple[str, np.ndarray]] = []
    for names, keys in wanted:
        for name in names:
            family = name.removesuffix("_wide")
            constants[name], far = constants_of(calibration, family, keys)
            if name not in beside:
                extrapolated.append((family, far))
    return constants, extrapolated


BATCH = 8192  # plans per call of the equations, so that their arrays stay in the processor's cache

Results = dict[str, np.ndarray]


def groups_of(results: Collection[str] | None, groups: Mapping[str, str]) -> frozenset[str] | None:
    """Groups of equations that some results need; None for all. ``groups``: group of each result that needs only one.

    >>> groups_of(["step_time"], {"step_time": "times"})
    frozenset({'times'})
    """
    if results is None or not all(name in groups for name in results):
        return None
    return frozenset(groups[name] for name in results)


def in_batches(
    plans: Table,
    catalog: Catalog,
    named: Named,
    codes: np.ndarray,
    evaluate: Callable[[Table, Named, int], Results],
    slow: np.ndarray | None = None,
) -> Results:
    """Results of plans, evaluated in batches of equal ``codes``; large groups also separate switched networks.
    ``evaluate`` gets plans of one code, their catalog rows, and the code; ``slow`` plans form batches of their own.
    """
    distinct = sorted(set(codes.tolist()))  # np.unique would import numpy.ma, 30 ms in a fresh process
    if len(distinct) <= 1 and len(plans) <= BATCH:
        return evaluate(plans, named, distinct[0] if distinct else 0)
    groups = [(code, (codes == code).nonzero()[0]) for code in distinct]
    if len(plans) > BATCH:
        # glibc keeps freed blocks of up to twice the largest one: each batch reuses its pages, 10 to 20 % of its time.
        np.empty(4_000_000)
        kinds = switched_networks(catalog, named.accelerators, named.networks) * 2
        if slow is not None:
            kinds = kinds + slow
        groups = [
            (code, part)
            for code, rows in groups
            for part in ([rows[kinds[rows] == kind] for kind in range(4)] if len(rows) > BATCH else [rows])
        ]
    results: Results = {}
    for code, group in groups:
        for start in range(0, len(group), BATCH):
            rows = in_sequence(group[start : start + BATCH])
            for name, values in evaluate(plans.take(rows), named.take(rows), code).items():
                if name not in results:
                    results[name] = np.empty(len(plans), dtype=values.dtype)
                results[name][rows] = values
    return results


def where_legal(results: dict[str, Array], illegal: np.ndarray) -> dict[str, Array]:
    """Results with NaN for illegal plans, except for the accelerator's capacity."""
    if not some(illegal):
        return results
    return {
        name: values if name == "memory_capacity" else np.where(illegal, np.nan, values)
        for name, values in results.items()
    }


_HOURS = 24


def _by_hour(table: Table, column: str, rows: np.ndarray) -> Array:
    """Values by hour of the day from a column of words, (rows, 24); 1 for a blank."""
    hours, words = np.ones((len(rows), _HOURS)), table.text(column)
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
        hours[place] = values
    return hours


def run_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray, run_time: Array) -> Array:
    """Grid carbon during runs over the mean of a day, (rows,). [-]"""
    if "start_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    flat = (grid == grid[:, :1]).all(axis=1)
    return np.where(flat, 1.0, daily_mean(list(grid.T), plans.number("start_hour"), run_time))


def load_carbon_share(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> Array:
    """Grid carbon weighted by the hourly load over the mean of a day, (rows,). [-]"""
    if "load_by_hour" not in plans or "carbon_by_hour" not in catalog.tables["prices"]:
        return np.ones(len(plans))
    grid = _by_hour(catalog.tables["prices"], "carbon_by_hour", catalog.price_rows[accelerators])
    load = _by_hour(plans, "load_by_hour", np.arange(len(plans)))
    return np.asarray((grid * load).mean(axis=1) / (grid.mean(axis=1) * load.mean(axis=1)))
