"""Quotes: public claims beside the same doubled, limits, conditions, and the file of published efficiencies."""

from __future__ import annotations

import csv
from functools import cache

import numpy as np
import pytest
from places import ROOT

from xlperf import load_catalog
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.explore import quote
from xlperf.explore.forms import answered, form_of
from xlperf.explore.objectives import TABLES, Answer, Search
from xlperf.explore.quote import CONDITIONS, percentile_of, quote_answer
from xlperf.explore.train import best_mapping

CLAIMS = ROOT / "workbooks/rows/validation/claims_published.csv"
KINDS = {"TFLOP/s per accelerator": "tflops", "MFU": "mfu"}
ENTRIES = (
    "workload", "model", "accelerator", "num_accelerators", "precision", "prompt_length", "output_length",
    "concurrency", "sequence_length", "global_batch_size",
)  # fmt: skip
SERVED = {"model": "Llama2-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": "8", "precision": "fp8",
          "prompt_length": "294", "output_length": "294"}  # fmt: skip


def ask(entries: dict[str, str], **changed: object) -> Answer:
    given = entries | {name: str(value) for name, value in changed.items()}
    return quote_answer(form_of("quote", given), load_catalog())


def cell_words(form: Table) -> tuple[tuple[str, str], ...]:
    """The cells of a form but for the claimed value, as text."""
    return tuple((name, str(values[0])) for name, values in form.columns.items() if name != "claimed_value")


@cache
def judged(factor: float) -> tuple[Answer, ...]:
    """Answers on the public claims times a factor; what the engine predicts does not depend on the claimed value.

    Without the table of conditions, which decides no verdict.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quote, "predict", predicted_once)
        patch.setattr(quote, "_conditions", lambda *_: iter(()))
        return answers_times(factor)


@pytest.fixture(autouse=True)
def searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best mapping of a run is searched once: several claims and conditions are of the same run."""
    monkeypatch.setattr(quote, "best_mapping", best_mapping_once)


MAPPINGS: dict[tuple[object, ...], Search] = {}


def best_mapping_once(plan: Table, catalog: Catalog) -> Search:
    cells = ((name, str(values[0])) for name, values in sorted(plan.columns.items()))
    key = id(catalog), *cells, *(name for name, mask in sorted(plan.auto.items()) if mask[0])
    if key not in MAPPINGS:
        MAPPINGS[key] = best_mapping(plan, catalog)
    return MAPPINGS[key]


PREDICTIONS: dict[tuple[tuple[str, str], ...], quote.Prediction] = {}
PREDICT = quote.predict


def predicted_once(form: Table, catalog: Catalog) -> quote.Prediction:
    """What the engine predicts at the conditions of a form, computed once."""
    key = cell_words(form)
    if key not in PREDICTIONS:
        PREDICTIONS[key] = PREDICT(form, catalog)
    return PREDICTIONS[key]


def test_the_claimed_value_does_not_move_the_prediction() -> None:
    """To the last bit, of a served and of a trained model."""
    run = {"workload": "training", "model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB",
           "num_accelerators": "64"}  # fmt: skip
    for entries, kind in ((SERVED, "tokens-per-second"), (run, "mfu")):
        values = [ask(entries, claim_kind=kind, claimed_value=value)["predicted_value"] for value in (0.3, 0.6)]
        assert values[0] == values[1] > 0.0


def answers_times(factor: float) -> tuple[Answer, ...]:
    with CLAIMS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    answers = []
    for row in rows:
        entries = {name: row[name] for name in ENTRIES if row[name]}
        kind = KINDS.get(row["kind"], row["kind"].replace(" ", "-"))
        answers.append(ask(entries, claim_kind=kind, claimed_value=float(row["value"]) * factor))
    return tuple(answers)


def test_public_claims_are_told_from_the_same_doubled() -> None:
    """The area under the curve of the ratio of a claim to its prediction: a true one ranks below a doubled one."""
    true, doubled = (np.array([answer["claim_ratio"] for answer in judged(factor)]) for factor in (1.0, 2.0))
    true, doubled = true[~np.isnan(true)], doubled[~np.isnan(doubled)]
    assert len(true) >= 30
    area = np.mean([(one < other) + 0.5 * (one == other) for one in true for other in doubled])
    assert area >= 0.85


def test_no_public_claim_is_impossible_and_most_are_usual() -> None:
    verdicts = [answer["verdict"] for answer in judged(1.0)]
    assert "impossible" not in verdicts
    assert verdicts.count("usual") >= 0.9 * len(verdicts)
    doubled = [answer["verdict"] for answer in judged(2.0)]
    assert doubled.count("usual") <= 0.4 * len(doubled)
    assert {"impossible", "needs"} <= set(doubled)


def test_ten_times_the_limit_is_impossible_and_needs_more() -> None:
    limit = ask(SERVED, claimed_value=1000)["limit_value"]
    answer = ask(SERVED, claimed_value=10 * limit)
    assert answer["verdict"] == "impossible" and answer["limit_share"] == pytest.approx(10.0)
    assert answer["answer"].startswith(f"{10 * limit:,.0f} token/s of Llama2-70B on 8 H100 is impossible as stated")


def test_a_limit_is_of_the_format_of_the_checkpoint_and_an_efficiency_says_its_load() -> None:
    words = {"model": "Meta-Llama-3.1-70B", "accelerator": "B200-SXM-180GB", "num_accelerators": "8",
             "prompt_length": "1024", "output_length": "2048"}  # fmt: skip
    auto, wide, narrow = (ask(words | {"precision": name}, claimed_value=60000) for name in ("auto", "bf16", "fp8"))
    for name in ("limit_value", "limit_share", "efficiency", "answer"):
        assert auto[name] == wide[name]
    assert narrow["limit_value"] == pytest.approx(2.0 * wide["limit_value"])  # the peak of FP8, not that of FP4
    few = ask(words | {"precision": "fp8", "concurrency": "32"}, claimed_value=2000)
    assert few["limit_value"] == narrow["limit_value"] and few["efficiency"] > few["limit_share"]
    assert " with 32 requests in flight is above" in few["answer"]


@pytest.mark.parametrize("model", ["gpt-oss-20b", "Kimi-K2.5"])
def test_a_checkpoint_with_parts_of_several_formats_has_a_limit(model: str) -> None:
    """Attention in 16 bits beside experts of four: as if all were INT4, or up to the peak of FP8 with MXFP4."""
    machine = {"model": model, "accelerator": "H100-SXM-80GB", "num_accelerators": "16"}
    answer = ask(machine, claimed_value=1000)
    assert answer["limit_value"] > answer["predicted_value"] > 0.0
    wide = ask(machine | {"precision": "int4"}, claimed_value=1000)
    assert 1.0 <= answer["limit_value"] / wide["limit_value"] < 2.1


def test_a_limit_is_the_roofline_by_hand() -> None:
    """Llama 2 70B in FP8 for one user: 68.7 G parameters of products over 8 x 3.35 TB/s, and a cache of 80 KiB a token
    in eight bits: 327,680 / 2 bytes.
    """
    answer = ask(SERVED, claim_kind="tokens-per-second-per-user", claimed_value=100, concurrency=1)
    weights = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) + 8192 * 32000
    cache = 80 * 2 * 1024 * 294
    assert answer["limit_value"] == pytest.approx(8 * 3.35e12 / (weights + cache), rel=0.01)
    assert answer["limited_by"] == "memory"


@pytest.mark.parametrize(
    ("accelerator", "precision", "peak"),
    [("B200-SXM-180GB", "fp8", "fp8"), ("B200-SXM-180GB", "fp4", "fp4"), ("B200-SXM-180GB", "int4", "bf16"),
     ("A100-SXM4-80GB", "fp8", "bf16"), ("A100-SXM4-80GB", "int8", "int8")],
)  # fmt: skip
def test_a_limit_is_of_products_as_narrow_as_the_weights(accelerator: str, precision: str, peak: str) -> None:
    """Prompts alone: products per second of a peak. FP8 weights never run at the peak of FP4, nor INT4 ones at INT8."""
    words = {"model": "Meta-Llama-3.1-8B", "accelerator": accelerator, "num_accelerators": "1", "precision": precision,
             "prompt_length": "8000", "output_length": "1"}  # fmt: skip
    machines = load_catalog().tables["accelerators"]
    row = machines["accelerator"].tolist().index(accelerator)
    limit = ask(words, claimed_value=1)["limit_value"]
    parameters = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    flop = 2.0 * (8001 * parameters + 4096 * 128256)
    assert limit == pytest.approx(machines.number(f"peak_flop_rate_{peak}")[row] / flop, rel=1e-6)


LONGEST_CONDITION = 44
"""Letters of a condition that its cell of the sheet Quote shows. [-]"""


def test_what_a_fast_claim_needs_is_in_the_table() -> None:
    """Training at 80 % of the peak of BF16 in BF16: the peak of FP8, or a peak with sparsity."""
    run = {"workload": "training", "model": "Meta-Llama-3.1-405B", "accelerator": "H100-SXM-80GB",
           "num_accelerators": "8192", "precision": "bf16", "sequence_length": "8192",
           "global_batch_size": "2048"}  # fmt: skip
    answer = ask(run, claim_kind="tflops", claimed_value=800)
    table = answer[TABLES][CONDITIONS]
    assert answer["verdict"] == "needs"
    assert "weights in fp8" in answer["needs"] and "2:4 sparsity" in answer["needs"]
    assert set(table["condition"][table["in_band"] > 0.0]) <= set(answer["needs"].split(" or "))
    assert max(map(len, table["condition"].tolist())) <= LONGEST_CONDITION
    step = ask(run, claim_kind="step-time", claimed_value=1.0)
    assert step["claim_ratio"] > 1.0 and step["predicted_value_low"] < step["predicted_value"]


def test_a_claim_that_states_no_precision_may_be_of_a_narrower_one() -> None:
    """20,000 token/s of a 70B on 8 H100 are usual in FP8 and beyond the 16 bits of its checkpoint."""
    run = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": "8"}
    assert "weights in fp8" in ask(run, claimed_value=20000)["needs"]
    blocks = run | {"model": "DeepSeek-V3", "accelerator": "B200-SXM-180GB"}
    answer = ask(blocks, claimed_value=48000)
    assert "weights in fp8 without blocks" in answer["needs"]
    conditions = answer[TABLES][CONDITIONS]["condition"].tolist()
    assert "fp8 without blocks and speculative decoding" in conditions
    assert max(map(len, conditions)) <= LONGEST_CONDITION


def test_less_is_better_for_prices_and_watts() -> None:
    price = {"model": "Llama2-70B", "accelerator": "H100-SXM-80GB", "claim_kind": "price", "num_accelerators": "8"}
    usual = ask(price, claimed_value=1000)
    assert usual["verdict"] == "impossible" and usual["limited_by"] == "its bill of materials"
    fair = ask(price, claimed_value=usual["predicted_value"])
    assert fair["verdict"] == "usual" and fair["claim_ratio"] == pytest.approx(1.0)
    assert ask(price, claimed_value=10 * usual["predicted_value"])["verdict"] == "below usual"
    watts = ask(SERVED, claim_kind="power", claimed_value=100)
    assert watts["verdict"] == "needs" and 200 < watts["predicted_value"] < 700


def test_a_claim_that_no_plan_fits_keeps_its_limit() -> None:
    """6,144 accelerators on a network of 4,096."""
    pods = {"workload": "training", "model": "PaLM-540B", "accelerator": "TPUv4", "num_accelerators": "6144"}
    answer = ask(pods, claim_kind="mfu", claimed_value=0.462)
    assert answer["verdict"] == "usual" and "4096" in answer["reason"] and np.isnan(answer["predicted_value"])
    assert ask(pods, claim_kind="mfu", claimed_value=1.2)["verdict"] == "impossible"


def test_a_model_that_does_not_fit_needs_a_plan_that_runs() -> None:
    answer = ask({"model": "Llama2-70B", "accelerator": "L4", "precision": "bf16"}, claimed_value=1)
    assert answer["verdict"] == "needs" and answer["needs"].startswith("a plan that runs: ")


@pytest.mark.parametrize("count", [3072, 4096, 40])
def test_a_batch_that_no_claim_states_is_one_that_replicas_share(count: int) -> None:
    """4 M tokens in sequences of 4,096 were 977, a prime number: one replica at 2 % of the peak."""
    run = {"workload": "training", "model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB"}
    asked = run | {"num_accelerators": str(count), "claim_kind": "mfu"}
    rows = np.array([[quote.usual_batch(number, length) for number in (1.0, count)] for length in (2048.0, 4096.0)])
    assert (np.abs(np.log2(rows * [[2048.0], [4096.0]] / 2.0**22)) <= 0.5).all()
    assert (rows[:, 1] % (count / np.gcd(count, 2**20)) == 0.0).all()
    free, stated = (ask(asked | more, claimed_value=0.4) for more in ({}, {"global_batch_size": f"{rows[1, 1]:.0f}"}))
    assert free["predicted_value"] == stated["predicted_value"] > 0.2


def test_a_number_that_no_copy_divides_is_served_in_whole_servers() -> None:
    """11 accelerators have a copy on eight of them; the limit is that of eleven."""
    run = {"model": "Meta-Llama-3.1-405B", "accelerator": "H100-SXM-80GB", "precision": "fp8", "concurrency": "16"}
    odd, whole = (ask(run | {"num_accelerators": count}, claimed_value=100) for count in ("11", "8"))
    assert odd["predicted_value"] == whole["predicted_value"] > 0.0
    assert odd["limit_value"] > whole["limit_value"]


def test_percentiles_rise_and_have_ends() -> None:
    for kind in ("training", "serving", "user"):
        places = [percentile_of(share, kind)[0] for share in (0.0, 0.1, 0.3, 0.6, 2.0)]
        assert places == sorted(places) and places[0] == 0.0 and places[-1] == 1.0
        assert percentile_of(0.1, kind)[1] > 100


def test_bad_claims_are_named() -> None:
    with pytest.raises(InputError, match="claimed value must be a number above 0, got -1"):
        ask(SERVED, claimed_value=-1)
    with pytest.raises(InputError, match="mfu is a claim about training: choose workload training"):
        ask(SERVED, claimed_value=1, claim_kind="mfu")
    with pytest.raises(InputError, match="unknown model"):
        ask(SERVED, claimed_value=1, model="Llama-9")


@pytest.mark.parametrize(
    ("kind", "entries", "said", "silent"),
    [
        ("quote", {}, "claimed value 90,000", ("sequence length", "acceptance rate")),
        ("quote", {"workload": "training", "claim_kind": "mfu"}, "sequence length 4,096", ("output length",)),
        ("spares", {"workload": "serving", "num_accelerators": "1024"}, "num accelerators 1,024", ("storage", "model")),
        ("spares", {}, "storage bandwidth 2,000 GB/s", ("drive bandwidth",)),
    ],
)
def test_a_question_is_repeated_without_what_has_no_effect(
    kind: str, entries: dict[str, str], said: str, silent: tuple[str, ...]
) -> None:
    given = {"claimed_value": "90000"} | entries if kind == "quote" else entries
    asked = answered(kind, given, load_catalog()).notes[-1]
    assert said in asked and not any(words in asked for words in silent), asked
