"""The same configurations through calculon, in the same process and on the same core.

The configurations are those of table 5 of Korthikanti et al. (arXiv:2205.05198): four models on A100 with selective
recomputation and sequence parallelism, and with full recomputation. calculon reads them from its own files; xlperf's
are written here. Both sides take many variants that differ in the global batch, so that no plan is seen twice.
calculon (https://github.com/calculon-ai/calculon) is not part of this project: give the folder of a checkout, in an
environment that has its requirement psutil.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from itertools import groupby, product
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engine import processor_seconds
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.table import Table, nowhere
from xlperf.engine import evaluate
from xlperf.explore.candidates import Candidates, with_mapping
from xlperf.explore.objectives import objective_of
from xlperf.explore.search import ranked, search

_MODELS = {
    "megatron-22B": ("megatron-22B", 1.0, 1.0, 4.0, 4.0),
    "gpt3-175B": ("GPT3-175B", 8.0, 3.0, 1.0, 64.0),
    "turing-530B": ("turing-530B", 35.0, 3.0, 1.0, 280.0),
    "megatron-1T": ("megatron-1T", 64.0, 1.0, 1.0, 512.0),
}
"""calculon's name -> xlperf's name, pipeline stages, chunks, micro batch, global batch."""
_RECOMPUTE = {"seqsel": ("selective", "yes"), "full": ("full", "no")}
_TENSOR = 8.0


class Side(NamedTuple):
    """One side: plans per second and core, and the step time of each configuration. [1/s, s]"""

    rate: float
    step_times: dict[str, float]


def names() -> list[str]:
    """Configurations as both sides call them."""
    return [f"{model} {recompute}" for model in _MODELS for recompute in _RECOMPUTE]


def xlperf_plans(num_variants: int, start: int = 0) -> Table:
    """The configurations with global batches of one, two, three ... times the published one."""
    shapes = [(*shape, *recompute) for shape in _MODELS.values() for recompute in _RECOMPUTE.values()]
    rows = [(*shape, float(turn)) for turn in range(start + 1, start + 1 + num_variants) for shape in shapes]
    model, stages, chunks, micro, batch, recompute, split, turn = (list(values) for values in zip(*rows, strict=True))
    text = {"model": model, "recompute": recompute, "sequence_parallel": split}
    columns = {name: np.array(values, dtype=object) for name, values in text.items()}
    columns |= {
        "accelerator": np.full(len(rows), "A100-SXM4-80GB", dtype=object),
        "attention": np.full(len(rows), "standard", dtype=object),
        "num_accelerators": _TENSOR * np.array(stages),
        "tensor_parallel": np.full(len(rows), _TENSOR),
        "pipeline_parallel": np.array(stages),
        "virtual_pipeline": np.array(chunks),
        "micro_batch_size": np.array(micro),
        "global_batch_size": np.array(batch) * np.array(turn),
        "sequence_length": np.full(len(rows), 2048.0),
    }
    return table_from_columns("training", columns, nowhere)


def xlperf_side(catalog: Catalog, num_variants: int, repeats: int) -> Side:
    """xlperf's half."""
    first = evaluate(xlperf_plans(1), catalog)["step_time"].tolist()
    rates = []
    for repeat in range(repeats):
        plans = xlperf_plans(num_variants, start=repeat * num_variants)
        rates.append(len(plans) / processor_seconds(lambda table=plans: evaluate(table, catalog)))
    return Side(max(rates), dict(zip(names(), first, strict=True)))


def calculon_side(folder: Path, num_variants: int, repeats: int) -> Side:
    """calculon's half: its files are read before the clock starts, its logger is silent."""
    sys.path.insert(0, str(folder))
    import calculon
    from calculon.llm import Llm, System

    logger = logging.getLogger("calculon.silent")
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    system = System(calculon.io.read_json_file(str(folder / "systems" / "a100_80g.json")))
    cases: dict[str, tuple[Any, dict[str, Any]]] = {}
    for model in _MODELS:
        for recompute in _RECOMPUTE:
            settings = folder / "validation" / "seqsel" / "tab5" / f"{model}_{recompute}.json"
            application = Llm.Application(calculon.io.read_json_file(str(folder / "models" / f"{model}.json")))
            cases[f"{model} {recompute}"] = (application, calculon.io.read_json_file(str(settings)))

    def run(application: Any, settings: dict[str, Any]) -> float:
        one = Llm(application, logger)
        one.compile(system, Llm.Execution.from_json(settings))
        one.run(system)
        return float(one.get_total_time())

    times = {name: run(*case) for name, case in cases.items()}
    rates = []
    for _ in range(repeats):
        work = []
        for turn in range(1, num_variants + 1):
            for application, settings in cases.values():
                changed = copy.deepcopy(settings)
                changed["batch_size"] *= turn
                work.append((application, changed))
        rates.append(len(work) / processor_seconds(lambda some=work: [run(*case) for case in some]))
    return Side(max(rates), times)


class Space(NamedTuple):
    """What calculon tried of its own space: settings in the order of its fields, processor time, the best of them."""

    tried: list[tuple[Any, ...]]
    fields: tuple[str, ...]
    whole: int
    processor: float
    best: int


def calculon_space(folder: Path, accelerators: int = 64, batch: int = 64) -> Space:
    """calculon's own space of GPT-3 175B on A100 without offload, as its llm-optimal-execution --mbs-break tries it.

    Its loops over degrees, interleaving, recomputation, sharding, kinds and overlap of communication, micro batches and
    the network of each group, with a silent logger; larger micro batches are left out once one has no good placement.
    """
    sys.path.insert(0, str(folder))
    sys.modules.setdefault("psutil", ModuleType("psutil"))
    sys.modules["psutil"].cpu_count = lambda logical=False: 1
    import calculon
    from calculon.llm import Llm, System
    from calculon.llm.all_executions import AllExecutions

    logger = logging.getLogger("calculon.silent")
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    description = calculon.io.read_json_file(str(folder / "systems" / "a100_80g.json"))
    description["mem2"]["GiB"] = 0
    application = Llm.Application(calculon.io.read_json_file(str(folder / "models" / "gpt3-175B.json")))
    system = System(description)
    fields = Llm.Execution.fields()
    asked = AllExecutions.all_executions(application, system, accelerators, batch, "float16", [True])
    whole = list(asked)
    micro = fields.index("microbatch_size")
    placed = {fields.index(f"{group}_par_net") for group in ("tensor", "pipeline", "data")}

    def others(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value for place, value in enumerate(values) if place != micro and place not in placed)

    tried, best, rate = list[tuple[Any, ...]](), 0, 0.0
    start = time.process_time()
    for _, group in groupby(whole, others):
        for _, placements in groupby(group, itemgetter(micro)):
            good = False
            for values in placements:
                tried.append(values)
                one = Llm(application, logger)
                try:
                    one.compile(system, Llm.Execution(*values))
                    one.run(system)
                except Llm.Error:
                    continue
                good = True
                if one.get_sample_rate() > rate:
                    rate, best = one.get_sample_rate(), len(tried) - 1
            if not good:
                break
    return Space(tried, fields, len(whole), time.process_time() - start, best)


def as_plans(space: Space) -> Table:
    """The same configurations here, row for row.

    Degrees, interleaving, micro batch, recomputation and sharding of the optimizer are columns of both. Reduce-scatter
    with all-gather between tensor ranks is sequence parallelism; overlap by rings hides that of the backward pass,
    pipelined overlap all of it. Groups on the network of a server come first in the order of dimensions. Three of its
    options have no counterpart, and rows that differ in them alone are equal here: whether all-gathers of sequence
    parallelism are done again, whether gradients overlap the backward pass, and whether stages send a part each.
    """
    of = dict(zip(space.fields, (list(values) for values in zip(*space.tried, strict=True)), strict=True))
    orders = {nets: _order(nets) for nets in product((0, 1), repeat=3)}
    nets = zip(of["tensor_par_net"], of["data_par_net"], of["pipeline_par_net"], strict=True)
    recompute = {"full": "full", "attn_only": "selective", "none": "none"}
    overlap = {"none": "none", "ring": "gradients", "pipe": "all"}
    words = {
        "recompute": [recompute[one] for one in of["activation_recompute"]],
        "tensor_overlap": [overlap[one] for one in of["tensor_par_overlap"]],
        "sequence_parallel": ["yes" if one == "rs_ag" else "no" for one in of["tensor_par_comm_type"]],
        "dimension_order": [orders[each] for each in nets],
    }
    numbers = {
        "num_accelerators": "num_procs", "tensor_parallel": "tensor_par", "pipeline_parallel": "pipeline_par",
        "virtual_pipeline": "pipeline_interleaving", "zero_stage": "optimizer_sharding",
        "global_batch_size": "batch_size", "micro_batch_size": "microbatch_size",
    }  # fmt: skip
    count = len(space.tried)
    same = {"model": "GPT3-175B", "accelerator": "A100-SXM4-80GB", "attention": "standard"}
    columns = {name: np.full(count, value, dtype=object) for name, value in same.items()}
    columns |= {name: np.array(values, dtype=object) for name, values in words.items()}
    columns |= {name: np.array(of[theirs], dtype=np.float64) for name, theirs in numbers.items()}
    columns["sequence_length"] = np.full(count, 2048.0)
    return table_from_columns("training", columns, nowhere)


def _order(nets: tuple[int, ...]) -> str:
    """Groups of tensors, replicas and stages: those on the network of a server before those across servers."""
    first, *rest = (name for _, name in sorted(zip(nets, ("tp", "dp", "pp"), strict=True), key=itemgetter(0)))
    return "-".join([first, "cp", "ep", *rest])


class Here(NamedTuple):
    """The same configurations here: distinct plans, legal ones, processor time, steps of the best and of calculon's."""

    distinct: int
    legal: int
    processor: float
    best: float
    theirs: float


def xlperf_space(catalog: Catalog, space: Space) -> Here:
    """Every configuration that calculon tried, ranked by step time as in any search; making the rows is timed too."""
    start = time.process_time()
    plans = as_plans(space)
    found = ranked(Candidates(plans, ("tensor_parallel",)), catalog, objective_of("training", "step time"))
    processor = time.process_time() - start
    theirs = evaluate(plans.take([space.best]), catalog)
    distinct = len(set(zip(*(values.tolist() for values in plans.columns.values()), strict=True)))
    steps = (float(table["step_time"][0]) for table in (found.results, theirs))
    return Here(distinct, found.num_legal, processor, *steps)


def xlperf_search(catalog: Catalog, batch: int = 64) -> tuple[int, float, float]:
    """The search of the same run with its own candidates: plans tried, processor time, step of the best. [-, s, s]"""
    header = ["model", "accelerator", "num accelerators", "global batch size", "sequence length", "attention"]
    asked = {
        "tensor_overlap": np.array(["none", "gradients", "all"], dtype=object),
        "pipeline_overlap": np.array([0.0, 1.0]),
        "zero_stage": np.array([0.0, 1.0]),
        "context_parallel": np.array([1.0]),
    }
    row = ["GPT3-175B", "A100-SXM4-80GB", 64, batch, 2048, "standard"]
    plan = with_mapping(table_from_rows("training", header, [row]), asked)
    start = time.process_time()
    found = search(plan, catalog, "step time", values=asked)
    return found.num_tried, time.process_time() - start, float(found.results["step_time"][0])
