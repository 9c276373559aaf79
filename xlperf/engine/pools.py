"""Plans of separate pools: the pool that decodes and the one that prefills are rows of one table."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import Named
from xlperf.equations.plan.rules import Remark

_DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "data_parallel_attention",
)
_OF_PREFILL = ("prefill_accelerator", "prefill_accelerators", *(f"prefill_{name}" for name in _DEGREES))


def mode_rules(plans: Table, mode: str) -> list[Remark]:
    """Refuse columns that say something only in another mode.

    Parameters
    ----------
    plans : Table
        Inference plans, (rows,).
    mode : str
        static, continuous or disaggregated.

    Returns
    -------
    list of Remark
        Each with a sentence that says what is wrong.
    """
    given = {"prefill_accelerator": plans.text("prefill_accelerator") != ""}
    for name in ("accelerators", *_DEGREES):
        given[f"prefill_{name}"] = ~np.isnan(plans.number(f"prefill_{name}"))
    pools = [Remark(found, f"{name.replace('_', ' ')} needs mode disaggregated") for name, found in given.items()]
    varied = [
        Remark(plans.filled(f"{name}_variation") > 0.0, f"{name} variation needs mode continuous or disaggregated")
        for name in ("prompt", "output")
    ]
    run, first = ~np.isnan(plans.number("run_requests")), plans.filled("prefill_first") > 0.0
    taken_up = [
        Remark(plans.filled("polling_steps") != 1.0, "polling steps needs mode continuous"),
        Remark(plans.filled("gathering_steps") != 0.0, "gathering steps needs mode continuous"),
        Remark(first, "prefill first needs mode continuous"),
    ]
    ends = Remark(run, "run requests needs mode continuous or disaggregated")
    alone = plans.filled("data_parallel_attention") <= 1.0
    idle = [
        Remark(first & ~run, "prefill first says something of a run only; set run requests"),
        Remark((plans.filled("gathering_steps") > 0.0) & alone, "gathering steps needs data parallel attention"),
    ]
    return {
        "static": [*pools, *varied, ends, *taken_up],
        "continuous": [*pools, *idle],
        "disaggregated": taken_up,
    }[mode]


def _dispatch(plans: Table, without: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of the exchange with experts, blank for some plans."""
    found = {name: plans[name] for name in ("expert_dispatch", "two_batch_overlap") if name in plans}
    return {
        name: np.where(without, "" if values.dtype == object else np.nan, values).astype(values.dtype)
        for name, values in found.items()
    }


def pool_plans(plans: Table) -> tuple[Table, Array]:
    """Both pools of plans, and the requests in flight over both.

    Parameters
    ----------
    plans : Table
        Inference plans of mode disaggregated, (rows,).

    Returns
    -------
    tuple of Table and Array
        The pools that decode, then those that prefill, (2 x rows,), each with its own accelerators; requests, (rows,).
    """
    total = plans.number("num_accelerators")
    asked = plans.number("prefill_accelerators")
    own = {name: plans.filled(name) for name in _DEGREES}
    other = {}
    for name in _DEGREES:
        values = plans.number(f"prefill_{name}")
        other[name] = np.where(np.isnan(values), own[name], values)
    prefill = np.where(np.isnan(asked), np.floor(0.5 * total), asked)
    decode = total - prefill
    decoders = decode / (own["tensor_parallel"] * own["context_parallel"] * own["pipeline_parallel"])
    batch, concurrency = plans.number("batch_size"), plans.number("concurrency")
    requests = np.where(np.isnan(concurrency), np.where(np.isnan(batch), 1.0, batch) * decoders, concurrency)
    # How tokens are sent to experts says nothing for a pool that sends none while the other does.
    here, there = (each["data_parallel_attention"] > 1.0 for each in (own, other))
    pools = (
        {**own, "num_accelerators": decode, **_dispatch(plans, ~here & there)},
        {**other, "num_accelerators": prefill, **_dispatch(plans, ~there & here)},
    )
    if "prefill_accelerator" in plans:
        accelerator, given = plans.text("accelerator"), plans.text("prefill_accelerator")
        pools[0]["accelerator"], pools[1]["accelerator"] = accelerator, np.where(given == "", accelerator, given)
    one, blank = np.ones(len(plans)), np.full(len(plans), np.nan)
    shared = {name: values for name, values in plans.columns.items() if name not in _OF_PREFILL}
    shared |= {"concurrency": blank, "batch_size": one}
    columns = [{**shared, **pool} for pool in pools]
    both = {name: np.concatenate([pool[name] for pool in columns]) for name in columns[0]}
    return Table(plans.kind, both, lambda row, column: plans.place(row % len(plans), column)), np.asarray(requests)


def prefill_rows(plans: Table, catalog: Catalog, accelerators: np.ndarray) -> np.ndarray:
    """Accelerators that prefill: those of the plan but where separate pools have others.

    Parameters
    ----------
    plans : Table
        Training or inference plans, (rows,).
    catalog : Catalog
        What they refer to.
    accelerators : array of int64
        Rows of the sheet accelerators that the plans name, (rows,).

    Returns
    -------
    array of int64
        Rows of the same sheet, (rows,).

    Raises
    ------
    InputError
        Naming every cell of ``prefill_accelerator`` whose name is not in the catalog.
    """
    if "prefill_accelerator" not in plans:
        return accelerators
    given = catalog.rows("accelerators", plans.text("prefill_accelerator"), plans, "prefill_accelerator")
    return np.where((given >= 0) & (plans.filled("mode") == "disaggregated"), given, accelerators)


def pool_rows(plans: Table, named: Named, catalog: Catalog) -> Named:
    """Rows of the catalog that both pools of plans name.

    Parameters
    ----------
    plans : Table
        Inference plans of mode disaggregated, (rows,).
    named : Named
        Rows that they name, (rows,).
    catalog : Catalog
        What they refer to.

    Returns
    -------
    Named
        In the order of :func:`pool_plans`, (2 x rows,).

    Raises
    ------
    InputError
        Naming every cell of ``prefill_accelerator`` whose name is not in the catalog.
    """
    prefilling = prefill_rows(plans, catalog, named.accelerators)
    twice = Named(*(np.concatenate([values, values]) for values in named))
    return twice._replace(accelerators=np.concatenate([named.accelerators, prefilling]))
