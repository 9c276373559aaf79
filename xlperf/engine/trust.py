"""Distance of plans from published runs: the badge of a plan, and the widening of its bands.

``catalog/measured.csv`` has a row per model and accelerator with published runs, and their ranges of accelerators,
tokens in work per accelerator, and sequence length. The distance of a plan is a sum (heuristic, this work):

- accelerator: 1 for another one of a measured generation, 2 for an unknown generation;
- model: 1/2 if measured elsewhere, 3/4 if never, plus 1/2 per doubling beyond measured sizes; 1/2 for layers of a
  measured size with other attention, or if only other software ran it there;
- software: 2 if no published run or calibration row names it, else 1/2 per condition (generation, format, kind of
  layers, batching) in which only other software was measured; 2 per condition without any measurement;
- 1/4 per doubling beyond the ranges of the runs.

Below 1/2 a plan is measured, below 1 interpolated, else extrapolated. The 80 % bands hold for unmeasured models in
sources that the fit has read: a further unit of distance widens their logarithm by ``widening``, an unread source or
software by ``read_source`` or ``source``, with experts also by ``mixture_source`` (errors: ``workbooks/accuracy.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, added, coded, exp, log2
from xlperf.base.resources import cells
from xlperf.catalog.calibration import is_release, same_kernels
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import software_title, table_schema
from xlperf.catalog.table import Table, Words, copied_name
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.operators import parameter_count
from xlperf.equations.plan.records import half_width

BADGES = ("MEASURED", "INTERPOLATED", "EXTRAPOLATED")
# Axes of published runs: accelerators, tokens in work per accelerator (of a training step or decode step), length
RANGES = ("num_accelerators", "tokens_in_work", "length")
# Columns that define the size of a model's layers, besides sparse attention
_SHAPE = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_experts")
_WORDS = {"num_accelerators": "number of accelerators", "tokens_in_work": "load", "length": "length of sequences"}
_UNITS = {
    "tokens_in_work": {"training": " tokens of a step per accelerator", "inference": " tokens at once per accelerator"},
    "length": {"training": " tokens", "inference": " tokens"},
}
_BADGE_ENDS = (0.5, 1.0)
_SAME_SIZE = 0.3  # difference in active parameters below which models of equal layers count as one [doublings]
_MACHINE = {"accelerator": 0.0, "generation": 1.0, "": 2.0}
_ELSEWHERE, _NEVER, _DOUBLING, _MOST = 0.5, 0.75, 0.25, 2.0
# Distance of unmeasured software [-]. Leaving a source of training runs out of the fit raises the 90 % quantile of its
# error by 1.3 to 5 (five sources), leaving an engine out by 1 to 1.7 (three)
SOFTWARE = 2.0
NOT_SHOWN = frozenset(("distance", "unread"))  # columns of `trust` for the bands alone
_CALIBRATED = {"training": "training_software", "inference": "serving_software"}


LACKED = 0.5  # distance per condition in which only other software was measured; four equal unmeasured software [-]
UNKNOWN = 2.0  # distance per condition without any measurement, generations excluded [-]
# Precisions with similar GEMMs and conversions
_FORMATS = {
    "fp16": "16-bit", "bf16": "16-bit", "fp8-current": "fp8", "fp8-block": "fp8", "fp8-tensor": "fp8", "mxfp8": "fp8",
    "mxfp4": "fp4", "int4-128": "int4", "int4-64": "int4", "int8-128": "int8", "auto": "16-bit",
}  # fmt: skip
_LINEAR = ("linear", "mamba", "kimi delta", "lightning", "rwkv", "convolution")
_LOADS = {"static": "in static batches", "continuous": "with continuous batching", "disaggregated": "in separate pools"}
_CONDITION_WORDS = {"generation": "on {}", "format": "in {}", "layers": "for models {}", "load": "{}"}


class Condition(NamedTuple):
    """Conditions of a plan or of published runs; ``load`` is blank in training."""

    generation: str
    format: str
    load: str
    layers: str


def layers_of(shape: str) -> str:
    """Kind of layers of a shape of :func:`model_traits`.

    >>> layers_of("4096/14336/32/nan 8 heads"), layers_of("4096/1024/32/512 2 heads 3 linear : 1 full")
    ('dense', 'linear with experts')
    """
    size, _, attention = shape.partition(" ")
    kinds = ["linear"] if any(word in attention.casefold() for word in _LINEAR) else []
    kinds += ["sparse"] if size.startswith("sparse/") else []
    mixture = not size.endswith("/nan")
    return " ".join([*kinds, "with experts"]) if mixture else " ".join([*kinds, "dense"])


@cache
def _format_codes(kind: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """Code of the format of each precision, and the formats."""
    column = table_schema(kind).by_name["precision"]
    formats = [_FORMATS.get(word, word) for word in column.choices]
    order = tuple(dict.fromkeys(formats))
    codes = {word: order.index(name) for word, name in zip(column.choices, formats, strict=True)}
    return {**codes, "": codes[str(column.default)]}, order


def format_and_load(plans: Table) -> Words:
    """Format of each plan's layers and, in serving, its batching as one word: ``fp8/continuous``."""
    codes, formats = _format_codes(plans.kind)
    unknown = len(formats)
    if "precision" in plans:
        format_code = np.array([codes.get(str(word), unknown) for word in plans["precision"].tolist()], dtype=np.int64)
    else:
        format_code = np.full(len(plans), codes[""], dtype=np.int64)
    if plans.kind == "training":
        return Words(format_code, [f"{name}/" for name in (*formats, "")])
    modes = {name: code for code, name in enumerate(_LOADS)}
    load = np.array([modes.get(str(mode), len(_LOADS)) for mode in plans.filled("mode").tolist()], dtype=np.int64)
    words = [f"{name}/{mode}" for name in (*formats, "") for mode in (*_LOADS, "")]
    return Words(format_code * (len(_LOADS) + 1) + load, words)


@lru_cache(maxsize=65_536)
def lacked(known: Sequence[Condition], asked: Condition) -> tuple[str, ...]:
    """Conditions of a plan, unless blank, in which none of the ``known`` runs were."""
    pairs = zip(Condition._fields, asked, strict=True)
    return tuple(name for name, value in pairs if value and all(getattr(run, name) != value for run in known))


def in_words(asked: Condition, names: Sequence[str]) -> str:
    """Conditions of a plan in words.

    >>> in_words(Condition("hopper", "fp8", "static", "dense"), ["generation", "load"])
    'on hopper nor in static batches'
    """
    values = asked._asdict()
    return " nor ".join(_CONDITION_WORDS[name].format(_LOADS.get(values[name], values[name])) for name in names)


class Measured(NamedTuple):
    """Published runs of a model on an accelerator."""

    kind: str
    model: str
    shape: str  # of the model's layers, as in :func:`model_traits`
    parameters: float  # active parameters per token [-]
    accelerator: str
    generation: str
    rows: int  # number of runs
    error: float  # median error with the model left out of the fit [-]
    least: tuple[str, ...]  # lower ends of RANGES
    most: tuple[str, ...]  # upper ends
    software: tuple[str, ...]
    conditions: tuple[tuple[str, Condition], ...]  # software with each of its conditions


@dataclass(frozen=True)
class _Pair:
    """Nearest published runs of a model on an accelerator."""

    model: float  # distance of the model [-]
    machine: float  # distance of the accelerator [-]
    low: tuple[float, ...]  # lower ends of RANGES
    high: tuple[float, ...]  # upper ends
    words: str  # the runs in words
    software: frozenset[str] = frozenset()  # that ran this model there
    generation: str = ""  # of the accelerator, if measured
    layers: str = ""  # kind of the model's layers
    # Results for plans of this pair, computed once: by software and condition, and words by the axis outside the ranges
    stacks: dict[tuple[str, str], _OfStack] = field(default_factory=dict, init=False, compare=False)
    reasons: dict[int, str] = field(default_factory=dict, init=False, compare=False)


class _OfStack(NamedTuple):
    """Conditions that software lacks for plans of a pair, in one condition of them."""

    lacking: float  # conditions that it lacks [-]
    nobody: float  # conditions without any measurement [-]
    unread: float  # 1: it has no published run of the model on the accelerator [-]
    words: str


@cache
def measured_runs(kind: str) -> tuple[Measured, ...]:
    """Rows of ``measured.csv`` of a kind of plan."""
    header, lines = cells("catalog/measured.csv")
    at = {name: header.index(name) for name in header}
    least, most = ([at[f"{end} {name}"] for name in RANGES] for end in ("least", "most"))
    kinds, shapes, generations, conditions = (at[name] for name in ("kind", "shape", "generation", "conditions"))

    def measured(line: list[str]) -> Measured:
        generation, layers = line[generations].casefold(), layers_of(line[shapes])
        parts = [word.split("/") for word in line[conditions].split(" ")]
        return Measured(
            kind,
            line[at["model"]],
            line[shapes],
            float(line[at["active parameters"]]),
            line[at["accelerator"]].casefold(),
            generation,
            int(line[at["rows"]]),
            float(line[at["median error"]]),
            tuple([line[end] for end in least]),
            tuple([line[end] for end in most]),
            tuple(line[at["software"]].split(" ")),
            tuple([(name, Condition(generation, form, load, layers)) for name, form, load in parts]),
        )

    return tuple([measured(line) for line in lines if line[kinds] == kind])


_actives: WeakKeyDictionary[Table, Array] = WeakKeyDictionary()
# Nearest runs by kind of plan, model and accelerator
_pairs: WeakKeyDictionary[Catalog, dict[tuple[str, int], _Pair]] = WeakKeyDictionary()


def model_traits(catalog: Catalog) -> tuple[list[str], Array]:
    """Shape of the layers of every model, attention included, and active parameters per token. [-]"""
    models = catalog.tables["models"]
    return _shapes(models, range(len(models))), _active(catalog)


def _active(catalog: Catalog) -> Array:
    """Active parameters per token of every model. [-]"""
    models = catalog.tables["models"]
    if models not in _actives:
        with np.errstate(all="ignore"):
            _actives[models] = parameter_count(catalog_models(catalog)[0], experts_per_token=True)
    return _actives[models]


def _shapes(models: Table, rows: Sequence[int]) -> list[str]:
    """Layer shapes of models: sparse attention, widths, experts, and attention."""
    at = list(rows)
    columns = np.stack([models.number(name)[at] for name in _SHAPE], axis=-1)
    sparse = models.filled("attention_type")[at] == "sparse"
    return [
        "sparse/" * bool(is_sparse) + "/".join(f"{value:g}" for value in row) + f" {attention}"
        for row, is_sparse, attention in zip(columns.tolist(), sparse.tolist(), _attention(models, at), strict=True)
    ]


def _attention(models: Table, at: list[int]) -> list[str]:
    """Attention of each model: KV heads or a latent vector, windows, pattern of layer kinds."""
    heads, groups = models.number("num_attention_heads")[at], models.number("num_query_groups")[at]
    latent, windows = models.number("kv_lora_rank")[at] > 0.0, models.number("sliding_window")[at]
    kv_heads = np.where(np.isnan(groups), heads, groups).tolist()
    parts = zip(latent.tolist(), kv_heads, windows.tolist(), models.text("attention_pattern")[at], strict=True)
    return [
        ("latent" if is_latent else f"{group:g} heads")
        + f" {window:g} window" * (window > 0.0)
        + f" {pattern}" * bool(pattern)
        for is_latent, group, window, pattern in parts
    ]


def layer_size(shape: str) -> str:
    """Size of the layers of a shape without their attention.

    >>> layer_size("4096/14336/32/nan 8 heads"), layer_size("sparse/6144/12288/64/256 latent")
    ('4096/14336/32/nan', 'sparse/6144/12288/64/256')
    """
    return shape.partition(" ")[0]


def coordinates(plans: Table, results: Mapping[str, Array], length: Array | None = None) -> Array:
    """Values of plans on the axes of :data:`RANGES`, (ranges, rows); ``length``: sequence length if defaults apply."""
    training = plans.kind == "training"
    time = results["step_time" if training else "tpot"]
    if length is None and training:
        length = plans.filled("sequence_length")
    elif length is None:
        length = plans.number("prompt_length") + plans.filled("output_length")
    work = results["tokens_per_second_per_accelerator"] * time
    return np.stack([plans.number("num_accelerators"), work, length])


def trust(
    kind: str,
    catalog: Catalog,
    models: np.ndarray,
    accelerators: np.ndarray,
    software: Words,
    conditions: Words,
    at: Array,
) -> dict[str, np.ndarray]:
    """Badge of plans, nearest runs in words, widening ``distance`` and whether they are ``unread``, (rows,), from
    ``conditions`` of :func:`format_and_load` and :func:`coordinates`.
    """
    # Pairs of model and accelerator, each looked up once.
    count = len(catalog.tables["accelerators"])
    accelerators = _first_copies(catalog, accelerators)
    keys = (models * count + accelerators).tolist()
    place = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    codes = np.array(list(map(place.__getitem__, keys)), dtype=np.int64)
    known = _pairs.setdefault(catalog, {})
    pairs = [known[kind, key] if (kind, key) in known else _pair(kind, catalog, *divmod(key, count)) for key in place]
    known.update(zip(((kind, key) for key in place), pairs, strict=True))
    # Distance beyond the ranges, and the parts of model, machine and software.
    low, high = (
        np.array([getattr(pair, end) for pair in pairs]).reshape(-1, len(RANGES)).T[:, codes] for end in ("low", "high")
    )
    with np.errstate(all="ignore"):
        beyond = log2(np.maximum(np.maximum(at / high, low / at), 1.0))
        beyond = np.where(np.isfinite(beyond), beyond, 0.0)
    parts = np.minimum(_DOUBLING * beyond, _MOST)
    far = parts.sum(axis=0)
    model, machine = (np.array([getattr(pair, part) for pair in pairs])[codes] for part in ("model", "machine"))
    never = np.array([not _measured_software(kind, catalog, word) for word in software.words])[software.codes]
    lacking, nobody, unread, software_text = _of_software(kind, pairs, codes, software, conditions)
    model = np.maximum(model, _ELSEWHERE * unread)
    stack = np.where(never, SOFTWARE, LACKED * lacking) + UNKNOWN * nobody
    # Badges, and in words the axis that makes one worse.
    badge = np.searchsorted(np.array(_BADGE_ENDS), model + machine + stack + far, side="right")
    before = np.searchsorted(np.array(_BADGE_ENDS), model + machine + stack, side="right")
    outside = np.where(badge > before, 1 + np.argmax(parts, axis=0), 0)
    reason = outside * len(pairs) + codes
    words = np.full((1 + len(RANGES)) * len(pairs), "", dtype=object)
    for code in np.flatnonzero(np.bincount(reason.astype(np.intp), minlength=len(words))).tolist():
        which, pair = divmod(code, len(pairs))
        known_words = pairs[pair].reasons
        if which not in known_words:
            known_words[which] = pairs[pair].words + (_beyond(pairs[pair], which - 1, kind) if which else "")
        words[code] = known_words[which]
    text = words[reason] if software_text is None else words[reason] + software_text
    for row in np.flatnonzero(never).tolist():
        text[row] += f"; no published run with {software.words[software.codes[row]]}{_others(kind)}"
    return {
        "trust": np.array(BADGES, dtype=object)[badge],
        "trust_reason": text,
        "distance": np.maximum(model - _NEVER, 0.0) + machine + stack + far,
        "unread": np.where(never, 1.0, unread),
    }


def _first_copies(catalog: Catalog, accelerators: np.ndarray) -> np.ndarray:
    """For each row the first row that is a copy of the same accelerator: a sweep of its numbers has one a sample."""
    distinct = list(dict.fromkeys(accelerators.tolist()))
    if len(distinct) == 1:
        return accelerators
    chips = catalog.tables["accelerators"]
    names, generations = chips["accelerator"].tolist(), chips.text("generation").tolist()
    first: dict[tuple[str, str], int] = {}
    same = {
        row: first.setdefault((copied_name(str(names[row])), str(generations[row]).casefold()), row) for row in distinct
    }
    return np.array(list(map(same.__getitem__, accelerators.tolist())), dtype=accelerators.dtype)


def _of_software(
    kind: str, pairs: Sequence[_Pair], codes: np.ndarray, software: Words, conditions: Words
) -> tuple[Array, Array, Array, np.ndarray | None]:
    """Conditions that a plan's software lacks, conditions without any measurement, unread plans, and these in words."""
    combined = (codes * len(software.words) + software.codes) * len(conditions.words) + conditions.codes
    place, number = coded(combined)
    distinct = np.empty(number, dtype=np.int64)
    distinct[place] = combined
    found = []
    for code in distinct.tolist():
        rest, condition = divmod(code, len(conditions.words))
        at, name = divmod(rest, len(software.words))
        pair, key = pairs[at], (software.words[name], conditions.words[condition])
        if key not in pair.stacks:
            pair.stacks[key] = _of_stack(kind, pair, *key)
        found.append(pair.stacks[key])
    words = [each.words for each in found]
    texts = np.array(words, dtype=object)[place] if any(words) else None
    lacking, nowhere, unread = np.array([each[:3] for each in found], dtype=float).reshape(-1, 3).T[:, place]
    return lacking, nowhere, unread, texts


def _of_stack(kind: str, pair: _Pair, software: str, condition: str) -> _OfStack:
    """Conditions that software lacks for plans of a pair; ``condition``: their format and load."""
    measured, stack = _conditions_of(kind), software.casefold()
    form, load = condition.split("/")
    asked = Condition(pair.generation, form, load, pair.layers)
    nobody = lacked(measured[""], asked)
    new = [name for name in lacked(measured.get(stack, measured[""]), asked) if name not in nobody]
    unread = stack in measured and stack not in pair.software
    title = software_title(stack)
    words = (
        f"; none by {title}" * (unread and bool(pair.software))
        + (f"; {title} was never measured {in_words(asked, new)}" if new else "")
        + (f"; nothing was measured {in_words(asked, nobody)}" if nobody else "")
    )
    return _OfStack(len(new), len(nobody), float(unread), words)


@cache
def _conditions_of(kind: str) -> dict[str, tuple[Condition, ...]]:
    """Conditions in which each stack or engine was measured; ``""`` has all of them."""
    conditions: dict[str, dict[Condition, None]] = {"": {}}
    for runs in measured_runs(kind):
        for name, condition in runs.conditions:
            for known in ("", *_known_by(name)):
                conditions.setdefault(known, {})[condition] = None
    return {name: tuple(each) for name, each in conditions.items()}


def _measured_software(kind: str, catalog: Catalog, name: str) -> bool:
    """Whether a published run or the calibration names a training stack or engine."""
    ran = name.casefold() in _published_software(kind)
    return ran or (not is_release(name) and catalog.calibration.knows_software(_CALIBRATED[kind], name))


@cache
def _published_software(kind: str) -> frozenset[str]:
    return frozenset(known for runs in measured_runs(kind) for name in runs.software for known in _known_by(name))


def _known_by(name: str) -> tuple[str, ...]:
    """Names that runs of a stack inform about: a release, and the engine of that release."""
    return (name, same_kernels(name)) if is_release(name) else (name,)


@cache
def _others(kind: str) -> str:
    """Training stacks or engines with published runs, in words."""
    known = sorted(_published_software(kind) - {""})
    return f", but with {', '.join(known)}" if known else ""


def band_width(band: Mapping[str, Array], quantity: str, known: Mapping[str, np.ndarray], experts: bool) -> Array:
    """Half-width of the 80 % band of a quantity, as a logarithm, (rows,); ``known``: distances of :func:`trust`."""
    base, mixture, source, far = (band[quantity + end][:, 0] for end in ("", "_mixture", "_source", "_far"))
    wide = half_width(base, known["unread"], source, known["distance"], far)
    return mixture * wide if experts else wide


def ends_together(first: Array, second: Array, sign: float) -> Array:
    """End of the band of a product of independent factors: logarithms of their ends add as squares; ``sign`` 1 or -1.

    >>> round(float(ends_together(np.array([0.2]), np.array([0.0]), 1.0)[0]), 3)
    1.221
    """
    return exp(sign * np.sqrt(first * first + second * second))


def _beyond(pair: _Pair, which: int, kind: str) -> str:
    """An axis on which a plan is outside the measured ranges, in words."""
    name, ends = RANGES[which], dict.fromkeys(_shown(end[which]) for end in (pair.low, pair.high))
    return f"; {_WORDS[name]} far from theirs ({' to '.join(ends)}{_UNITS.get(name, {}).get(kind, '')})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.2g}"


def _pair(kind: str, catalog: Catalog, model: int, accelerator: int) -> _Pair:
    """Nearest published runs of a model on an accelerator or on the original of a copied row."""
    (shape,) = _shapes(catalog.tables["models"], [model])
    chips = catalog.tables["accelerators"]
    generation = str(chips.text("generation")[accelerator]).casefold()
    nearest = _nearest(
        kind,
        shape,
        float(_active(catalog)[model]),
        copied_name(str(catalog.tables["models"]["model"][model])),
        copied_name(str(chips["accelerator"][accelerator])),
        generation,
    )
    measured = generation if _of(measured_runs(kind), generation) else ""
    return replace(nearest, generation=measured, layers=layers_of(shape))


@lru_cache(maxsize=65_536)
def _nearest(kind: str, shape: str, parameters: float, model: str, accelerator: str, generation: str) -> _Pair:
    short = accelerator.split("-")[0]
    runs = measured_runs(kind)
    on_it = [run for run in runs if run.accelerator == accelerator.casefold()]
    # The model on the accelerator, or one with the same layers.
    same = [run for run in on_it if run.shape == shape]
    if same:
        far = _other_size(parameters, same)
        which = f"of layers as {model} has, in a model of another size," if far else f"of {model}"
        software = frozenset(known for run in same for name in run.software for known in _known_by(name))
        return _Pair(far, 0.0, *_ends(same), _runs(same, f"{which} on {short}"), software)
    # Layers of the same size with other attention.
    alike = [run for run in on_it if layer_size(run.shape) == layer_size(shape)]
    if alike:
        far = max(_ELSEWHERE, _other_size(parameters, alike))
        words = _runs(alike, f"of layers as {model} has but for their attention, on {short}")
        return _Pair(far, 0.0, *_ends(alike), words)
    # Other models on the accelerator or its generation, and this model elsewhere.
    elsewhere = [run for run in runs if run.shape == shape]
    of_generation = _of(runs, generation)
    nearest = "accelerator" if on_it else "generation" if of_generation else ""
    near = on_it or of_generation or list(runs)
    dense = layer_size(shape).endswith("/nan")
    alike = [run for run in near if layer_size(run.shape).endswith("/nan") == dense] or near
    if elsewhere and _other_size(parameters, elsewhere):
        elsewhere = []
    distance = _ELSEWHERE if elsewhere else _NEVER + 0.5 * _outside(parameters, [run.parameters for run in alike])
    words = f"{sum(run.rows for run in elsewhere):,} of this model elsewhere" if elsewhere else f"none of {model}"
    if nearest == "accelerator":
        text = f"{_runs(on_it, f'on {short} with other models')}; {words}"
    elif nearest == "generation":
        text = f"no published run on {short}; {_runs(near, f'on its generation, {generation}')}; {words}"
    else:
        text = f"no published run on {short} or its generation; {words}"
    return _Pair(distance, _MACHINE[nearest], *_ends(alike), text)


def _of(runs: Sequence[Measured], generation: str) -> list[Measured]:
    return [run for run in runs if run.generation == generation]


def _outside(value: float, known: Iterable[float]) -> float:
    """Doublings of a value beyond a range of values."""
    ends = np.array(list(known))
    if not len(ends) or not value > 0.0:
        return 0.0
    return min(max(float(log2(max(value / ends.max(), ends.min() / value))), 0.0), _MOST)


def _other_size(value: float, runs: Sequence[Measured]) -> float:
    """Distance of active parameters from runs of models with equal layers."""
    return 0.5 * max(_outside(value, [run.parameters for run in runs]) - _SAME_SIZE, 0.0)


def _numbers(cells: Iterable[str]) -> list[float]:
    return [float(cell or "nan") for cell in cells]


def _ends(runs: Sequence[Measured]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Common ranges of runs; 0 to infinity if unknown."""
    with np.errstate(all="ignore"):
        low = np.fmin.reduce([_numbers(run.least) for run in runs]) if runs else np.full(len(RANGES), np.nan)
        high = np.fmax.reduce([_numbers(run.most) for run in runs]) if runs else np.full(len(RANGES), np.nan)
    return tuple(np.nan_to_num(low, nan=0.0).tolist()), tuple(np.nan_to_num(high, nan=np.inf).tolist())


def _runs(runs: Sequence[Measured], which: str) -> str:
    total = sum(run.rows for run in runs)
    error = added(run.rows * run.error for run in runs) / total
    return f"{total:,} published run{'s' * (total != 1)} {which}, median error {100.0 * error:.1f} %"
