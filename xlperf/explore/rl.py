"""Reinforcement learning: the time of a step of rollouts, trainer and weight synchronisation, and the best split.

Rollouts start together and end one by one; the time of a token follows from how many still generate. A reward model
may score them, on accelerators of its own or in turn. The trainer packs their tokens into whole sequences. All times
are those of serving and of pre-training; rollouts and trainer take longer by the slowdowns of the form.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from xlperf.base.arrays import Array, array, ceil_div, divide, exp, log, log2, power, total
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import DAY, percent
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import software_title
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.trust import BADGES
from xlperf.equations.serving.sessions import mean_rollout_length, unfinished_share, weibull_scale
from xlperf.explore.fleet_plans import COUNT
from xlperf.explore.mappings import server_sizes
from xlperf.explore.objectives import GOOD, PLAN, TABLES, Answer, dollars, no_answer, one_plan, short_name
from xlperf.explore.search import stacked
from xlperf.explore.space import with_columns
from xlperf.explore.train import SEARCHED, best_mapping, in_whole_batches

SPLITS = "splits"  # table of splits beside an answer
SYNCHRONOUS, PARTIAL, ASYNCHRONOUS = "synchronous", "partial", "asynchronous"
TRAINER = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Degrees of the trainer. Those that a form states are fixed."""
_DEGREES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # tensor-parallel degrees of an engine that are tried [-]
_LIVE = 2.0 ** np.arange(11.0)  # rollouts of an engine at which the time of a token is evaluated [-]
_CONTEXTS, _POINTS, _PARTS = 4, 400, 8
"""Contexts of those evaluations, points of a rollout's time, and parts of the accelerators that splits try first."""
_NEAR = 64.0  # accelerators on either side of the best split of whole servers among which the search goes on [-]
_BOUND = 0.97  # trainer time over the least known time of an accelerator, below which no trainer comes; assumed [-]
_RANGES = 256  # ranges of splits with a bound each [-]
_ALIKE, _FASTER = 1e-3, 0.01  # shares of a step: engines that count as equal, modes that count as faster [-]
_TILE = 64.0  # tokens to which a packed sequence is rounded [-]
_SCORED = 64.0  # requests in flight of a copy of the reward model: enough to keep it busy [-]
_MAPPINGS = 8  # mappings of the trainer that every split tries [-]


class Lengths(NamedTuple):
    """Lengths of rollouts on a grid of tokens. [-]"""

    position: Array
    width: float
    unfinished: Array  # share that is longer
    remaining: Array  # the same of what is left of one in the middle of its work
    mean: float
    mean_position: float  # of a token that is generated

    @staticmethod
    def of(form: Table) -> Lengths:
        """The lengths of a form. Raises InputError if their mean is not below the longest."""
        mean, longest, variation = (
            form.value(name) for name in ("output_length", "longest_output", "length_variation")
        )
        # C. G. Justus et al., J. Appl. Meteorology 17(3), 1978, eq. 20
        shape = exp(-1.086 * log(np.maximum(array(variation), 0.01)))
        if not mean < float(mean_rollout_length(1e4 * longest, shape, longest)) * (1.0 - 1e-9):
            problem = f"output length {mean:,.0f} must be below the longest output {longest:,.0f}, at which all stop"
            raise InputError(Fault(form.place(0, "output_length"), problem))
        position = (np.arange(_POINTS) + 0.5) / _POINTS * longest
        share = unfinished_share(position, weibull_scale(mean, shape, longest), shape, longest)
        later = np.cumsum(share[::-1])[::-1]
        return Lengths(
            position, longest / _POINTS, share, later / later[0], mean, float(total(position * share) / total(share))
        )


class Engine(NamedTuple):
    """A rollout engine: its size, the places for rollouts [-], and the time of a token of all that generate. [s]"""

    degree: float
    places: float
    contexts: Array
    times: Array  # (lives, contexts)
    prefill: float  # of one prompt [s]
    weights: float  # of all accelerators [B]
    reason: str
    trust: tuple[str, str]  # badge and its reason

    def token_time(self, live: Array, context: Array) -> Array:
        """Time of a token with so many live rollouts of a mean context, between the evaluated ones. [s]"""
        row = np.clip(log2(np.maximum(live, 1.0)), 0.0, len(_LIVE) - 1.0)
        column = np.interp(context, self.contexts, np.arange(len(self.contexts)))
        low = np.minimum(row.astype(np.int64), len(_LIVE) - 2)
        left = np.minimum(column.astype(np.int64), len(self.contexts) - 2)
        down, right = row - low, column - left
        near, far = (
            self.times[low + more, left] * (1.0 - right) + self.times[low + more, left + 1] * right for more in (0, 1)
        )
        return np.asarray(near * (1.0 - down) + far * down)

    def steady_time(self, count: float, in_flight: float, prompt: float, lengths: Lengths) -> float:
        """Time in which an engine makes so many rollouts while others follow at once. [s]"""
        live, context = np.array([min(self.places, in_flight)]), np.array([prompt + lengths.mean_position])
        return float(count * lengths.mean / live[0] * self.token_time(live, context)[0])

    def batch_times(self, count: float, prompt: float, lengths: Lengths) -> tuple[float, float]:
        """Time until so many rollouts that start together are there, and the part with half of the places empty. [s]"""
        queued = max(count - self.places, 0.0)
        live = min(count, self.places)
        share = lengths.remaining if queued else lengths.unfinished
        context = prompt + (np.minimum(lengths.mean_position + 0.5 * lengths.position, lengths.position[-1]) if queued
                            else lengths.position)  # fmt: skip
        any_live = 1.0 - power(np.maximum(1.0 - share, 0.0), live)  # probability that some rollout still generates
        times = lengths.width * any_live * self.token_time(live * share, context)
        before = self.steady_time(queued, live, prompt, lengths) if queued else 0.0
        return before + float(total(times)), float(total(np.where(share < 0.5, times, 0.0)))


class Trainer(NamedTuple):
    """Trainers of a step on some accelerators: plan, results, and times of all optimizer steps and one pass. [s]"""

    plan: Table
    results: Table
    time: float
    forward: float


class Trainers(dict[float, Trainer | None]):
    """The fastest trainer of a form by its number of accelerators; None if none fits. Each is searched once."""

    def __init__(self, form: Table, lengths: Lengths, catalog: Catalog) -> None:
        self._asked = form, lengths, catalog
        plan = _training_plan(form, form.value(COUNT), lengths)
        self.server = int(server_sizes(plan, catalog)[0][0])

    def __missing__(self, count: float) -> Trainer | None:
        form, lengths, catalog = self._asked
        self[count] = _trainer(form, lengths, count, catalog)
        return self[count]

    def least(self, count: float) -> Trainer | None:
        """A trainer on so many accelerators as fast as the best known one, an accelerator at a time."""
        known = [(one.time * number, number, one) for number, one in self.items() if one]
        if not known:
            return None
        _, number, one = min(known, key=lambda each: each[0])
        share = _BOUND * number / count
        return one._replace(time=one.time * share, forward=one.forward * share)


class Split(NamedTuple):
    """A split of the accelerators with its engine, trainer and times. [s]"""

    rollouts: float
    training: float
    engine: Engine
    trainer: Trainer
    rollout: float
    tail: float
    work: float
    sync: float
    step: float
    rewards: float  # accelerators of the reward model alone
    scoring: float
    alone: float  # accelerators that generate alone, 0 if rollouts and trainer take turns [-]


def rl_answer(form: Table, catalog: Catalog) -> Answer:
    """The step of a form with the fastest split of its accelerators, its parts, cost, and the table of splits.

    ``form``: one row of kind ``rl``. Returns results of the kind ``rl_results``. Raises InputError for lengths that
    contradict each other, and for asynchronous rollouts without accelerators of their own.
    """
    lengths = Lengths.of(form)
    engines = rollout_engines(form, lengths, catalog)
    usable = [engine for engine in engines if not engine.reason]
    if not usable:
        return no_answer(f"no rollout engine of up to {engines[-1].degree:,.0f} accelerators: {engines[-1].reason}")
    rates = scoring_rates(form, lengths, catalog)
    if not rates.max() > 0.0:
        return no_answer(f"no engine of up to {_DEGREES[-1]:,.0f} accelerators has room for the reward model")
    trainers = Trainers(form, lengths, catalog)
    splits = _splits(form, lengths, usable, rates, trainers)
    if not splits:
        judge = ", beside the reward model" if form.word("reward_model") else ""
        return no_answer(
            f"no split of these accelerators has room for a rollout engine and for a trainer that fits{judge}"
        )
    best = min(splits, key=_step)
    answer = _answer(form, lengths, best, splits)
    if np.isnan(form.stated("rollout_accelerators")) and form.value(COUNT) > _NEAR:  # else all splits are compared
        least = min(least_step(form, lengths, usable, rates, trainers, best.rewards), best.step)
        answer["defaults_used"] += (
            f"; no other split is more than {percent(best.step / least - 1.0)} faster, if no trainer is "
            f"{percent(1.0 / _BOUND - 1.0, 0)} more efficient than the best one tried"
        )
    modes = {form.word("rollouts"): best}
    for mode in (SYNCHRONOUS, PARTIAL, ASYNCHRONOUS):
        if mode not in modes and not (mode == ASYNCHRONOUS and form.stated("rollout_accelerators") == 0.0):
            others = _splits(with_columns(form, rollouts=mode), lengths, usable, rates, trainers)
            modes[mode] = min(others, key=_step, default=best)
    mode = min(modes, key=lambda name: modes[name].step)
    if modes[mode].step < (1.0 - _FASTER) * best.step:
        answer["answer"] += f" {_faster_words(mode, modes[mode])}"
    return answer


def rollout_engines(form: Table, lengths: Lengths, catalog: Catalog) -> list[Engine]:
    """Engines of the tensor-parallel degrees that a form leaves open, with their token times."""
    stated = form.stated("rollout_tensor_parallel")
    most = form.value(COUNT)
    degrees = [stated] if stated == stated else [degree for degree in _DEGREES if degree <= most]
    prompt, longest = (form.value(name) for name in ("prompt_length", "longest_output"))
    contexts = np.round(prompt + longest * np.arange(_CONTEXTS) / (_CONTEXTS - 1.0))
    columns: dict[str, Any] = {name: form.text(name) for name in ("model", "accelerator")}
    columns |= {"software": form.filled("rollout_software"), "precision": form.filled("rollout_precision")}
    one = one_plan("inference", columns, (), form)
    rows = []
    for degree in degrees:
        size = {COUNT: degree, "tensor_parallel": degree}
        rows.append(
            with_columns(one, **size, prompt_length=prompt, output_length=np.ceil(lengths.mean), batch_size=1.0)
        )
        rows += [
            with_columns(one, **size, prompt_length=context, output_length=2.0, batch_size=live)
            for live in _LIVE
            for context in contexts
        ]
    results = evaluate(stacked(rows), catalog)
    engines = []
    for place, degree in enumerate(degrees):
        part = results.take(np.arange(len(rows) // len(degrees)) + place * (len(rows) // len(degrees)))
        first, rest = part.take([0]), part.number("tpot")[1:].reshape(len(_LIVE), _CONTEXTS)
        places = first.stated("max_batch_size")
        reason = first.stated_word("reason") if not places >= 1.0 or np.isnan(rest).any() else ""
        prefill, weights = (first.stated(name) for name in ("prefill_time", "memory_weights"))
        loaded = part.take([1 + max(int(np.searchsorted(_LIVE, places, "right")) - 1, 0) * _CONTEXTS + 1])
        trust = str(loaded["trust"][0]), str(loaded["trust_reason"][0])
        engines.append(Engine(degree, min(places, 1024.0), contexts, rest, prefill, weights * degree, reason, trust))
    return engines


def scoring_rates(form: Table, lengths: Lengths, catalog: Catalog) -> Array:
    """Rollouts that one accelerator scores in a second with the best engine of the reward model among those of no more
    accelerators than each degree, 0 without one; infinite by rule.
    """
    if not form.word("reward_model"):
        return np.full(len(_DEGREES), np.inf)
    columns: dict[str, Any] = {"model": form.text("reward_model"), "accelerator": form.text("accelerator")}
    columns |= {"software": form.filled("rollout_software"), "precision": form.filled("rollout_precision")}
    columns |= {"prompt_length": form.value("prompt_length") + np.ceil(lengths.mean), "concurrency": _SCORED}
    columns |= {"output_length": form.value("reward_output")}
    one = one_plan("inference", columns, (), form)
    plans = stacked([with_columns(one, **{COUNT: degree, "tensor_parallel": degree}) for degree in _DEGREES])
    results = evaluate(plans, catalog)
    each = np.where(results["fits"] == 1.0, results.number("max_request_rate") / plans.number(COUNT), 0.0)
    return np.asarray(np.maximum.accumulate(np.nan_to_num(each)))


def _splits(form: Table, lengths: Lengths, engines: list[Engine], rates: Array, trainers: Trainers) -> list[Split]:
    """Every split that is tried with its fastest engine and trainer, by the accelerators that score and that generate.

    Whole servers first; then single accelerators near the best of them, in the order of a bound of their step.
    """
    count, rewards, stated = (form.stated(name) for name in (COUNT, "reward_accelerators", "rollout_accelerators"))
    by_rule, apart = bool(np.isinf(rates).all()), form.word("rollouts") == ASYNCHRONOUS
    unit = float(np.gcd(trainers.server, int(count)))
    unit = unit if 2.0 * unit <= count else 1.0
    numbers = [0.0] if by_rule else [rewards] if rewards == rewards else np.arange(0.0, count, unit).tolist()
    if max(numbers) >= count or (rewards > 0.0 and by_rule):
        problem = f"reward accelerators must be from 0 to below {count:,.0f}, and need a reward model"
        raise InputError(Fault(form.place(0, "reward_accelerators"), problem))
    tried: dict[tuple[float, float], Split | None] = {}

    def split(number: float, rollouts: float) -> None:
        most = count - number
        if (number, rollouts) not in tried and 0.0 <= rollouts < most:
            trainer = trainers[most - rollouts]
            tried[number, rollouts] = _split(form, lengths, engines, rollouts, (number, rates), trainer)

    def fitting(number: float | None = None) -> list[Split]:
        return [one for (scored, _), one in tried.items() if one and number in (None, scored)]

    for number in numbers:
        most = count - number
        if stated >= most or (apart and stated == 0.0):
            problem = f"rollout accelerators must be from 0 to below {most:,.0f}" + (
                "; asynchronous rollouts need some of their own" if apart else ""
            )
            raise InputError(Fault(form.place(0, "rollout_accelerators"), problem))
        step = max(np.floor(most / unit / _PARTS), 1.0) * unit
        for rollouts in [stated] if stated == stated else np.arange(step if apart else 0.0, most, step).tolist():
            split(number, rollouts)
        while step > unit and stated != stated and fitting(number):
            step = max(np.floor(step / unit / 2.0), 1.0) * unit
            centre = min(fitting(number), key=_step).alone
            for rollouts in (centre - step, centre + step):
                split(number, rollouts)
    if stated != stated and fitting():
        number = min(fitting(), key=_step).rewards
        most = count - number
        alone = [one for one in fitting(number) if one.alone]
        centre = min(alone, key=_step).alone if alone else most
        near = np.arange(max(centre - _NEAR, 1.0), min(centre + _NEAR + 1.0, most)).tolist()
        bounds = [
            (bound.step, rollouts)
            for rollouts in near
            if (bound := _split(form, lengths, engines, rollouts, (number, rates), trainers.least(most - rollouts)))
        ]
        for bound_step, rollouts in sorted(bounds):
            if bound_step >= min(fitting(number), key=_step).step:
                break
            split(number, rollouts)
    return sorted(fitting(), key=lambda one: (one.rewards, one.rollouts))


def least_step(
    form: Table, lengths: Lengths, engines: list[Engine], rates: Array, trainers: Trainers, rewards: float
) -> float:  # fmt: skip
    """A time that no step with rollouts on accelerators of their own is below, if ``rewards`` score. [s]

    Of each range of splits: rollouts on its most accelerators, and on as many as its least ones leave a trainer as
    fast an accelerator as the fastest known one (:data:`_BOUND`).
    """
    most = form.value(COUNT) - rewards
    ends = np.unique(np.round(np.linspace(1.0, most, _RANGES + 1))).tolist()
    bounds = (
        _timed(form, lengths, engine, trainer, last - 1.0, most - first, (rewards, rates)).step
        for first, last in pairwise(ends)
        if (trainer := trainers.least(most - first))
        for engine in engines
        if engine.degree <= last - 1.0
    )
    return min(bounds, default=np.inf)


def _training_plan(form: Table, count: float, lengths: Lengths) -> Table:
    """A training plan of packed sequences of the mean length for one optimizer step, open where the form is."""
    samples = _samples(form)
    batch = form.stated("train_batch")
    sequence = float(ceil_div(form.value("prompt_length") + lengths.mean, _TILE)) * _TILE
    columns: dict[str, Any] = {name: form.text(name) for name in ("model", "accelerator")}
    columns |= {name: form.number(name) for name in TRAINER} | {"precision": form.filled("precision")}
    columns |= {COUNT: count, "sequence_length": sequence}
    columns["global_batch_size"] = min(batch, samples) if batch == batch else samples
    given = form.number("hour_price")
    columns |= {"hour_price": given} if given[0] == given[0] else {}
    return one_plan("training", columns, SEARCHED, form)


def _samples(form: Table) -> float:
    return float(form.filled("prompts_per_step")[0] * form.filled("samples_per_prompt")[0])


def _trainer(form: Table, lengths: Lengths, count: float, catalog: Catalog) -> Trainer | None:
    """The fastest trainer on so many accelerators; None if none fits.

    Mappings are searched on a batch that all numbers of replicas divide, and the best of them timed on the real one.
    """
    asked = _training_plan(form, count, lengths)
    batch = asked.number("global_batch_size")[0]
    searched = best_mapping(with_columns(asked, global_batch_size=ceil_div(batch, count) * count), catalog)
    if searched.kind != GOOD:
        return None
    plans = searched.plans.take(np.arange(min(len(searched.plans), _MAPPINGS)))
    replicas = count / np.prod([plans.filled(name) for name in TRAINER[:3]], axis=0)
    plans = in_whole_batches(plans, replicas, batch)
    results = evaluate(plans, catalog)
    per_token = results.number("step_time") / (plans.number("global_batch_size") * plans.number("sequence_length"))
    per_token = np.where(results["fits"] == 1.0, per_token, np.inf)
    best = int(np.argmin(per_token))
    if not np.isfinite(per_token[best]):
        return None
    result = results.take([best])
    tokens = _samples(form) * (form.value("prompt_length") + lengths.mean)
    time = tokens * float(per_token[best]) * form.value("training_slowdown")
    forward, backward, again, once, exchanged, step = (
        result.stated(name)
        for name in (*(f"time_{part}" for part in ("forward", "backward", "recompute", "optimizer", "data_parallel")),
                     "step_time")
    )  # fmt: skip
    share = float(divide(forward, forward + backward + again)) * (1.0 - (once + exchanged) / step)
    return Trainer(plans.take([best]), result, time, time * share)


def _split(
    form: Table, lengths: Lengths, engines: list[Engine], rollouts: float, scorers: tuple[float, Array],
    trainer: Trainer | None,
) -> Split | None:  # fmt: skip
    """A split with its fastest engine, of equal steps the one with the shortest rollouts; None if nothing fits.

    With no accelerators for rollouts alone, both take turns on all.
    """
    count = form.value(COUNT) - scorers[0]
    generating, training = (rollouts, count - rollouts) if rollouts else (count, count)
    if trainer is None:
        return None
    timed = [
        _timed(form, lengths, engine, trainer, generating, training, scorers)
        for engine in engines
        if engine.degree <= generating
    ]
    least = min((one.step for one in timed), default=np.inf)
    if not np.isfinite(least):
        return None
    return min((one for one in timed if one.step <= least * (1.0 + _ALIKE)), key=lambda one: one.rollout)


def _step(split: Split) -> float:
    return split.step


def _timed(
    form: Table, lengths: Lengths, engine: Engine, trainer: Trainer, generating: float, training: float,
    scorers: tuple[float, Array],
) -> Split:  # fmt: skip
    """Times of a step with an engine, a trainer, and ``scorers``: accelerators that score, and rollouts per second of
    one by its degree. Accelerators of their own score rollouts as they end (heuristic, this work).
    """
    mode, prompt, staleness, slowdown, passes, reward = (
        form.filled(name)[0]
        for name in ("rollouts", "prompt_length", "staleness", "rollout_slowdown", "log_prob_passes", "reward_time")
    )
    copies = np.floor(generating / engine.degree)
    count = _samples(form) / copies
    prefill = engine.prefill * count / form.value("samples_per_prompt")
    whole, tail = engine.batch_times(count, float(prompt), lengths)
    if mode != SYNCHRONOUS:
        in_flight = count * (staleness if mode == ASYNCHRONOUS else 1.0)
        whole, tail = engine.steady_time(count, in_flight, float(prompt), lengths), 0.0
    rollout, tail = float(slowdown) * (whole + prefill), float(slowdown) * tail
    work = trainer.time + float(passes) * trainer.forward
    sync = form.value("sync_overhead") + engine.weights / form.value("sync_bandwidth")
    scored = scorers[0] or generating
    scoring = float(divide(_samples(form), scored * scorers[1][np.searchsorted(_DEGREES, scored, "right") - 1], np.inf))
    made = max(rollout, scoring) if scorers[0] else rollout + scoring
    busy = max(made, work) if mode == ASYNCHRONOUS else made + float(reward) + work
    times = rollout, tail, work, sync, busy + sync
    alone = generating if generating + training + scorers[0] <= form.value(COUNT) else 0.0
    return Split(generating, training, engine, trainer, *times, scorers[0], scoring, alone)


def _answer(form: Table, lengths: Lengths, best: Split, splits: list[Split]) -> Answer:
    """Results of the fastest split."""
    plan, results = best.trainer.plan, best.trainer.results
    count, price = form.value(COUNT), results.stated("accelerator_hour_cost")
    tokens = _samples(form) * (form.value("prompt_length") + lengths.mean)
    steps = form.value("num_steps")
    answer: Answer = {
        "step_time": best.step, "rollout_accelerators": best.rollouts, "training_accelerators": best.training,
        "rollout_time": best.rollout, "tail_time": best.tail, "training_time": best.trainer.time,
        "log_prob_time": best.work - best.trainer.time, "sync_time": best.sync,
        "reward_accelerators": best.rewards, "scoring_time": best.scoring,
        "idle_share": 1.0 - (best.rollouts * best.rollout + best.training * best.work
                             + (best.rewards or best.rollouts) * best.scoring) / (count * best.step),
        "tokens_per_second_per_accelerator": tokens / best.step / count,
        "rollout_tensor_parallel": best.engine.degree, "rollout_places": best.engine.places,
        "recompute": plan.word("recompute"),
        "step_cost": best.step * count * price, "run_time": best.step * steps,
        "run_cost": best.step * count * price * steps, PLAN: plan,
        "defaults_used": f"{software_title(str(form.filled('rollout_software')[0]))} engines, "
        f"trainer {software_title(str(plan.filled('software')[0]))}, packed sequences; rollouts take "
        f"{form.filled('rollout_slowdown')[0]:g} times as long as in serving, the trainer "
        f"{form.filled('training_slowdown')[0]:g} times as long as in pre-training",
    }  # fmt: skip
    answer |= {name: plan.value(name) for name in TRAINER}
    badges, reasons = zip(best.engine.trust, (str(results["trust"][0]), str(results["trust_reason"][0])), strict=True)
    answer["trust"] = max(badges, key=BADGES.index)
    answer["trust_reason"] = f"rollouts: {reasons[0]}; trainer: {reasons[1]}"
    answer[TABLES] = {SPLITS: Table("rl_splits", dict(_columns(splits, count, price)))}
    answer["answer"] = _sentence(form, best, answer, count)
    return answer


def _columns(splits: list[Split], count: float, price: float) -> Iterator[tuple[str, Array]]:
    """Columns of the table of splits."""
    names = ("rollouts", "training", "rewards", "rollout", "work", "step")
    words = ("rollouts", "trainer", "reward", "rollout_time", "trainer_time", "step_time")
    for name, word in zip(names, words, strict=True):
        yield word, np.array([getattr(split, name) for split in splits])
    yield "step_cost", np.array([split.step * count * price for split in splits])


def _sentence(form: Table, best: Split, answer: Answer, count: float) -> str:
    accelerator, model = short_name(form.stated_word("accelerator")), form.stated_word("model")
    where = (
        f"rollouts on {best.rollouts:,.0f} take {best.rollout:,.0f} s, "
        f"the trainer on {best.training:,.0f} {best.work:,.0f} s"
        if best.alone
        else f"rollouts and trainer take turns, {best.rollout:,.0f} and {best.work:,.0f} s"
    )
    if best.scoring:
        where += (
            f", {f'{best.rewards:,.0f} score them' if best.rewards else 'they are scored'} in {best.scoring:,.0f} s"
        )
    cost, steps = answer["step_cost"], DAY / best.step
    price = f"; {dollars(cost)} a step, {dollars(cost * steps)} a day of {steps:,.0f} steps" if cost == cost else ""
    return (
        f"{count:,.0f} {accelerator} make {_samples(form):,.0f} rollouts of {model} and train on them in "
        f"{best.step:,.0f} s: {where}, the weights move in {best.sync:,.0f} s{price}."
    )


def _faster_words(mode: str, split: Split) -> str:
    where = f" on {split.rollouts:,.0f}, the trainer on {split.training:,.0f}," if split.alone else ""
    return f"{mode.capitalize()} rollouts{where} would take {split.step:,.0f} s a step."
