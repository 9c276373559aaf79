"""How far plans are from published runs: the badge of a plan, and by how much its bands are wider.

``catalog/measured.csv`` has a row per model and accelerator with published runs, and what these ran at: accelerators,
tokens in work per accelerator, length. The distance of a plan from them has a part for the accelerator (another one of
a measured generation 1, an unknown generation 2), a part for the model (measured elsewhere 1/2, never 3/4, beyond the
sizes measured 1/2 more for each doubling, as where a model of another size has the same layers; 1/2 for layers of a
measured size with other attention: key and value heads, windows, linear layers; 1/2 where only other software ran it
there), a part for the software (2 where neither a published run nor a row of the calibration names it, else 1/2 for
each condition that it was never measured in and others were, :mod:`xlperf.engine.conditions`), 2 for each condition
that nobody measured, and 1/4 for each doubling beyond what they ran at. Below 1/2 a plan is measured, below 1
interpolated, else extrapolated. The 80 % bands are made for models never measured, by sources that were read; every
other unit of distance widens their logarithm by the constant ``widening``. A user's machine is a source that was never
read: constants ``read_source`` are added to the bands. Where the software of a plan has no published run of the model
on the accelerator it is unread, and the larger ``source`` is. Models with experts have ``mixture_source`` and in
serving ``read_mixture_source`` instead, memory in training ``memory_source`` where a plan is unread (heuristic, this
work).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from xlperf.base.arrays import Array, added, exp, log2
from xlperf.base.resources import cells
from xlperf.catalog.calibration import is_release, same_kernels
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table, Words, copied_name
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.conditions import LACKED, UNKNOWN, Condition, in_words, lacked, layers_of
from xlperf.equations.model.parameters import parameter_count
from xlperf.equations.plan.bands import band_end

BADGES = ("MEASURED", "INTERPOLATED", "EXTRAPOLATED")
# What published runs ran at: accelerators, tokens in work per accelerator (of a training step, or decoded together),
# and tokens of a sequence
RANGES = ("num_accelerators", "tokens_in_work", "length")
# Columns of models whose layers have the same size where all are equal, and none or all attend sparsely
_SHAPE = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_experts")
_WORDS = {"num_accelerators": "number of accelerators", "tokens_in_work": "load", "length": "length of sequences"}
_UNITS = {
    "tokens_in_work": {"training": " tokens of a step per accelerator", "inference": " tokens at once per accelerator"},
    "length": {"training": " tokens", "inference": " tokens"},
}
_BADGE_ENDS = (0.5, 1.0)
_SAME_SIZE = 0.3  # doublings of the active parameters within which models of equal layers count as one [-]
_MACHINE = {"accelerator": 0.0, "generation": 1.0, "": 2.0}
_ELSEWHERE, _NEVER, _DOUBLING, _MOST = 0.5, 0.75, 0.25, 2.0
# Distance of software that nobody measured: leaving a source of training runs out of the fit makes the 90 % quantile of
# their error 1.3 to 5 times that in the fit (five sources), leaving an engine out 1 to 1.7 times (three) [-]
SOFTWARE = 2.0
NOT_SHOWN = frozenset(("distance", "unread"))  # what `trust` returns for the bands alone
_CALIBRATED = {"training": "training_software", "inference": "serving_software"}


class Measured(NamedTuple):
    """Published runs of a model on an accelerator.

    ``shape`` and ``parameters`` are those of :func:`model_traits`; ``error`` is the median error when the model is
    left out of the fit [-]; ``least`` and ``most`` are the ends of :data:`RANGES` as written; ``software`` are the
    stacks or engines that they ran with; ``conditions`` are the conditions that each of them ran in.
    """

    kind: str
    model: str
    shape: str
    parameters: float
    accelerator: str
    generation: str
    rows: int
    error: float
    least: tuple[str, ...]
    most: tuple[str, ...]
    software: tuple[str, ...]
    conditions: tuple[tuple[str, Condition], ...]


@dataclass(frozen=True)
class _Pair:
    """What holds for all plans of a model on an accelerator.

    ``software``: what ran this model there; nothing where no run did. ``generation``: that of the accelerator where
    published runs are of it, else blank. ``layers``: kind of layers of the model.
    """

    model: float
    machine: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    words: str
    software: frozenset[str] = frozenset()
    generation: str = ""
    layers: str = ""


@cache
def measured_runs(kind: str) -> tuple[Measured, ...]:
    """Rows of ``measured.csv`` of a kind of plan."""
    header, lines = cells("catalog/measured.csv")
    at = {name: header.index(name) for name in header}
    least, most = ([at[f"{end} {name}"] for name in RANGES] for end in ("least", "most"))
    kinds, shapes, generations, conditions = (at[name] for name in ("kind", "shape", "generation", "conditions"))

    def measured(line: list[str]) -> Measured:
        generation, layers = line[generations].casefold(), layers_of(line[shapes])
        parts = [one.split("/") for one in line[conditions].split(" ")]
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


_actives: WeakKeyDictionary[Catalog, Array] = WeakKeyDictionary()
# What is known of a kind of plan by model and accelerator of a catalog
_pairs: WeakKeyDictionary[Catalog, dict[tuple[str, int], _Pair]] = WeakKeyDictionary()


def model_traits(catalog: Catalog) -> tuple[list[str], Array]:
    """Shape of the layers of every model of a catalog as a name, their attention included, and its active parameters
    per token. [-]
    """
    models = catalog.tables["models"]
    return _shapes(models, range(len(models))), _active(catalog)


def _active(catalog: Catalog) -> Array:
    """Active parameters per token of every model. [-]"""
    if catalog not in _actives:
        with np.errstate(all="ignore"):
            _actives[catalog] = parameter_count(catalog_models(catalog)[0], experts_per_token=True)
    return _actives[catalog]


def _shapes(models: Table, rows: Sequence[int]) -> list[str]:
    """Size of the layers of models: whether they attend sparsely, widths, experts, and their attention."""
    at = list(rows)
    columns = np.stack([models.number(name)[at] for name in _SHAPE], axis=-1)
    sparse = models.filled("attention_type")[at] == "sparse"
    return [
        "sparse/" * bool(own) + "/".join(f"{value:g}" for value in row) + f" {attention}"
        for row, own, attention in zip(columns.tolist(), sparse.tolist(), _attention(models, at), strict=True)
    ]


def _attention(models: Table, at: list[int]) -> list[str]:
    """Attention of each model: key and value heads or one latent vector, windows, layers of other kinds."""
    heads, groups = models.number("num_attention_heads")[at], models.number("num_query_groups")[at]
    latent, windows = models.number("kv_lora_rank")[at] > 0.0, models.number("sliding_window")[at]
    kept = np.where(np.isnan(groups), heads, groups).tolist()
    parts = zip(latent.tolist(), kept, windows.tolist(), models.text("attention_pattern")[at], strict=True)
    return [
        ("latent" if one else f"{group:g} heads")
        + f" {window:g} window" * (window > 0.0)
        + f" {pattern}" * bool(pattern)
        for one, group, window, pattern in parts
    ]


def layer_size(shape: str) -> str:
    """Size of the layers of a shape, whatever their attention.

    >>> layer_size("4096/14336/32/nan 8 heads"), layer_size("sparse/6144/12288/64/256 latent")
    ('4096/14336/32/nan', 'sparse/6144/12288/64/256')
    """
    return shape.partition(" ")[0]


def _mixture(shape: str) -> bool:
    """Whether layers of a shape have experts."""
    return not layer_size(shape).endswith("/nan")


def coordinates(plans: Table, results: Mapping[str, Array], length: Array | None = None) -> Array:
    """Values of plans on the axes of :data:`RANGES`.

    ``results``: their results. ``length``: tokens of a sequence where the plans leave them to a default. Returns
    (ranges, rows).
    """
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
    """Badge of plans, the runs that stand nearest in words, and the distance that widens their bands.

    ``models``, ``accelerators``: rows of the catalog that they name, (rows,). ``software``: their training stacks or
    engines. ``conditions``: as :func:`xlperf.engine.conditions.format_and_load` has them. ``at``: where they stand, as
    :func:`coordinates` has it; NaN where a plan has no result. Returns ``trust``, ``trust_reason``, ``distance`` and
    ``unread``, (rows,): 1 where the software has no published run of the model on the accelerator.
    """
    count = len(catalog.tables["accelerators"])
    keys = (models * count + accelerators).tolist()
    place = {key: code for code, key in enumerate(dict.fromkeys(keys))}
    codes = np.array(list(map(place.__getitem__, keys)), dtype=np.int64)
    known = _pairs.setdefault(catalog, {})
    pairs = [known[kind, key] if (kind, key) in known else _pair(kind, catalog, *divmod(key, count)) for key in place]
    known.update(zip(((kind, key) for key in place), pairs, strict=True))
    low, high = (
        np.array([getattr(one, end) for one in pairs]).reshape(-1, len(RANGES)).T[:, codes] for end in ("low", "high")
    )
    with np.errstate(all="ignore"):
        beyond = np.nan_to_num(log2(np.maximum(np.maximum(at / high, low / at), 1.0)), nan=0.0, posinf=0.0)
    parts = np.minimum(_DOUBLING * beyond, _MOST)
    far = parts.sum(axis=0)
    model, machine = (np.array([getattr(one, part) for one in pairs])[codes] for part in ("model", "machine"))
    never = np.array([not _measured_software(kind, catalog, word) for word in software.words])[software.codes]
    lacking, nobody, unread, said_new = _of_software(kind, pairs, codes, software, conditions)
    model = np.maximum(model, _ELSEWHERE * unread)
    stack = np.where(never, SOFTWARE, LACKED * lacking) + UNKNOWN * nobody
    badge = np.searchsorted(np.array(_BADGE_ENDS), model + machine + stack + far, side="right")
    before = np.searchsorted(np.array(_BADGE_ENDS), model + machine + stack, side="right")
    outside = np.where(badge > before, 1 + np.argmax(parts, axis=0), 0)
    reason = outside * len(pairs) + codes
    words = np.full((1 + len(RANGES)) * len(pairs), "", dtype=object)
    for code in np.flatnonzero(np.bincount(reason.astype(np.intp), minlength=len(words))).tolist():
        which, pair = divmod(code, len(pairs))
        words[code] = pairs[pair].words + (_beyond(pairs[pair], which - 1, kind) if which else "")
    said = words[reason] if said_new is None else words[reason] + said_new
    for row in np.flatnonzero(never).tolist():
        said[row] += f"; no published run with {software.words[software.codes[row]]}{_others(kind)}"
    return {
        "trust": np.array(BADGES, dtype=object)[badge],
        "trust_reason": said,
        "distance": np.maximum(model - _NEVER, 0.0) + machine + stack + far,
        "unread": np.where(never, 1.0, unread),
    }


def _of_software(
    kind: str, pairs: Sequence[_Pair], codes: np.ndarray, software: Words, conditions: Words
) -> tuple[Array, Array, Array, np.ndarray | None]:
    """Number of conditions of plans that their software was not measured in, and that none was; 1 where it has runs but
    none of this model on this accelerator; and what that is in words.

    ``pairs``, ``codes``: model and accelerator of each plan. ``software``, ``conditions``: as :func:`trust` has them.
    """
    own = (codes * len(software.words) + software.codes) * len(conditions.words) + conditions.codes
    found, place = np.unique(own, return_inverse=True)
    numbers, words = [], []
    every = _conditions_of(kind)
    for code in found.tolist():
        rest, condition = divmod(code, len(conditions.words))
        at, name = divmod(rest, len(software.words))
        pair, stack = pairs[at], software.words[name].casefold()
        form, load = conditions.words[condition].split("/")
        asked = Condition(pair.generation, form, load, pair.layers)
        nobody = lacked(every[""], asked)
        new = [one for one in lacked(every.get(stack, every[""]), asked) if one not in nobody]
        unread = stack in every and stack not in pair.software
        numbers.append((len(new), len(nobody), unread))
        words.append(
            f"; none by {stack}" * (unread and bool(pair.software))
            + (f"; {stack} was never measured {in_words(asked, new)}" if new else "")
            + (f"; nothing was measured {in_words(asked, nobody)}" if nobody else "")
        )
    texts = np.array(words, dtype=object)[place] if any(words) else None
    lacking, nowhere, unread_cells = np.array(numbers, dtype=float).reshape(-1, 3).T[:, place]
    return lacking, nowhere, unread_cells, texts


@cache
def _conditions_of(kind: str) -> dict[str, tuple[Condition, ...]]:
    """Conditions that each training stack or engine was measured in, and those of all as ``""``."""
    found: dict[str, dict[Condition, None]] = {"": {}}
    for one in measured_runs(kind):
        for name, condition in one.conditions:
            for known in ("", *_known_by(name)):
                found.setdefault(known, {})[condition] = None
    return {name: tuple(some) for name, some in found.items()}


def _measured_software(kind: str, catalog: Catalog, name: str) -> bool:
    """Whether published runs of a kind, or constants of the calibration, are of a training stack or engine."""
    ran = name.casefold() in _published_software(kind)
    return ran or (not is_release(name) and catalog.calibration.knows_software(_CALIBRATED[kind], name))


@cache
def _published_software(kind: str) -> frozenset[str]:
    return frozenset(known for one in measured_runs(kind) for name in one.software for known in _known_by(name))


def _known_by(name: str) -> tuple[str, ...]:
    """Names that runs of a stack or engine say something of: a release, and the engine that it is one of."""
    return (name, same_kernels(name)) if is_release(name) else (name,)


@cache
def _others(kind: str) -> str:
    """Which training stacks or engines there are published runs with, in words."""
    known = sorted(_published_software(kind) - {""})
    return f", but with {', '.join(known)}" if known else ""


def band_ends(constants: Mapping[str, Array], name: str, width: Array, source: Array | float = 0.0) -> Array:
    """Ends of a band over the prediction as logarithms: wider with the distance from what was measured.

    ``constants``: constants of the family that the band is of, (rows, 1). ``name``: band. ``width``, ``source``: as
    :func:`xlperf.equations.plan.bands.band_end` has them, (rows,). Returns the lower and the upper end, (2, rows).
    """
    return np.stack([band_end(constants[f"log_{name}_{end}"][:, 0], width, source) for end in ("low", "high")])


def ends_together(first: Array, second: Array, sign: float) -> Array:
    """End of the band of a product whose factors err independently: logarithms add as squares.

    ``first``, ``second``: logarithms of the ends of the bands of the factors over their predictions. ``sign``: 1 for
    upper ends, -1 for lower ones.

    >>> round(float(ends_together(np.array([0.2]), np.array([0.0]), 1.0)[0]), 3)
    1.221
    """
    return exp(sign * np.sqrt(first * first + second * second))


def _beyond(pair: _Pair, which: int, kind: str) -> str:
    """Axes on which a plan lies outside measured runs, in words."""
    name, ends = RANGES[which], dict.fromkeys(_shown(own[which]) for own in (pair.low, pair.high))
    return f"; {_WORDS[name]} far from theirs ({' to '.join(ends)}{_UNITS.get(name, {}).get(kind, '')})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.2g}"


def _pair(kind: str, catalog: Catalog, model: int, accelerator: int) -> _Pair:
    """The runs that stand nearest to plans of a model on an accelerator, or on a copy of it with other numbers."""
    (shape,) = _shapes(catalog.tables["models"], [model])
    chips = catalog.tables["accelerators"]
    kin = str(chips.text("generation")[accelerator]).casefold()
    nearest = _nearest(
        kind,
        shape,
        float(_active(catalog)[model]),
        copied_name(str(catalog.tables["models"]["model"][model])),
        copied_name(str(chips["accelerator"][accelerator])),
        kin,
    )
    known = kin if _of(measured_runs(kind), kin) else ""
    return replace(nearest, generation=known, layers=layers_of(shape))


@lru_cache(maxsize=65_536)
def _nearest(kind: str, shape: str, parameters: float, shown: str, name: str, kin: str) -> _Pair:
    short = name.split("-")[0]
    runs = measured_runs(kind)
    on_it = [one for one in runs if one.accelerator == name.casefold()]
    together = [one for one in on_it if one.shape == shape]
    if together:
        far = _other_size(parameters, together)
        which = f"of layers as {shown} has, in a model of another size," if far else f"of {shown}"
        ran = frozenset(known for one in together for name in one.software for known in _known_by(name))
        return _Pair(far, 0.0, *_ends(together), _runs(together, f"{which} on {short}"), ran)
    alike = [one for one in on_it if layer_size(one.shape) == layer_size(shape)]
    if alike:
        far = max(_ELSEWHERE, _other_size(parameters, alike))
        return _Pair(
            far, 0.0, *_ends(alike), _runs(alike, f"of layers as {shown} has but for their attention, on {short}")
        )
    elsewhere = [one for one in runs if one.shape == shape]
    nearest = next((level for level, found in (("accelerator", on_it), ("generation", _of(runs, kin))) if found), "")
    near = {"accelerator": on_it, "generation": _of(runs, kin), "": list(runs)}[nearest]
    alike = [one for one in near if _mixture(one.shape) == _mixture(shape)] or near
    if elsewhere and _other_size(parameters, elsewhere):
        elsewhere = []
    distance = _ELSEWHERE if elsewhere else _NEVER + 0.5 * _outside(parameters, [one.parameters for one in alike])
    words = f"{sum(one.rows for one in elsewhere):,} of this model elsewhere" if elsewhere else f"none of {shown}"
    if nearest == "accelerator":
        said = f"{_runs(on_it, f'on {short} with other models')}; {words}"
    elif nearest == "generation":
        said = f"no published run on {short}; {_runs(near, f'on its generation, {kin}')}; {words}"
    else:
        said = f"no published run on {short} or its generation; {words}"
    return _Pair(distance, _MACHINE[nearest], *_ends(alike), said)


def _of(runs: Sequence[Measured], generation: str) -> list[Measured]:
    return [one for one in runs if one.generation == generation]


def _outside(value: float, known: Iterable[float]) -> float:
    """Doublings by which a value lies outside a range of others."""
    ends = np.array(list(known))
    if not len(ends) or not value > 0.0:
        return 0.0
    return min(max(float(log2(max(value / ends.max(), ends.min() / value))), 0.0), _MOST)


def _other_size(value: float, runs: Sequence[Measured]) -> float:
    """Distance of active parameters from those of runs of models of equal layers."""
    return 0.5 * max(_outside(value, [one.parameters for one in runs]) - _SAME_SIZE, 0.0)


def _numbers(cells: Iterable[str]) -> list[float]:
    return [float(cell or "nan") for cell in cells]


def _ends(runs: Sequence[Measured]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Ranges that runs cover together; infinite where none is known."""
    with np.errstate(all="ignore"):
        low = np.fmin.reduce([_numbers(one.least) for one in runs]) if runs else np.full(len(RANGES), np.nan)
        high = np.fmax.reduce([_numbers(one.most) for one in runs]) if runs else np.full(len(RANGES), np.nan)
    return tuple(np.nan_to_num(low, nan=0.0).tolist()), tuple(np.nan_to_num(high, nan=np.inf).tolist())


def _runs(found: Sequence[Measured], which: str) -> str:
    total = sum(one.rows for one in found)
    error = added(one.rows * one.error for one in found) / total
    return f"{total:,} published run{'s' * (total != 1)} {which}, median error {100.0 * error:.1f} %"
