"""A kind of attention that is declared as a core alone has kernels, a cache, a state and FLOP everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from ideal_machine import deployment, setting

from xlperf.equations.model import cores
from xlperf.equations.model.cores import FULL, Core, Flash, Prompts, Read, Scores, Sequences, Stream, Trained
from xlperf.equations.serving.memory import memory_of
from xlperf.equations.serving.phases import serving_work
from xlperf.equations.training.rates import training_rates
from xlperf.equations.training.step import step


def _train(call: Sequences) -> Iterator[Trained]:
    one = np.ones_like(call.length)
    yield Trained("strided", Flash(call.batch, one, one, call.length, 0.25 * call.length, 100.0 * one, one))
    yield Trained("strided update", Scores(1e9 * one, 1e6 * one), "backward")


def _prefill(call: Prompts) -> Flash:
    one = np.ones_like(call.length)
    return Flash(call.number, one, one, call.own, 0.25 * call.length, 100.0 * one, one)


STRIDED = Core(
    "strided attention",
    layers=lambda model: model.num_layers,
    exists=lambda architecture: True,
    train=_train,
    prefill=_prefill,
    decode=lambda call: Read(0.25 * call.contexts),
    entries=lambda model, context, whole, ranks: 0.25 * context,
    state=lambda shard, element_size: 1e6 * element_size,
    keys=lambda model, length: 0.25 * length,
)
RECURRENT = Core(
    "recurrent attention",
    layers=lambda model: model.num_layers,
    exists=lambda architecture: True,
    train=lambda call: (),
    prefill=_prefill,
    decode=lambda call: Stream(1e6 * call.sequences, 1e6 * call.sequences),
)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cores, "CORES", (*cores.CORES, STRIDED, RECURRENT))
    cores.cores_of.cache_clear()
    yield
    monkeypatch.undo()
    cores.cores_of.cache_clear()


def test_declared_core_is_trained(declared: None) -> None:
    done = step(setting())
    names = [name for part in done.parts for name in part.names]
    assert {"strided", "strided gradient", "strided update"} <= set(names)
    one = {part.names[0]: part for part in done.parts if part.place == "core"}
    assert one["strided update"].flop is not None and one["strided"].calls.tolist() == [[1.0]]
    assert one["strided"].time[0, 0] < one["flash attention"].time[0, 0]


def test_declared_core_counts_in_flop() -> None:
    plan = setting()
    before = training_rates(plan, np.ones(1))["model_flop_rate"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "CORES", (FULL, STRIDED))
        cores.cores_of.cache_clear()
        after = training_rates(plan, np.ones(1))["model_flop_rate"]
    cores.cores_of.cache_clear()
    assert after > before


def test_declared_core_is_served_and_held() -> None:
    served = deployment(state_slots=1.0)
    before, work = memory_of(served), serving_work(served)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "CORES", (FULL, STRIDED, RECURRENT))
        cores.cores_of.cache_clear()
        after, more = memory_of(served), serving_work(served)
    cores.cores_of.cache_clear()
    assert more.attention.names == (*work.attention.names, "strided attention", "recurrent attention")
    np.testing.assert_allclose(more.attention.traffic[0, 1, 1], 0.25 * work.attention.traffic[0, 1, 0], rtol=1e-3)
    assert more.attention.traffic[0, 1, 2] == 1e6
    # A quarter of the cache again, and a state of 2 MB.
    np.testing.assert_allclose(after.kv_cache_size, 1.25 * before.kv_cache_size + 2e6, rtol=1e-3)
