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
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engine import processor_seconds
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.table import Table, nowhere
from xlperf.engine import evaluate
from xlperf.explore.candidates import with_mapping
from xlperf.explore.search import search

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


class Chosen(NamedTuple):
    """Best execution of calculon's own space: configurations tried, processor time, and its settings. [-, s]"""

    number: int
    processor: float
    best: dict[str, Any]


def calculon_space(folder: Path, accelerators: int = 64, batch: int = 64) -> Chosen:
    """calculon's own space of GPT-3 175B on A100 without offload; groups within a server use its network.

    Its loops over degrees, interleaving, recomputation, sharding, kinds and overlap of communication and micro-batches,
    as its command llm-optimal-execution has them, with a silent logger.
    """
    sys.path.insert(0, str(folder))
    sys.modules.setdefault("psutil", ModuleType("psutil"))
    sys.modules["psutil"].cpu_count = lambda logical=False: 1  # type: ignore[attr-defined]
    import calculon
    from calculon.llm import Llm, System
    from calculon.llm.all_executions import AllExecutions

    logger = logging.getLogger("calculon.silent")
    logger.setLevel(logging.CRITICAL)
    logger.propagate = False
    description = calculon.io.read_json_file(str(folder / "systems" / "a100_80g.json"))
    description["mem2"]["GiB"], networks = 0, description["networks"]
    application = Llm.Application(calculon.io.read_json_file(str(folder / "models" / "gpt3-175B.json")))
    system = System({**description, "networks": networks})
    single = System({**description, "networks": networks[:1]})
    fields = Llm.Execution.fields()
    number, best, rate = 0, dict[str, Any](), 0.0
    start = time.process_time()
    for values in AllExecutions.all_executions(application, single, accelerators, batch, "float16", [True]):
        settings = dict(zip(fields, values, strict=True))
        reach = 1
        for group in ("tensor_par", "data_par", "pipeline_par"):
            reach *= settings[group]
            settings[f"{group}_net"] = 0 if reach <= networks[0]["size"] and settings[group] > 1 else 1
        number += 1
        one = Llm(application, logger)
        try:
            one.compile(system, Llm.Execution.from_json(settings))
            one.run(system)
        except (Llm.Error, AssertionError):
            continue
        if one.get_sample_rate() > rate:
            rate, best = one.get_sample_rate(), settings
    return Chosen(number, time.process_time() - start, best)


def xlperf_space(catalog: Catalog, best: dict[str, Any]) -> tuple[int, float, float, float]:
    """The same space here: plans tried, processor time, step time of the best, and of calculon's best. [-, s, s, s]"""
    header = ["model", "accelerator", "num accelerators", "global batch size", "sequence length", "attention"]
    row = ["GPT3-175B", "A100-SXM4-80GB", best["num_procs"], best["batch_size"], 2048, "standard"]
    words = {"none": "none", "ring": "gradients", "pipe": "all"}
    recompute = {"full": "full", "attn_only": "selective", "none": "none"}
    theirs = {
        "tensor parallel": best["tensor_par"], "pipeline parallel": best["pipeline_par"],
        "virtual pipeline": best["pipeline_interleaving"], "micro batch size": best["microbatch_size"],
        "recompute": recompute[best["activation_recompute"]], "zero stage": int(best["optimizer_sharding"]),
        "sequence parallel": "yes" if best["tensor_par_comm_type"] == "rs_ag" else "no",
        "tensor overlap": words[best["tensor_par_overlap"]], "pipeline overlap": "yes",
    }  # fmt: skip
    own = table_from_rows("training", [*header, *theirs], [[*row, *theirs.values()]])
    asked = {
        "tensor_overlap": np.array([*words.values()], dtype=object),
        "pipeline_overlap": np.array([0.0, 1.0]),
        "zero_stage": np.array([0.0, 1.0]),
        "context_parallel": np.array([1.0]),
    }
    plan = with_mapping(table_from_rows("training", header, [row]), asked)
    start = time.process_time()
    found = search(plan, catalog, "step time", values=asked)
    seconds = time.process_time() - start
    scored = evaluate(own, catalog)
    return found.num_tried, seconds, float(found.results["step_time"][0]), float(scored["step_time"][0])
