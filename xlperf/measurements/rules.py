"""Settings of published rows: stated by name, by documented defaults, or left open, and why a row is no plan."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from xlperf.base import resources
from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import factor
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.equations.plan.records import PRECISIONS
from xlperf.measurements.published import KINDS, PublishedPlans, published_columns

FILE = "published_defaults.csv"
_PATTERNS = ("software", "source_id", "source", "model", "gpu", "notes")
_HEADER = ("table", *_PATTERNS, "row", "settings", "reference")
_RANGE = re.compile(r"(?P<low>[\d.]*?)(?:\.\.(?P<high>[\d.]*))?")
_FURTHER = frozenset(
    "num_layers length_share run_waves draft_tokens_copies expert_mapping batch_wait_steps scheduler_limits".split()
)
# Settings outside the columns of a plan: of the model; mean over stated length; requests of a run over those in flight;
# draft tokens with attention replicas; a script's own split over all ranks (experts, ranks, or attention replicas too,
# copies); steps that a prompt waits for a full pass; limits of requests and tokens
_RELEASE = "release"
"""Of a training row, beside its columns: the release of its stack that its source names."""

Condition = tuple[str, "re.Pattern[str] | tuple[float, float]"]


@dataclass(frozen=True)
class Rule:
    """A documented default: its subject, its value and its reference."""

    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    rows: tuple[tuple[Condition, ...], ...]
    settings: Mapping[str, str]
    reference: str

    def number(self, text: Mapping[str, str]) -> str | None:
        """The number that a pattern finds in a row, "" without a pattern for one; None if the line does not match."""
        number = ""
        for name, pattern in self.patterns:
            match = pattern.match(text[name].casefold())
            if match is None:
                return None
            number = match.groupdict().get("n") or number
        either = not self.rows or any(all(_holds(text, *one) for one in conditions) for conditions in self.rows)
        return number if either else None


def _holds(text: Mapping[str, str], name: str, wanted: re.Pattern[str] | tuple[float, float]) -> bool:
    value = text.get(name, "")
    if isinstance(wanted, re.Pattern):
        return wanted.match(value.casefold()) is not None
    return bool(value) and wanted[0] <= number_of(value) <= wanted[1]


def default_of(kind: str, text: Mapping[str, str], setting: str) -> tuple[str, str]:
    """Documented default of a setting of a row as printed, "" for none, and its reference. A setting is a column of
    plans, perhaps for some rows only (``recompute of full``), or one of ``_FURTHER``.
    """
    for rule in _rules()[kind].get(setting, ()):
        number = rule.number(text)
        if number is not None:
            return rule.settings[setting].replace("{n}", number), rule.reference
    return "", ""


@cache
def _rules() -> Mapping[str, Mapping[str, tuple[Rule, ...]]]:
    return read_rules(resources.rows(f"measurements/{FILE}"))


def read_rules(lines: Iterable[Mapping[str, str]]) -> Mapping[str, Mapping[str, tuple[Rule, ...]]]:
    """Lines of the table as rules in their order, by kind of row and setting; InputError with every fault."""
    by_name: dict[str, dict[str, tuple[Rule, ...]]] = {kind: {} for kind in KINDS}
    faults: list[Fault] = []
    for number, line in enumerate(lines, 2):
        try:
            rule = _rule(line)
        except ValueError as wrong:
            faults.append(Fault(f"{FILE} [line {number}]", str(wrong)))
            continue
        for setting in rule.settings:
            by_name[line["table"]][setting] = (*by_name[line["table"]].get(setting, ()), rule)
    if faults:
        raise InputError(faults)
    return by_name


def _rule(line: Mapping[str, str]) -> Rule:
    if tuple(line) != _HEADER:
        raise ValueError(f"has the columns {', '.join(line)}; wanted are {', '.join(_HEADER)}")
    kind, blank = line["table"], [name for name in (*_PATTERNS, "settings", "reference") if not line[name]]
    if kind not in KINDS:
        raise ValueError(f'table is "{kind}"; one of {", ".join(KINDS)} is wanted')
    if blank:
        raise ValueError(f"{blank[0]} is blank")
    patterns = tuple((name, _pattern(line[name])) for name in _PATTERNS if line[name] != "*")
    lists = line["row"].split("|") if line["row"] else []
    rows = tuple(tuple(_condition(kind, *pair) for pair in _pairs(part)) for part in lists)
    pairs = _pairs(line["settings"])
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("gives a setting twice")
    columns = {column.name for column in table_schema(kind).columns} | _FURTHER
    for name in settings:
        if name.partition(" of ")[0] not in columns:
            raise ValueError(f'setting "{name}" is no column of a plan')
    return Rule(patterns, rows, settings, line["reference"])


def _pairs(words: str) -> list[tuple[str, str]]:
    """Names and values of ``name=value; name=value``.

    >>> _pairs("graph_tokens=; zero_stage = 3")
    [('graph_tokens', ''), ('zero_stage', '3')]
    """
    parts = [part.partition("=") for part in words.split(";")]
    for name, equals, _ in parts:
        if not (name.strip() and equals):
            raise ValueError(f'"{words.strip()}" is no list of name=value; separate them by semicolons')
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _pattern(words: str) -> re.Pattern[str]:
    """Alternatives with wildcards as one expression.

    >>> [bool(_pattern("b[23]00*|*zero1={n},*").match(words)) for words in ("b300-sxm", "mtp zero1=8, a", "gb200")]
    [True, True, False]
    """
    each = [fnmatch.translate(part.strip().casefold()) for part in words.split("|")]
    return re.compile("|".join(each).replace(re.escape("{n}"), r"(?P<n>\d+)"))


def _condition(kind: str, name: str, wanted: str) -> Condition:
    sort = published_columns()[kind].get(name, "text" if name == _RELEASE else "")
    if not sort:
        raise ValueError(f'row names "{name}", which is no column of {kind} rows')
    if sort == "text":
        return name, _pattern(wanted)
    match = _RANGE.fullmatch(wanted)
    if match is None or not any(match.groups()):
        raise ValueError(f'row wants {name} to be "{wanted}"; enter a number or a range such as 1..8')
    low = float(match["low"] or "-inf")
    return name, (low, low if match["high"] is None else float(match["high"] or math.inf))


class Refusal(Exception):
    """Why a published row is not a plan, in words."""


def stated_settings(kind: str, printed: str) -> dict[str, object]:
    """Columns of the plan that a row states as ``name=value``, separated by semicolons, in base units. Refusal for an
    unknown or repeated column, or a value that is no number or none of its choices.

    >>> stated_settings("inference", "run_requests=500; output variation=0.7; graphs=no; software=vllm")
    {'run_requests': 500.0, 'output_variation': 0.7, 'graphs': 0.0, 'software': 'vllm'}
    >>> stated_settings("training", "master_weights=none; offload activations=1; compiled=yes")
    {'master_weights': 'none', 'offload_activations': 1.0, 'compiled': 1.0}
    """
    columns = {column.name: column for column in table_schema(kind).columns}
    stated: dict[str, object] = {}
    for word in filter(None, map(str.strip, printed.split(";"))):
        name, _, value = (part.strip() for part in word.partition("="))
        column = columns.get(name.replace(" ", "_"))
        if column is None or not value:
            raise Refusal(f'settings: "{word}" is no column of a plan with its value')
        if column.name in stated:
            raise Refusal(f'settings: "{word}" gives a column twice')
        given: object = value
        if column.choices and value not in column.choices:
            raise Refusal(f'settings: "{word}" is none of {", ".join(column.choices)}')
        if not column.is_text:
            given = {"yes": 1.0, "no": 0.0}.get(value.casefold(), number_of(value)) * unit_of(column).factor
            if math.isnan(given):
                raise Refusal(f'settings: "{word}" needs a number')
        stated[column.name] = given
    return stated


SETTINGS = ("max_running_batch", "prefill_tokens")
_SAME = {
    "prompt_length": "prompt_length",
    "output_length": "output_length",
    "decode_ranks": "tensor_parallel",
    "decode_copies": "data_parallel_attention",
}
"""Columns of the recipes that are columns of plans under another name."""


@cache
def _recipes() -> tuple[dict[str, str], ...]:
    return tuple(resources.rows("measurements/published_pools.csv"))


def recipe_settings(plan: Mapping[str, object], workers: tuple[float, float]) -> dict[str, tuple[float, str]]:
    """Settings, each with its reference, of the public recipes of a plan with separate pools of ``workers`` (prefill,
    decode). Recipes that disagree on a setting leave it open.
    """
    gpu = str(plan["accelerator"]).casefold().split("-")[0]
    stated = (str(plan["software"]), gpu, PRECISIONS[str(plan["precision"])].peak)
    named = ("software", "gpu", "precision")
    counts = dict(zip(("prefill_workers", "decode_workers"), workers, strict=True))
    own = counts | {name: float(str(plan[column])) for name, column in _SAME.items()}
    results = [
        recipe
        for recipe in _recipes()
        if tuple(recipe[name] for name in named) == stated
        and all(float(recipe[name]) == value for name, value in own.items())
        and f"{float(str(plan['concurrency'])):g}" in recipe["concurrencies"].split()
    ]
    values: dict[str, tuple[float, str]] = {}
    for name in SETTINGS:
        said = {recipe[name] for recipe in results}
        if len(said) == 1 and (value := said.pop()):
            values[name] = float(value), f"NVIDIA srt-slurm, recipes/{results[0]['reference']}"
    return values


_ENGINES = {name: name for name in "nim nemo tensorrt-llm vllm sglang turbomind jax deepseek".split()}
_ENGINES["trtllm"] = "tensorrt-llm"
_FIRST_TENSORRT = re.compile(r"tensorrt-llm v?0\.[0-7](\.| |$)")
"""Before XQA, whose warps share the keys of grouped queries: TensorRT-LLM blog of January 2024, release 0.8."""
_FIRST_VLLM = re.compile(r"vllm 0\.[0-5](\.|$)")
_VLLM_BEFORE_V1 = re.compile(r"vllm 0\.[67](\.| |$)")
_VLLM_IN_TURN = re.compile(r"vllm 0\.([89]|1[0-3])(\.| |$)")
"""One step at a time: asynchronous scheduling is the default from 0.14 on [vLLM release notes, v0.14.0]."""
_FIRST_SGLANG = re.compile(r"sglang v?0\.([0-3]|4\.[0-4])(\.| |$)")
"""Before FlashAttention-3 decodes latent attention by default: SGLang pull request 5571, since 0.4.5.post1."""
_OF_AMD = "amd's build"


def engine_of(framework: str) -> str:
    """Serving engine, without its version, as the calibration calls it.

    >>> engine_of("trtllm 1.0.0rc3"), engine_of("NeMo/TRT-LLM"), engine_of("vLLM"), engine_of("abc 2")
    ('tensorrt-llm', 'nemo', 'vllm', 'abc')
    >>> engine_of("TensorRT-LLM 0.5"), engine_of("vLLM 0.5.4"), engine_of("vLLM 0.6.3"), engine_of("vLLM 0.12.0")
    ('tensorrt-llm-0', 'vllm-0', 'vllm-0.6', 'vllm-0.8')
    >>> engine_of("TensorRT-LLM 0.9.0"), engine_of("SGLang 0.4.3"), engine_of("SGLang 0.4.6.post1")
    ('tensorrt-llm', 'sglang-0.4', 'sglang')
    """
    words = framework.casefold()
    if _FIRST_TENSORRT.match(words):
        return "tensorrt-llm-0"  # the versions of 2023 have neither the kernels nor the runtime of later ones
    if _FIRST_VLLM.match(words):
        return "vllm-0"  # until 0.5 one process handled every token of every request between two steps
    if _VLLM_BEFORE_V1.match(words) and _OF_AMD not in words:
        return "vllm-0.6"  # its second scheduler is the default from 0.8 on; AMD's builds had what came to AMD later
    if _VLLM_IN_TURN.match(words):
        return "vllm-0.8"
    if _FIRST_SGLANG.match(words):
        return "sglang-0.4"
    for start, engine in _ENGINES.items():
        if words.startswith(start):
            return engine
    return words.split()[0] if words else ""


BEYOND_PEAK = (
    "its own figures need {} times the peak of its accelerators for the prompts alone: "
    "replicas or hits in a cache are not stated"
)


def prefill_utilization(plans: PublishedPlans) -> Array:
    r"""Prefill FLOP/s that a loaded deployment needs by its own figures, over the peak of its accelerators.

    .. math:: u = \frac{c}{t_{first} + (o - 1) t_{token}} \cdot \frac{2 P i}{n F}

    with c requests in flight, prompts of i and outputs of o tokens, P active parameters and n accelerators of peak F;
    attention adds to it (J. D. C. Little, "A proof for the queuing formula L = lambda W", Oper. Res. 9(3), 1961,
    doi:10.1287/opre.9.3.383). A batch that starts at once prefills all prompts before the last output, o - 1 steps that
    each read all weights W from a memory of bandwidth B:

    .. math:: u = \frac{b}{t - (o - 1) W / (n B)} \cdot \frac{2 P i + 2 i^2 h l}{n F}

    with the attention of l layers of width h. NaN if a figure is not stated.
    """
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    models = catalog.rows("models", table.text("model"), table, "model")
    accelerators = catalog.rows("accelerators", table.text("accelerator"), table, "accelerator")
    size = catalog.tables["models"]
    active = size.number("stated_active_parameters")[models]
    parameters = np.where(np.isnan(active), size.number("stated_parameters")[models], active)
    peak = np.full(len(table), np.nan)
    for name in set(table.filled("precision").tolist()):
        column = f"peak_flop_rate_{PRECISIONS[str(name)].peak}" if str(name) in PRECISIONS else ""
        if column in catalog.tables["accelerators"].columns:
            chosen = table.filled("precision") == name
            peak[chosen] = catalog.tables["accelerators"].number(column)[accelerators][chosen]
    stated = {name: number[name][plans.index] for name in ("concurrency", "isl", "osl", "ttft_ms", "tpot_ms")}
    duration = (stated["ttft_ms"] + (stated["osl"] - 1.0) * stated["tpot_ms"]) * factor("ms")
    rate = stated["concurrency"] / duration
    loaded = 2.0 * parameters * stated["isl"] * rate / (peak * table.number("num_accelerators"))
    return np.where(np.isnan(loaded), _batch_utilization(plans, models, accelerators, parameters, peak), loaded)


def _batch_utilization(
    plans: PublishedPlans, models: np.ndarray, accelerators: np.ndarray, parameters: Array, peak: Array
) -> Array:
    """Utilisation of static batches with a stated latency, NaN if decoding alone takes longer."""
    table, catalog, number = plans.plans, plans.catalog, plans.published.number
    size = catalog.tables["models"]
    prompt, output, latency = (number[name][plans.index] for name in ("isl", "osl", "latency_s"))
    wide = size.number("hidden_size")[models] * size.number("num_layers")[models]
    flop = table.number("batch_size") * prompt * (2.0 * parameters + 2.0 * prompt * wide)
    stored = np.array([PRECISIONS[str(name)].served_size for name in table.filled("precision").tolist()])
    ranks = table.number("num_accelerators")
    read = parameters * stored / (ranks * catalog.tables["accelerators"].number("memory_bandwidth")[accelerators])
    left = np.where(table.filled("mode") == "static", latency - (output - 1.0) * read, np.nan)
    return np.asarray(flop / (peak * ranks) / np.where(left > 0.0, left, np.nan))


def without_infeasible(plans: PublishedPlans) -> PublishedPlans:
    """Plans of inference rows whose own figures are feasible; the rows of the others get the reason."""
    share = prefill_utilization(plans)
    kept = np.flatnonzero(~(share > 1.0))
    reasons = np.array(plans.reasons, dtype=object)
    for plan in np.flatnonzero(share > 1.0).tolist():
        reasons[plans.index[plan]] = BEYOND_PEAK.format(f"{share[plan]:.1f}")
    index, reference = plans.index[kept], plans.reference[kept]
    return replace(plans, plans=plans.plans.take(kept), index=index, reference=reference, reasons=reasons)
