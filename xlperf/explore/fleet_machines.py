"""Machines of a fleet: engines that run on an accelerator, servers and networks, and the prefill pool."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import stack_rows
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.fleet_plans import COUNT, DEGREES, LOAD, ONE, ROUND, in_slices, network_tiers_of, with_columns
from xlperf.explore.mappings import server_sizes
from xlperf.explore.search import stacked
from xlperf.interop.stack_rules import STACKS

PREFILL_COUNT = "prefill_accelerators"


class Machine(NamedTuple):
    """An accelerator, its unit of sale and its network.

    ``unit``: accelerators of a server or pod. ``server``: accelerators of one purchase, 1 in slices. ``most``:
    accelerators of the network, ``inner``: of its innermost tier. [-]
    """

    accelerator: str
    unit: float
    server: float
    most: float
    inner: float

    @staticmethod
    def of(plans: Table, catalog: Catalog) -> Machine:
        """The accelerator that the first of some plans names."""
        unit, most = (float(sizes[0]) for sizes in server_sizes(plans, catalog))
        tiers = network_tiers_of(plans, catalog)
        inner = float(catalog.tables["networks"].number("size")[tiers[0]]) if len(tiers) else np.inf
        server = 1.0 if in_slices(plans, catalog) else unit
        return Machine(str(plans.text("accelerator")[0]), unit, server, most, inner)


class Machines(NamedTuple):
    """Machines that decode or do both, machines that prefill, and the price ratio of prefill to decode accelerators."""

    own: Machine
    prefill: Machine
    price: float = 1.0

    @staticmethod
    def of(formats: Table, prefill: str, catalog: Catalog, priced: bool) -> Machines:
        """Machines of plans, with a prefill pool of another accelerator if named; ``priced``: by rent or cost."""
        own = Machine.of(formats, catalog)
        if prefill in ("", own.accelerator):
            return Machines(own, own)
        others = with_columns(formats, accelerator=prefill)
        price = _price(formats, others, catalog) if priced else 1.0
        return Machines(own, Machine.of(others, catalog), price)

    @property
    def unlike(self) -> bool:
        """Whether the prefill pool has another kind of accelerator."""
        return self.prefill.accelerator != self.own.accelerator

    def counts(self, plans: Table, copies: Array) -> tuple[Array, Array]:
        """Accelerators of both kinds in copies of plans, (rows,). [-]"""
        whole = plans.number(COUNT)
        prefill = np.nan_to_num(plans.number(PREFILL_COUNT)) if self.unlike else np.zeros(len(whole))
        return copies * (whole - prefill), copies * prefill

    def in_servers(self, counts: tuple[Array, Array]) -> tuple[Array, Array]:
        """Accelerators of both kinds in whole servers, (rows,). [-]"""
        sizes = self.own.server, self.prefill.server
        decoding, prefill = (
            np.ceil(count / size * (1.0 - ROUND)) * size for count, size in zip(counts, sizes, strict=True)
        )
        return decoding, prefill

    def priced(self, counts: tuple[Array, Array]) -> Array:
        """Accelerators of the first kind at the price of some of both, (rows,). [-]"""
        return np.asarray(counts[0] + self.price * counts[1])


def _price(decode: Table, prefill: Table, catalog: Catalog) -> float:
    """Hourly cost of an accelerator over the hourly cost of another; 1 unless the catalog prices both."""
    alone = with_columns(
        stacked([prefill.take([0]), decode.take([0])]), mode=ONE, **dict.fromkeys((COUNT, LOAD, *DEGREES), 1)
    )
    ratio = np.divide(*evaluate(alone, catalog).number("accelerator_hour_cost"))
    return float(ratio) if np.isfinite(ratio) and ratio > 0.0 else 1.0


_OWN = "nvidia"
"""Vendor whose engines and kernels apply to an accelerator without a vendor: a custom chip."""


def engine_title(engine: str) -> str:
    """Name of an engine in its makers' spelling.

    >>> engine_title("vllm"), engine_title("my-engine")
    ('vLLM', 'my-engine')
    """
    titles = {stack.software: stack.title for stack in STACKS.values() if stack.label}
    return titles.get(engine, engine)


def engines_of(form: Table, catalog: Catalog) -> list[str]:
    """Serving engines to compare on the accelerator of a form: the form's engine, else all that run there.

    ``form``: one row with a column ``accelerator``, and ``software``, blank for all. Raises InputError if the engine is
    unknown or does not run on the accelerator. An engine that only the calibration names runs anywhere.
    """
    table = catalog.tables["accelerators"]
    row = catalog.rows("accelerators", form.text("accelerator"), form, "accelerator")[0]
    vendor = str(table.text("vendor")[row]).casefold() or _OWN
    generation = str(table.text("generation")[row]).casefold()
    known = stack_rows("engine")
    of_vendor = [row_ for row_ in known if row_["vendor"] == vendor]
    runs = [row_ for row_ in of_vendor if not row_["generations"] or generation in row_["generations"].split()]
    # A generation that no row names has the engines of its vendor.
    named = {word for row_ in of_vendor for word in row_["generations"].split()}
    runs = runs if generation in named else of_vendor
    result = list(dict.fromkeys(row_["engine"] for row_ in runs if row_["searched"] == "yes")) or ["vllm"]
    asked = str(form.text("software")[0]).strip().casefold()
    asked = STACKS[asked].software if asked in STACKS else asked
    if not asked:
        return result
    if asked in {row_["engine"] for row_ in runs}:
        return [asked]
    place, accelerator = form.place(0, "software"), str(form.text("accelerator")[0])
    if asked in {row_["engine"] for row_ in known}:
        names = ", ".join(result)
        problem = f"{engine_title(asked)} does not run on {accelerator}; engines that do: {names}; or auto for all"
        raise InputError(Fault(place, problem))
    if catalog.calibration.knows_software("serving_software", asked):
        return [asked]
    words = nearest(asked, sorted({row_["engine"] for row_ in known}))
    raise InputError(Fault(place, f'unknown serving engine "{form.text("software")[0]}"; {words}'))
