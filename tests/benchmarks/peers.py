"""Published times beside the predictions of xlperf and of other public tools, in one process.

The rows are those of the group ``papers`` of the shipped ``validation.xlsx``; no constant of xlperf was fitted on them:
the step times of Korthikanti et al. (arXiv:2205.05198, table 5) beside calculon, and the Llama-2 latencies at batch 1
(the reference set of arXiv:2407.14645) beside GenZ and llm-analysis. The latter two are run as they come, with the
efficiencies of 1 that they default to, and once more with the one efficiency that suits these very rows best.

None of them is part of this project. calculon: the folder of a checkout (github.com/calculon-ai/calculon). GenZ
(github.com/abhibambhaniya/GenZ-LLM-Analyzer) and llm-analysis (github.com/cli99/llm-analysis): installed in the
environment that runs this.
"""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import rival
from xlperf.base.resources import workbook
from xlperf.calibrate.validate import records_of
from xlperf.catalog.catalog import Catalog
from xlperf.measurements.published import Published, read_published

TRAINING, SERVING = "korthikanti2022", "imec_nemo_llama2"
EFFICIENCIES = [share / 20 for share in range(6, 21)]
_RECOMPUTE = {"selective": "seqsel", "full": "full"}
_CALCULON = {"Megatron-22B": "megatron-22B", "GPT3-175B": "gpt3-175B", "Megatron-530B": "turing-530B"}
_CALCULON |= {"Megatron-1T": "megatron-1T"}
_GENZ = {"Llama2-7B": "llama2_7b", "Llama2-13B": "llama2_13b", "Llama2-70B": "llama2_70b"}
_GENZ |= {"A100-SXM4-80GB": "A100_80GB_GPU", "H100-SXM-80GB": "H100_GPU"}
_LLM_ANALYSIS = {"Llama2-7B": "NousResearch_Llama-2-7b-hf", "Llama2-13B": "decapoda-research_llama-13b-hf"}
_LLM_ANALYSIS |= {"Llama2-70B": "upstage_Llama-2-70b-instruct-v2"}
_LLM_ANALYSIS |= {"A100-SXM4-80GB": "a100-sxm-80gb", "H100-SXM-80GB": "h100-sxm-80gb"}


class Row(NamedTuple):
    """A published row: what it states, what was measured and what xlperf predicts. [s]"""

    text: Mapping[str, str]
    measured: float
    predicted: float


class Errors(NamedTuple):
    """|predicted / measured - 1| over rows, as fractions."""

    median: float
    mean: float
    worst: float


Tool = Callable[[Row], float]
"""Time that a tool predicts of a row. [s]"""


@cache
def _published() -> list[Published]:
    return read_published(workbook("validation.xlsx"))


def rows_of(catalog: Catalog, source: str, metric: str) -> list[Row]:
    """The rows of a source with a metric in seconds, and xlperf's prediction of them."""
    found = []
    for published in _published():
        chosen = published.take([row for row, name in enumerate(published.text["source_id"]) if name == source])
        place = {name: row for row, name in enumerate(chosen.text["row_id"])}
        for record in records_of([chosen], catalog):
            if record.metric == metric and record.group == "papers":
                text = {column: values[place[record.row_id]] for column, values in chosen.text.items()}
                found.append(Row(text, record.measured, record.predicted))
    return found


def errors(rows: Sequence[Row], predicted: Sequence[float]) -> Errors:
    """Errors of predictions of the rows."""
    found = [abs(time / row.measured - 1.0) for time, row in zip(predicted, rows, strict=True)]
    return Errors(statistics.median(found), statistics.fmean(found), max(found))


def calculon(folder: Path) -> Tool:
    """Step times of calculon, from the files of its own validation."""
    times = rival.calculon_side(folder, 1, 1).step_times

    def step_time(row: Row) -> float:
        return times[f"{_CALCULON[row.text['model']]} {_RECOMPUTE[row.text['recompute']]}"]

    return step_time


def genz(efficiency: float) -> Tool:
    """Latency by GenZ: the prefill, and the token in the middle of the output for every further one."""
    from GenZ import decode_moddeling, prefill_moddeling

    def latency(row: Row) -> float:
        prompt, output = (int(float(row.text[name])) for name in ("isl", "osl"))
        setting = {
            "model": _GENZ[row.text["model"]],
            "system_name": _GENZ[row.text["gpu"]],
            "tensor_parallel": int(float(row.text["tp"])),
            "batch_size": 1,
            "bits": "bf16",
            "system_eff": efficiency,
        }
        with _silence():
            first = prefill_moddeling(input_tokens=prompt, **setting)["Latency"]
            next_one = decode_moddeling(input_tokens=prompt, output_tokens=output // 2, Bb=1, **setting)["Latency"]
        return (first + next_one * (output - 1)) / 1e3

    return latency


def llm_analysis(efficiency: float) -> Tool:
    """Latency by llm-analysis."""
    from llm_analysis.analysis import infer

    def latency(row: Row) -> float:
        with _silence():
            found = infer(
                model_name=_LLM_ANALYSIS[row.text["model"]],
                gpu_name=_LLM_ANALYSIS[row.text["gpu"]],
                batch_size_per_gpu=1,
                tp_size=int(float(row.text["tp"])),
                seq_len=int(float(row.text["isl"])),
                num_tokens_to_generate=int(float(row.text["osl"])),
                flops_efficiency=efficiency,
                hbm_memory_efficiency=efficiency,
                log_level="CRITICAL",
            )
        return float(found["total_latency"])

    return latency


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _show(name: str, found: Errors) -> None:
    print(f"  {name:<44} {found.median:>7.1%} {found.mean:>7.1%} {found.worst:>7.1%}")


def show(catalog: Catalog, folder: Path | None) -> None:
    """Print the errors of every tool that is there."""
    rows = rows_of(catalog, TRAINING, "iter_time_s")
    print(f"{len(rows)} step times of Korthikanti et al.: median, mean and worst error")
    _show("xlperf", errors(rows, [row.predicted for row in rows]))
    if folder is None:
        print("  calculon: skipped, because no checkout was given (--calculon FOLDER)")
    else:
        _show("calculon", errors(rows, list(map(calculon(folder), rows))))
    rows = rows_of(catalog, SERVING, "latency_s")
    print(f"{len(rows)} latencies of Llama 2 at batch 1: median, mean and worst error")
    _show("xlperf", errors(rows, [row.predicted for row in rows]))
    for name, tool in (("GenZ", genz), ("llm-analysis", llm_analysis)):
        try:
            _show(f"{name}, as it comes", errors(rows, list(map(tool(1.0), rows))))
        except ImportError as problem:
            print(f"  {name}: skipped, because it is not installed ({problem})")
            continue
        by_share = {share: errors(rows, list(map(tool(share), rows))) for share in EFFICIENCIES}
        best = min(by_share, key=lambda share: by_share[share].mean)
        _show(f"{name}, efficiency {best:.2f} found on these rows", by_share[best])
