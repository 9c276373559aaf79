"""Sheets as the records that equations take: plans with their defaults, the catalog rows they name, and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xlperf.base.arrays import Array, rows_of, some
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.calibration import ANY, COMPILED, EAGER, FLASHATTENTION_2, Calibration, Found
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import shown
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Keys, Table, Words, coded_words, combined_keys, default_value
from xlperf.engine.catalog_arrays import DEVICE_COLUMNS, catalog_arrays, network_of, own_links, switched_networks
from xlperf.engine.plan_prices import priced
from xlperf.equations.cost.tco import daily_mean
from xlperf.equations.cost.tokens import Terms
from xlperf.equations.hardware.power import (
    PRODUCT_ENERGY,
    PowerLimits,
    energy_at_clock,
    narrow_energy,
    power_at_clock,
    power_without_work,
    product_clock_share,
)
from xlperf.equations.hardware.roofline import Device
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
    PRECISION_NAMES,
    WIDE_CODES,
    PlanColumns,
    Remark,
)

Record = TypeVar("Record", bound=PlanColumns)
# Libraries that a plan names in the column attention, as the calibration sheet calls them
_LIBRARIES = {"flash-2": FLASHATTENTION_2, "flash-3": ANY}


@cache
def choice_codes(kind: str, column: str) -> dict[str, float]:
    """Position of each word among the choices of a column; for a blank that of the default, NaN without one.

    >>> choice_codes("training", "optimizer")
    {'adam': 0.0, 'sgd': 1.0, '': 0.0}
    """
    declared = table_schema(kind).by_name[column]
    codes = {word: float(position) for position, word in enumerate(declared.choices)}
    return {**codes, "": codes.get(declared.default, float("nan"))}


class _Declared(NamedTuple):
    """A column of plans: its default as equations take it, of what type, the codes of a choice, what names a row."""

    name: str
    default: Any
    dtype: type
    codes: dict[str, float] | None
    names_row: bool


@cache
def _declared(kind: str) -> tuple[_Declared, ...]:
    found = []
    for column in table_schema(kind).columns:
        codes = choice_codes(kind, column.name) if column.kind == "choice" else None
        default = default_value(kind, column.name) if codes is None else codes[""]
        default = np.nan if default != default else default  # one NaN, which a dict finds again
        dtype = object if isinstance(default, str) else float
        found.append(_Declared(column.name, default, dtype, codes, column.kind == "reference"))
    return tuple(found)


def plan_columns(plans: Table, record: type[Record]) -> Record:
    """A table of plans as a record: numbers and flags with the schema's defaults, choices as codes.

    ``record``: what to make: a subclass of :class:`PlanColumns`. Returns a column for each number, flag, choice and
    text of the schema, (rows,); NaN or "" where one is blank and has no default. What the sheet itself says in words is
    in :meth:`PlanColumns.words`.
    """
    columns: dict[str, np.ndarray] = {}
    words: dict[str, np.ndarray] = {}
    absent: dict[float | str, np.ndarray] = {}
    stated = plans.columns
    for name, default, dtype, codes, names_row in _declared(plans.kind):
        if name not in stated:
            if default not in absent:  # columns with one default share an array: equations never write into it
                absent[default] = np.broadcast_to(np.array(default, dtype=dtype), len(plans))
            if not names_row:
                columns[name] = absent[default]
            continue
        if codes is not None:
            words[name] = stated[name]
            columns[name] = np.array(list(map(codes.__getitem__, stated[name].tolist())), dtype=np.float64)
        elif dtype is float:
            columns[name] = plans.number(name, default)
        else:
            words[name] = stated[name]
            if not names_row:
                columns[name] = plans.text(name, default)
    return record(columns, words, stated.keys())


@dataclass(frozen=True, eq=False)
class Joined:
    """Plans with the catalog rows they name; arrays (rows,), those of network and device wider."""

    model: Model
    device: Device
    wide_device: Device
    network: Network
    keys: Keys
    wide_keys: Keys
    fused_keys: Keys
    attention_keys: Keys
    product_size: Array
    element_size: Array
    casts: Array
    reserved_memory: Array
    max_sequence_length: Array
    accelerators: np.ndarray
    terms: Terms
    rented: np.ndarray
    power: PowerLimits
    rules: list[Remark]
    peaks: Array
    generation: Words
    software: Words

    def keys_for(self, codes: np.ndarray) -> Keys:
        """Calibration keys of the plans at another precision, by its positions in PRECISION_NAMES, (rows,)."""
        return combined_keys(self.generation, Words(codes, PRECISION_KEYS), self.software)

    def keys_named(self, codes: np.ndarray) -> Keys:
        """The same by the names of precisions themselves: INT4 weights are not 16-bit ones."""
        return combined_keys(self.generation, Words(codes, PRECISION_NAMES), self.software)

    def peak_for(self, codes: np.ndarray) -> Array:
        """Dense peak of the accelerators at another precision, NaN where they state none, (rows,). [FLOP/s]"""
        return np.asarray(self.peaks[np.arange(len(codes)), codes])


_NAMES = [field.name for field in fields(Model)]
_FIRST_OPTIONAL = _NAMES.index("num_linear_layers")
_OPTIONAL = [_NAMES.index(name) for name in ("num_linear_layers", "moe_latent_size", "num_selected_layers")]
_ABSENT = {name: getattr(Model(), name) for name in _NAMES[_FIRST_OPTIONAL:]}
"""Fields of hybrid and sparse models in others; equations never write into them."""


class Named(NamedTuple):
    """Rows of the catalog that plans name, (rows,): models, accelerators, networks (-1 where blank)."""

    models: np.ndarray
    accelerators: np.ndarray
    networks: np.ndarray

    def take(self, rows: np.ndarray) -> Named:
        """Some of the plans."""
        return Named(*(values[rows] for values in self))


def named_rows(plans: Table, catalog: Catalog) -> Named:
    """Catalog rows that plans name.

    Raises InputError naming every cell whose name is not in the catalog.
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


# Pools beside the one that decodes, which may have an accelerator and a network of their own
POOLS = ("prefill", "expert")


def pool_rows(
    plans: Table, catalog: Catalog, rows: np.ndarray, column: str = "accelerator", pool: str = "prefill"
) -> np.ndarray:
    """Rows of the pools that prefill, or of expert pools: those of the plan but where separate pools have others.

    ``rows``: what the plans name: rows of the sheet accelerators, or positions of networks, -1 where blank, (rows,).
    ``column``: which of the two. Returns rows or positions alike, (rows,). Raises InputError naming every cell of such
    a column whose name is not in the catalog.
    """
    own = f"{pool}_{column}"
    if own not in plans:
        return rows
    names = plans.text(own)
    looked_up = catalog.rows("accelerators", names, plans, own) if column == "accelerator" else None
    given = catalog.network_index(names, plans, own) if looked_up is None else looked_up
    return np.where((given >= 0) & (plans.filled("mode") == "disaggregated"), given, rows)


def architecture_codes(named: Named, catalog: Catalog) -> np.ndarray:
    """Architecture of the models of plans as codes: rows of one code are evaluated together.

    ``named``: rows of the catalog. For :func:`xlperf.engine.models.architecture_of`.
    """
    return np.asarray(catalog_arrays(catalog, named.accelerators).architecture[named.models])


def software_words(plans: Table) -> Words:
    """Training stack or engine of each plan; the default of the column where blank.

    PyTorch FSDP is one stack where it is compiled and another where it is not.
    """
    declared = plans.schema.by_name["software"].default
    if "software" not in plans:
        return Words(np.zeros(len(plans), dtype=np.int64), (declared,))
    names = plans["software"].tolist()
    if "compiled" in plans:
        told = zip(names, plans.number("compiled").tolist(), strict=True)
        names = [_compiled(name, how) if name.strip().casefold() in (COMPILED, EAGER) else name for name, how in told]
    found = coded_words(names)
    return Words(found.codes, [word or declared for word in found.words])


def _fused_as(plans: Table, software: Words) -> Words:
    """Stack that fuses the kernels between products as a plan does: its own unless the plan says how."""
    if "compiled" not in plans or np.isnan(plans["compiled"]).all():
        return software
    told = zip(software.codes.tolist(), plans.number("compiled").tolist(), strict=True)
    return coded_words([_compiled(software.words[code], how) for code, how in told])


def _attention_of(plans: Table, software: Words) -> Words:
    """Library whose attention each plan runs: that of its software unless the plan names one."""
    if "attention" not in plans:
        return software
    named = plans.filled("attention").tolist()
    if _LIBRARIES.keys().isdisjoint(named):
        return software
    told = zip(software.codes.tolist(), named, strict=True)
    return coded_words([_LIBRARIES.get(kernel, software.words[code]) for code, kernel in told])


def _keys(generation: Words, codes: np.ndarray, software: Words, other: Words) -> tuple[Keys, Keys]:
    """Keys of rows to look the calibration up with, by their software and by another that some kernels are of."""
    stored = Words(codes, PRECISION_KEYS)
    own = combined_keys(generation, stored, software)
    return own, own if other is software else combined_keys(generation, stored, other)


def _compiled(name: str, how: float) -> str:
    return name if math.isnan(how) else COMPILED if how else EAGER


def _model_of(columns: Array) -> Model:
    """Models with the fields of hybrid and sparse ones only where there is any: they are the last ones."""
    more = any(some(columns[index]) for index in _OPTIONAL)
    if more:
        return Model.of_rows(columns)
    return Model(**dict(zip(_NAMES[:_FIRST_OPTIONAL], columns, strict=False)), **_ABSENT)


def _capped(
    asked: Array, power_limit: Array, peaks: Array, energy: Array, columns: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Clock that lowered power limits leave to long products of a precision, and columns of devices that run at it.

    ``energy``: of an operation on 5 nm at its nominal clock. [J/FLOP] What draws little (vector units, caches, memory)
    keeps its rate: no faster matrix unit may slow it.
    """
    own = energy * columns["energy_ratio"]
    share = product_clock_share(asked[:, None], power_limit[:, None], peaks, own, columns["static_power"])
    # Under the lowered limit products are as near to it as they were: what their constants say of the own one holds.
    # Leakage that a row states stays, whatever the clock.
    static = np.nan_to_num(columns["static_power"])
    slowed = {
        "energy_ratio": energy_at_clock(columns["energy_ratio"], share),
        "thermal_design_power": static + power_at_clock(columns["thermal_design_power"] - static, share),
    }
    return share, {**columns, **slowed}


def _most_energy(catalog: Catalog, families: Sequence[tuple[str, Keys]], sizes: Array) -> Array:
    """Most energy of an operation that kernels of a precision take, (rows, 1): no less than what any of them draws.

    With less, units that are faster would be slowed by more than they are faster: their kernels would draw more than
    the clock was chosen for.
    """
    energy = narrow_energy(PRODUCT_ENERGY, sizes)[:, None]
    for family, keys in families:
        energy = np.maximum(energy, constants_of(catalog.calibration, family, keys)[0]["energy_per_flop"])
    return np.asarray(energy)


def _limit_rules(plans: Table, lowered: Array, limit: Array, columns: dict[str, Array]) -> list[Remark]:
    """Power limits that no clock keeps."""
    idle = power_without_work(limit, columns["idle_power"][:, 0], columns["static_power"][:, 0])
    return _told(
        lowered <= idle,
        "power limit {} W is no more than the {} W that {} draws with nothing to run: no clock keeps it",
        lambda: (lowered, np.round(idle), plans.text("accelerator")),
    )


def _told(rows: np.ndarray, sentence: str, values: Callable[[], tuple[np.ndarray, ...]]) -> list[Remark]:
    """A remark on the plans of a mask, none where it is empty."""
    return [Remark(rows, sentence, values())] if some(rows) else []


def join(plans: Table, catalog: Catalog, named: Named | None = None) -> Joined:
    """Columns of the catalog for each plan, and the rules that only the catalog can judge.

    ``named``: as :func:`named_rows` has it, where that is known already. Returns arrays for the equations, and the
    rules that only the catalog can judge.
    """
    model_rows, rows, asked = named or named_rows(plans, catalog)
    arrays = catalog_arrays(catalog, rows)
    codes = plans.codes("precision", PRECISION_CODES)
    wide_codes = WIDE_CODES[codes]
    product_size, element_size = INPUT_SIZES[codes], ELEMENT_SIZES[codes]
    peak, wide_peak = arrays.peaks[rows, codes], arrays.peaks[rows, wide_codes]

    common = dict(zip(DEVICE_COLUMNS, rows_of(arrays.device, rows, 1)[..., None], strict=True))
    limit, peaks = arrays.thermal_design_power[rows], arrays.peaks[rows]
    limits = PowerLimits(limit, limit, np.ones_like(limit))
    software = software_words(plans)
    generation = arrays.generation.take(rows)
    keys, fused_keys = _keys(generation, codes, software, _fused_as(plans, software))
    wide_keys, attention_keys = _keys(generation, wide_codes, software, _attention_of(plans, software))
    own, wide, limit_rules = common, common, []
    if "power_limit" in plans:
        lowered = plans.number("power_limit")
        limit_rules = _limit_rules(plans, lowered, limit, common)
        energy = _most_energy(catalog, [("gemm", keys)], product_size)
        share, own = _capped(lowered, limit, peak[:, None], energy, common)
        attended = [("gemm", wide_keys), *((name, attention_keys) for name in ("attention", "attention_backward"))]
        energy = _most_energy(catalog, attended, INPUT_SIZES[wide_codes])
        wide_share, wide = _capped(lowered, limit, wide_peak[:, None], energy, common)
        peaks = peaks * _capped(lowered, limit, peaks, narrow_energy(PRODUCT_ENERGY, INPUT_SIZES), common)[0]
        peak, wide_peak = share[:, 0] * peak, wide_share[:, 0] * wide_peak
        peaks[np.arange(len(peaks)), wide_codes], peaks[np.arange(len(peaks)), codes] = wide_peak, peak
        limits = PowerLimits(limit, np.fmin(lowered, limit), share[:, 0])
    device, wide_device = Device(peak_flop_rate=peak[:, None], **own), Device(wide_peak[:, None], **wide)

    network_rows = np.where(asked >= 0, asked, catalog.default_networks[rows])
    accelerators = plans.number("num_accelerators")
    network, network_rules = network_of(catalog, network_rows, accelerators)
    if arrays.linked:
        network = own_links(catalog, network, network_rows, arrays.link_bandwidth[rows])
    stated, device_rules = ~np.isnan(peak), []
    if arrays.unbuilt is not None:
        unbuilt = arrays.unbuilt[rows]
        stated = stated | (unbuilt != "")
        device_rules = [Remark(unbuilt != "", "{}", (unbuilt,))]

    rules = [
        *_told(
            arrays.is_unmodelled[model_rows],
            "model {} {}, which is not modelled yet",
            lambda: (plans.text("model"), arrays.unmodelled[model_rows]),
        ),
        *(device_rules + limit_rules),
        *_told(
            ~stated,
            "accelerator {} states no peak rate for precision {}",
            lambda: (plans.text("accelerator"), plans.filled("precision")),
        ),
        *_told(
            BLOCK_SCALED[codes] & np.isnan(arrays.peaks[rows, FP4]),
            "the matrix units of accelerator {} do not scale blocks (it states no FP4 rate): use fp8-block, not {}",
            lambda: (plans.text("accelerator"), plans.filled("precision")),
        ),
        *network_rules,
    ]
    prices = priced(plans, catalog, rows)
    return Joined(
        model=_model_of(rows_of(arrays.model, model_rows, 1)),
        device=device,
        wide_device=wide_device,
        network=network,
        keys=keys,
        wide_keys=wide_keys,
        fused_keys=fused_keys,
        attention_keys=attention_keys,
        product_size=product_size,
        element_size=element_size,
        casts=CASTS[:, codes],
        reserved_memory=arrays.reserved_memory[rows],
        max_sequence_length=arrays.max_sequence_length[model_rows],
        accelerators=rows,
        terms=prices.terms,
        rented=prices.rented,
        power=limits,
        rules=rules,
        peaks=peaks,
        generation=generation,
        software=software,
    )


def constants_of(calibration: Calibration, family: str, keys: Keys) -> Found:
    """Constants of a family for plans, and whose generation or software has none of its own; of one plan a look-up."""
    return (
        calibration.single[(family, *keys.distinct[0])]
        if len(keys.codes) == 1
        else calibration.constants_of(family, keys)
    )


def constants_by_family(
    calibration: Calibration, wanted: Iterable[tuple[Sequence[str], Keys]], beside: Collection[str] = ()
) -> tuple[dict[str, Mapping[str, Array]], list[tuple[str, np.ndarray]]]:
    """Constants of families (rows, 1), and the rows of each family whose generation or software has none of its own.

    ``wanted``: families and the keys they are looked up with; ``gemm_wide`` is ``gemm`` with other keys. ``beside``:
    families that stand beside those of an engine or a kernel, which say whether a plan is extrapolated.
    """
    found: dict[str, Mapping[str, Array]] = {}
    extrapolated: list[tuple[str, np.ndarray]] = []
    for names, keys in wanted:
        for name in names:
            family = name.removesuffix("_wide")
            found[name], far = constants_of(calibration, family, keys)
            if name not in beside:
                extrapolated.append((family, far))
    return found, extrapolated


BATCH = 8192  # plans of one architecture evaluated together: their arrays stay in the processor's cache

Results = dict[str, np.ndarray]


def groups_of(results: Collection[str] | None, groups: Mapping[str, str]) -> frozenset[str] | None:
    """Groups of equations that results take; None for all of them.

    ``results``: columns that are asked for; None for all. ``groups``: group of each result that does not take all
    equations.

    >>> groups_of(["step_time"], {"step_time": "times"})
    frozenset({'times'})
    """
    if results is None or not all(name in groups for name in results):
        return None
    return frozenset(groups[name] for name in results)


def _keep_freed_memory() -> None:
    """Let glibc keep what arrays of up to 32 MB free: each batch reuses its pages, which is 10 to 20 % of its time.

    glibc keeps twice the largest block that was mapped and freed, up to 32 MiB; other allocators take no notice.
    """
    np.empty(4_000_000)


def in_batches(
    plans: Table,
    catalog: Catalog,
    named: Named,
    codes: np.ndarray,
    evaluate: Callable[[Table, Named, int], Results],
    slow: np.ndarray | None = None,
) -> Results:
    """Results of plans, evaluated in batches of one architecture; a large group also separates switched networks.

    ``codes``: what plans that are evaluated together have in common, (rows,). ``evaluate``: results of plans of one
    code, from the plans, the rows that they name, and the code. ``slow``: plans that take longer than others, (rows,):
    in a large group they are batched separately.
    """
    distinct = sorted(set(codes.tolist()))  # np.unique would import numpy.ma, 30 ms in a fresh process
    if len(distinct) <= 1 and len(plans) <= BATCH:
        return evaluate(plans, named, distinct[0] if distinct else 0)
    groups = [(code, np.flatnonzero(codes == code)) for code in distinct]
    if len(plans) > BATCH:
        _keep_freed_memory()
        kinds = switched_networks(catalog, named.accelerators, named.networks) * 2
        if slow is not None:
            kinds = kinds + slow
        groups = [
            (code, part)
            for code, rows in groups
            for part in ([rows[kinds[rows] == kind] for kind in range(4)] if len(rows) > BATCH else [rows])
        ]
    results: Results = {}
    for code, alike in groups:
        for start in range(0, len(alike), BATCH):
            rows = alike[start : start + BATCH]
            for name, values in evaluate(plans.take(rows), named.take(rows), code).items():
                if name not in results:
                    results[name] = np.empty(len(plans), dtype=values.dtype)
                results[name][rows] = values
    return results


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
