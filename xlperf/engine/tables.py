"""Tables of plans in, tables of results out: ``evaluate`` and ``explain``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import ERROR, MEASURED, results_of
from xlperf.catalog.table import Table
from xlperf.engine.inference import evaluate_inference, serving_memory
from xlperf.engine.training import NUMBERS, evaluate_training

BLOCK = 65_536  # rows that are looked up together; those of one architecture then go through the equations in pieces

Progress = Callable[[int], None]


def refuse_auto(plans: Table) -> None:
    """Refuse values ``auto``, which a search has to expand first.

    Raises InputError naming every cell that says ``auto``.
    """
    faults = [
        Fault(
            plans.place(int(row), column), f"{column.replace('_', ' ')} is auto: a search has to choose a value first"
        )
        for column, mask in plans.auto.items()
        for row in np.flatnonzero(mask)
    ]
    if faults:
        raise InputError(faults)


def evaluate(
    plans: Table, catalog: Catalog, progress: Progress | None = None, results: Collection[str] | None = None
) -> Table:
    """Performance, memory and cost of every plan of a table.

    ``catalog``: accelerators, networks, models, prices and calibration that they refer to. ``progress``: called with
    the number of rows of each block that is done. ``results``: results that are asked for, all by default: what they do
    not take is not computed (a step time takes neither memory nor energy), and they are equal to the last bit. Others
    that come with them are there as well. Returns ``training_results`` or ``inference_results``, one row per plan, in
    the units used inside. An illegal plan has NaN and a reason; one that does not fit keeps its numbers, ``fits`` 0 and
    a reason. Beside a result that was measured (``measured_step_time`` of the plans) stands the error of its
    prediction. Raises InputError when a plan names something that the catalog does not have, or a cell says ``auto``.
    """
    refuse_auto(plans)
    block_of = {"training": evaluate_training, "inference": evaluate_inference}[plans.kind]
    schema = results_of(plans.kind)
    blocks = []
    for start in range(0, max(len(plans), 1), BLOCK):
        block = plans if len(plans) <= BLOCK else plans.take(slice(start, start + BLOCK))
        blocks.append(block_of(block, catalog, results))
        if progress is not None:
            progress(len(block))
    columns: dict[str, np.ndarray] = {}
    for name in [column.name for column in schema.columns if results is None or column.name in blocks[0]]:
        columns[name] = blocks[0][name] if len(blocks) == 1 else np.concatenate([block[name] for block in blocks])
        if MEASURED + name in plans:
            columns[ERROR + name] = columns[name] / plans[MEASURED + name] - 1.0
    found = Table(schema.name, columns, plans.place)
    return found if results is None else _explained(found, results, lambda: evaluate(plans, catalog))


def _explained(found: Table, results: Collection[str], whole: Callable[[], Table]) -> Table:
    """Selected results, or all where one of them is blank in a legal plan: the notes then give the reason.

    Notes say what such a plan lacks, a price or a bandwidth, and they take all results.
    """
    legal = found["reason"] == ""
    if all(column.name in found for column in found.schema.columns):
        return found
    blank = [name for name, values in found.columns.items() if values.dtype != object and np.isnan(values[legal]).any()]
    if any(name in results for name in blank):
        return whole()
    return replace(found, columns={name: values for name, values in found.columns.items() if name not in blank})


def fitting(plans: Table, catalog: Catalog) -> dict[str, np.ndarray] | None:
    """Which plans are legal and fit in memory, much faster than :func:`evaluate` tells.

    ``plans``: plans of kind ``training`` or ``inference``, no cell of which says ``auto``. Returns ``fits`` as in the
    results, NaN where a plan is illegal, but 1 also where the load of an inference plan alone can tell; of training
    ``memory_reserved`` [B], of inference ``max_batch_size``. None where plans have a rate of requests, which says
    whether they are legal.
    """
    if plans.kind == "training":
        return evaluate_training(plans, catalog, ("memory_reserved", "fits"))
    if not np.isnan(plans.number("request_rate")).all():
        return None
    return serving_memory(plans, catalog)


def numbers(plans: Table, catalog: Catalog) -> Table | None:
    """Results of legal plans in numbers, without bands, trust and reasons: faster than :func:`evaluate`.

    ``plans``: plans of kind ``training`` or ``inference``, no cell of which says ``auto``. Returns the same numbers as
    :func:`evaluate` gives; None for inference.
    """
    if plans.kind != "training":
        return None
    results = evaluate_training(plans, catalog, NUMBERS)
    del results["reason"]
    return Table("training_results", results)


def explain(plans: Table, catalog: Catalog, row: int = 0) -> Table:
    """Operators of one plan with their FLOP, bytes, time and what bounds them.

    Returns kind ``operators``, in the units used inside; no rows for an illegal plan.
    """
    one = plans.take(slice(row, row + 1))
    refuse_auto(one)
    if plans.kind == "training":
        from xlperf.engine.operators import explain_training

        return explain_training(one, catalog)
    from xlperf.engine.operators import explain_inference

    return explain_inference(one, catalog)
