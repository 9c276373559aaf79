"""Notes in the column ``reason`` of legal plans: what does not fit, what was assumed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from xlperf.base.arrays import Array, decade, divide, octave_below, some
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.hardware.power import PowerLimits
from xlperf.equations.plan.records import Mode, Remark, remarks_of_rows
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.phases import BOUNDS

COMPUTE = float(BOUNDS.index("compute"))


def gibibytes(values: Array) -> Array:
    """Bytes in GiB, rounded for a sentence.

    ``values``: sizes [B]. With one decimal.
    """
    return np.asarray(np.round(values / 2.0**30, 1))


def rounded_down(values: Array) -> Array:
    """Limits for a sentence, rounded down to four digits.

    ``values``: above 0, in any unit. With four digits.

    >>> rounded_down(np.array([122.456, 0.0123456])).tolist()
    [122.4, 0.01234]
    """
    scale = 1000.0 / decade(np.where((values > 0.0) & (values < np.inf), values, 1.0))
    return np.asarray(np.floor(values * scale) / scale)


def extrapolation_notes(extrapolated: list[tuple[str, np.ndarray]], illegal: np.ndarray) -> list[Remark]:
    """One note for the rows that use calibration fitted on other generations or software.

    ``extrapolated``: family, and the rows that have no constants of their own in it. At most one.
    """
    shown = [
        (family, mask)
        for family, mask in extrapolated
        if some(mask) and not family.endswith(("_band", "_memory", "_calls"))
    ]
    if not shown:
        return []
    pattern = np.zeros(len(illegal), dtype=np.int64)
    for bit, (_, mask) in enumerate(shown):
        pattern |= np.where(mask & ~illegal, 1 << bit, 0)
    if not some(pattern):
        return []
    values = pattern.tolist()
    names = {
        value: ", ".join(
            dict.fromkeys(family.replace("_", " ") for bit, (family, _) in enumerate(shown) if value >> bit & 1)
        )
        for value in set(values)
    }
    named = np.array([names[value] for value in values], dtype=object)
    return [Remark(pattern > 0, "calibration extrapolated: {}", (named,))]


_BUSY = 70.0  # share of the largest request rate from which on 1 % more may lengthen a wait by much more [%]
# Share of the time to the first token from which on a wait is said, and from which on that of separate pools is; share
# of a result that a small change may move without a word; rows of products that one tile or a few hold [-]
_WAITING, _TRADING, _STEEP, _TILES = 0.005, 0.25, 0.15, (8.0, 1024.0)


def edge_notes(
    stated: InferencePlan, plan: InferencePlan, results: Mapping[str, Array], illegal: np.ndarray
) -> list[Remark]:
    """Where a small change of load or memory changes a result much: queues for places, few places, edges of tiles.

    ``stated``: plans as the sheet has them. ``plan``: those of the pool that decodes, with defaults. ``results``: of
    both, with ``request_cache``, the cache of one request.
    """
    streamed = ~illegal & (stated.mode != Mode.STATIC) & (results["max_batch_size"] >= 1.0)
    given, most = ~np.isnan(stated.request_rate), results["max_batch_size"]
    queue, first = results["queue_time"], results["ttft"]
    waits = streamed & (queue > _WAITING * first)
    shares = np.round(100.0 * stated.request_rate / results["max_request_rate"], 1), np.round(1e3 * queue, 1)
    pools = stated.mode == Mode.DISAGGREGATED
    notes = [
        Remark(
            waits & given & (shares[0] > _BUSY),
            "arrivals are {} % of the largest request rate: a request waits {} ms for a place on average, and a little "
            "more load makes it much longer",
            shares,
        ),
        Remark(
            waits & ~given & ~pools,
            "more requests are in flight than have places (memory, max running batch): one waits {} ms on average",
            shares[1:],
        ),
        Remark(
            waits & ~given & pools & (queue > _TRADING * first),
            "requests of a constant number wait {} ms for a prefill pass or a place to decode: faster decoding "
            "shortens TPOT and lengthens TTFT, as more of them are in the prefill pool",
            shares[1:],
        ),
    ]
    own = np.minimum(plan.data_parallel_attention, np.maximum(most, 1.0))
    each = np.maximum(divide(own * 2.0**30, results["request_cache"], np.inf), own) / np.maximum(most, 1.0)
    free = np.isnan(stated.max_running_batch) | (stated.max_running_batch > most)
    few = streamed & free & (each > _STEEP)
    notes.append(
        Remark(few, "the memory has room for {} at once: 1 GiB more or less changes the number by over 15 %", (most,))
    )
    rows = np.ceil(plan.batch_size / plan.data_parallel_attention / plan.pipeline_parallel) * (
        1.0 + plan.drafted_tokens
    )
    edge = (rows >= _TILES[0]) & (rows <= _TILES[1]) & (octave_below(np.maximum(rows, 1.0)) == rows)
    edge &= ~illegal & (stated.mode == Mode.STATIC) & (results["time_matrix"] > _STEEP * results["tpot"])
    words = "{} rows of products fill whole tiles: one request more opens others, which may take a step much longer"
    notes.append(Remark(edge & (results["bound"] == COMPUTE), words, (rows,)))
    copies, static = plan.data_parallel_attention, stated.mode == Mode.STATIC
    batch = np.where(static, plan.batch_size, np.where(given, np.nan, stated.concurrency / plan.num_replicas))
    rounds = batch / copies
    whole = ~illegal & (copies > 1.0) & (rounds == np.floor(rounds))
    words = "a batch of {} gives each of the {} attention replicas {}: one request more gives one of them one more"
    notes.append(Remark(whole & (rounds * _STEEP < 1.0), words, (batch, copies, rounds)))
    words = "of {} requests in flight few prompts wait for those of other attention replicas: of one more many do"
    alone = ~illegal & (plan.gathering_steps > 0.0) & (copies > 1.0) & (rounds < 1.0)
    notes.append(Remark(alone, words, (stated.concurrency,)))
    passes, more = (_passes(plan, np.ceil((plan.batch_size + further) / copies)) for further in (0.0, 1.0))
    words = "the prompts of a batch of {} fill {} whole passes of the prefill: one request more opens another"
    notes.append(Remark(~illegal & static & (more > passes) & (passes * _STEEP < 1.0), words, (batch, passes)))
    return notes


def _passes(plan: InferencePlan, prompts: Array) -> Array:
    """Passes of the prefill for so many prompts of an attention replica, each of whole prompts if one fits. [-]"""
    tokens, each = plan.prefill_tokens, np.maximum(plan.new_tokens, 1.0)
    return np.where(each <= tokens, np.ceil(prompts / np.floor(tokens / each)), np.ceil(prompts * each / tokens))


def limit_notes(limits: PowerLimits, illegal: np.ndarray) -> list[Remark]:
    """Where a lowered power limit slows long products and to what share of their clock.

    ``limits``: of the plans, (rows,).
    """
    lowered = ~illegal & (limits.kept < limits.own)
    if not some(lowered):
        return []
    numbers = limits.kept, np.round(100.0 * limits.clock_share), limits.own
    slowed = "power limit {} W: the clock of long products falls to {} % of that at {} W"
    return [Remark(lowered & (limits.clock_share < 1.0), slowed, numbers)]


def name_notes(plans: Table, catalog: Catalog, illegal: np.ndarray) -> list[Remark]:
    """Notes on names that are spelled unlike the catalog's, with the row that each was taken for.

    ``plans``: training or inference plans whose names were looked up. Returns one per column at most.
    """
    notes = []
    for column in plans.schema.columns:
        taken = catalog.taken(column.reference) if column.kind == "reference" and column.name in plans else {}
        if taken:
            names = plans.text(column.name)
            exact = np.array([taken.get(name, "") for name in names.tolist()], dtype=object)
            words = f"{column.name.replace('_', ' ')} {{}} taken as {{}}"
            notes.append(Remark((exact != "") & ~illegal, words, (names, exact)))
    return notes


def add_notes(reason: np.ndarray, notes: list[Remark]) -> None:
    """Append the sentences of notes to the reasons of their rows, in place."""
    shown, sentences = remarks_of_rows(notes, len(reason))
    rows = np.flatnonzero(shown)
    if len(rows):
        pairs = zip(reason[rows].tolist(), sentences[rows].tolist(), strict=True)
        reason[rows] = [f"{before}; {words}" if before else words for before, words in pairs]


# Words of ``cost_basis``: no price; capex over life, energy and running cost; the rental price
BASES = ("", "own", "rent")


def basis_words(rented: np.ndarray, cost_rate: Array, other: np.ndarray | None = None) -> np.ndarray:
    """How plans are priced, in words.

    ``rented``: whether the accelerator has a rental price, (rows,). ``cost_rate``: cost of the mean accelerator; NaN
    where a price is missing, (rows,) [USD/s]. ``other``: the same as ``rented`` of the pool that prefills. Returns
    ``rent``, ``own``, ``rent and own`` or "".
    """
    words = np.where(rented, BASES[2], BASES[1]).astype(object)
    if other is not None:
        words[rented != other] = "rent and own"
    words[np.isnan(cost_rate)] = BASES[0]
    return words


def unpriced_notes(
    illegal: np.ndarray, catalog: Catalog, pools: Mapping[str, tuple[np.ndarray, Array]]
) -> list[Remark]:
    """Why plans have no cost.

    ``pools``: by a word that names the pool: rows of its accelerators, and what one of them costs, (rows,). At most one
    for each pool.
    """
    names = catalog.tables["accelerators"].text("accelerator")
    notes = []
    for pool, (rows, cost_rate) in pools.items():
        unpriced = ~illegal & np.isnan(cost_rate)
        if unpriced.any():
            words = f"no cost: the sheet prices has neither a rental price nor a capex for {pool}accelerator {{}}"
            notes.append(Remark(unpriced, words, (names[rows],)))
    return notes
