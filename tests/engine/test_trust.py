"""How far plans are from published runs: badges, words, and bands that are wider the farther a plan is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Outcome
from shipped import shipped_measured

from xlperf.calibrate.accuracy import measured_csv
from xlperf.calibrate.validate import own_runs
from xlperf.catalog.calibration import is_release, same_kernels
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_plans
from xlperf.catalog.table import Table, coded_words
from xlperf.engine import evaluate
from xlperf.engine import trust as trust_module
from xlperf.engine.trust import (
    BADGES,
    LACKED,
    RANGES,
    SOFTWARE,
    UNKNOWN,
    Condition,
    layers_of,
    measured_runs,
    model_traits,
    trust,
)

RUN = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num_accelerators": 64, "tensor_parallel": 8}
SERVED = {**RUN, "accelerator": "B200-SXM-180GB", "num_accelerators": 8, "prompt_length": 1000, "output_length": 1000,
          "batch_size": 16}  # fmt: skip


@cache
def shipped() -> Catalog:
    return load_catalog()


def results_of(kind: str, *plans: dict[str, object]) -> Table:
    names = list(dict.fromkeys(name for plan in plans for name in plan))
    rows = [[plan.get(name) for name in names] for plan in plans]
    return evaluate(table_from_rows(kind, names, rows), shipped())


def test_the_farther_from_published_runs_the_worse_the_badge_and_the_wider_the_band() -> None:
    """More accelerators than measured, then another accelerator, another generation."""
    own = {**RUN, "pipeline_parallel": 1, "global_batch_size": 256}
    results = results_of(
        "training",
        own,
        {**own, "num_accelerators": 8192, "global_batch_size": 8192},
        {**own, "accelerator": "H20-96GB"},
        {**own, "accelerator": "V100-SXM2-32GB", "precision": "fp16"},
    )
    assert results["trust"].tolist()[0] == "MEASURED"
    assert set(results["trust"].tolist()[1:]) <= {"INTERPOLATED", "EXTRAPOLATED"}
    assert results["trust"].tolist()[2:] == ["EXTRAPOLATED", "EXTRAPOLATED"]
    width = results.number("step_time_high") / results.number("step_time")
    assert (width[1:] > width[0]).all()


@pytest.mark.parametrize(("kind", "plan"), [("training", RUN), ("inference", SERVED)])
def test_every_result_lies_in_its_band_and_rates_go_with_times(kind: str, plan: dict[str, object]) -> None:
    results = results_of(kind, plan)
    names = [name.removesuffix("_low") for name in results.columns if name.endswith("_low")]
    assert {"memory", "tokens_per_second", "energy_per_token"} < set(names)
    for name in names:
        low, middle, high = (float(results.number(name + end)[0]) for end in ("_low", "", "_high"))
        assert low < middle < high, name


def test_a_given_rate_of_requests_is_served_whatever_the_time() -> None:
    plan = {**SERVED, "batch_size": None, "request_rate": 0.5, "mode": "continuous"}
    results = results_of("inference", plan)
    assert results.number("tokens_per_second_low")[0] == results.number("tokens_per_second")[0]
    assert results.number("tpot_low")[0] < results.number("tpot")[0]


def test_a_model_of_equal_layers_counts_as_the_same() -> None:
    assert results_of("inference", {**SERVED, "model": "DeepSeek-R1", "precision": "fp8"})["trust"][0] != "EXTRAPOLATED"
    said = str(results_of("training", {**RUN, "model": "Qwen2.5-72B"})["trust_reason"][0])
    assert "on H100 with other models" in said and "none of Qwen2.5-72B" in said


def test_layers_of_a_measured_model_in_another_one_are_not_that_model() -> None:
    """Ten times the layers, a tenth of them, wider experts, sparse attention, more key and value heads, a window or
    linear layers: no run of such a model was published.
    """
    models = shipped().tables["models"]
    names = models["model"].tolist()
    changes = [
        ("Meta-Llama-3.1-8B", {}),
        ("Meta-Llama-3.1-8B", {"num_layers": 320.0}),
        ("Meta-Llama-3.1-8B", {"num_layers": 3.0}),
        ("DeepSeek-V3", {"moe_ffn_hidden_size": 16_384.0}),
        ("DeepSeek-V3.2", {}),
        ("Meta-Llama-3.1-8B", {"num_query_groups": 2.0}),
        ("Meta-Llama-3.1-8B", {"sliding_window": 1024.0}),
        ("Meta-Llama-3.1-8B", {"attention_pattern": "5 sliding 1024 : 1 full"}),
    ]
    rows = [
        {**{name: values[names.index(model)] for name, values in models.columns.items()}, **change, "model": f"m{at}"}
        for at, (model, change) in enumerate(changes)
    ]
    columns = {name: np.array([row[name] for row in rows], dtype=models[name].dtype) for name in models.columns}
    catalog = shipped().with_tables([Table("models", columns, models.place)])
    plan = {**SERVED, "accelerator": "H200-SXM-141GB", "num_accelerators": 8, "precision": "fp8", "batch_size": None,
            "concurrency": 64, "mode": "continuous"}  # fmt: skip
    plans = [[{**plan, "model": row["model"]}[name] for name in plan] for row in rows]
    result = evaluate(table_from_rows("inference", list(plan), plans), catalog)
    assert result["trust"].tolist()[0] == "MEASURED"
    assert "MEASURED" not in result["trust"].tolist()[1:]
    assert "of m1 on" not in result["trust_reason"][1] and "none of m4" in result["trust_reason"][4]


@pytest.mark.parametrize(("kind", "plan"), [("training", RUN), ("inference", SERVED)])
def test_software_that_nobody_measured_widens_the_band_and_is_named(kind: str, plan: dict[str, object]) -> None:
    """A stack without a published run and without a constant: not MEASURED, however well its model is known."""
    time = "step_time" if kind == "training" else "tpot"
    known = "nemo" if kind == "training" else "vllm"
    results = results_of(kind, plan, {**plan, "software": "of-our-own"}, {**plan, "software": known.upper()})
    assert results["trust"].tolist()[1] == "EXTRAPOLATED" and results["trust"].tolist()[0] == "MEASURED"
    others = str(results["trust_reason"][1]).partition("; no published run with of-our-own, but with ")[2].split(", ")
    assert known in others and "" not in others
    assert "published run with" not in str(results["trust_reason"][2])
    width = np.log(results.number(f"{time}_high") / results.number(f"{time}_low"))
    assert width[1] > 1.2 * width[0] and width[1] > 1.2 * width[2]


def test_software_with_constants_of_the_users_own_is_known() -> None:
    rows = shipped().tables["calibration"]
    key = list(zip(*(rows.text(name).tolist() for name in ("family", "software", "constant")), strict=True))
    at = key.index(("training_software", "megatron", "kernel_slowdown"))
    columns = {name: np.append(values, values[at : at + 1]) for name, values in rows.columns.items()}
    columns["software"][-1] = "of-our-own"
    catalog = shipped().with_tables([Table("calibration", columns, rows.place)])
    plan = {**RUN, "software": "of-our-own"}
    result = evaluate(table_from_rows("training", list(plan), [list(plan.values())]), catalog)
    assert "of-our-own" not in str(result["trust_reason"][0])


def conditions_of(kind: str) -> dict[str, set[Condition]]:
    """Conditions that each training stack or engine was measured in."""
    result: dict[str, set[Condition]] = {}
    for one in measured_runs(kind):
        for name, condition in one.conditions:
            for own in {name, engine_of(name)}:
                result.setdefault(own, set()).add(condition)
    return result


def engine_of(name: str) -> str:
    """The engine that a release is one of, whose plans the runs of the release say something of; else the name."""
    return same_kernels(name) if is_release(name) else name


def unplaced(kind: str, names: dict[str, str], software: str, condition: str) -> tuple[str, float, str, float]:
    """Badge, distance and words of a plan without results, and whether its software was never read there."""
    rows = [shipped().tables[f"{name}s"].text(name).tolist().index(value) for name, value in names.items()]
    at = np.full((len(RANGES), 1), np.nan)
    words = coded_words([software]), coded_words([condition])
    result = trust(kind, shipped(), *(np.array([row]) for row in rows), *words, at)
    word, reason = str(result["trust"][0]), str(result["trust_reason"][0])
    return word, float(result["distance"][0]), reason, float(result["unread"][0])


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_no_condition_that_software_lacks_leaves_its_plans_nearer(kind: str) -> None:
    """Every stack and engine on every measured model and accelerator, in every format and kind of load: what it was
    never measured in makes the distance greater by the same, says so and is no longer MEASURED; a model and an
    accelerator that it never ran are unread; and software that nobody measured is nowhere nearer than any that
    somebody did.
    """
    known = conditions_of(kind)
    every = set().union(*known.values())
    words = sorted({f"{one.format}/{one.load}" for one in every})
    checked = 0
    names, (shapes, active) = shipped().tables["models"]["model"].tolist(), model_traits(shipped())
    sizes = dict(zip(names, zip(shapes, active.tolist(), strict=True), strict=True))
    runs = [run for run in measured_runs(kind) if sizes.get(run.model, ("", 0.0))[0] == run.shape]
    for run in [one for one in runs if sizes[one.model][1] == pytest.approx(one.parameters, rel=0.01)][::5]:
        own = {"model": run.model, "accelerator": next(
            name for name in shipped().tables["accelerators"].text("accelerator") if name.casefold() == run.accelerator
        )}  # fmt: skip
        for name, some in known.items():
            lacks = {"generation": run.generation, "layers": layers_of(run.shape)}
            missing = [part for part, value in lacks.items() if value not in {getattr(one, part) for one in some}]
            for word in words:
                form, load = word.split("/")
                new = missing + [
                    part
                    for part, value in (("format", form), ("load", load))
                    if value not in {getattr(one, part) for one in some}
                ]
                badge, distance, said, unread = unplaced(kind, own, name, word)
                assert distance == LACKED * len(new), (own, name, word)
                ran = name in {known for one in run.software for known in (one, engine_of(one))}
                assert unread == (not ran), (own, name, word)
                assert (badge == "MEASURED") == (not new and ran), (own, name, word, said)
                assert ("was never measured" in said) == bool(new)
                assert (
                    distance <= unplaced(kind, own, "of-our-own", word)[1]
                    and unplaced(kind, own, "of-our-own", word)[3]
                )
                checked += bool(new)
    assert checked > 100


def test_a_format_or_layers_that_nobody_measured_are_as_far_as_a_generation_that_nobody_measured() -> None:
    own = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB"}
    badge, distance, said, unread = unplaced("inference", own, "vllm", "fp32/continuous")
    assert (badge, distance, unread) == ("EXTRAPOLATED", UNKNOWN, 1.0)
    assert said.endswith("; nothing was measured in fp32")
    assert unplaced("inference", own, "of-our-own", "fp32/continuous")[1] == UNKNOWN + SOFTWARE
    assert unplaced("inference", {**own, "model": "DeepSeek-V3.2"}, "sglang", "fp8/continuous")[1] >= UNKNOWN


@pytest.mark.parametrize(
    ("engine", "change", "words"),
    [
        ("vllm", {"precision": "int8"}, "in int8"),
        ("nemo", {"precision": "fp8"}, "in fp8"),
        ("sglang", {"precision": "int4"}, "in int4"),
        ("turbomind", {"model": "Qwen3-30B-A3B"}, "for models with experts"),
        ("nim", {"accelerator": "B200-SXM-180GB"}, "on blackwell"),
        ("turbomind", {"mode": "continuous", "concurrency": 16, "batch_size": None}, "with continuous batching"),
    ],
)
def test_a_plan_that_its_engine_was_never_measured_in_has_the_wider_band(
    engine: str, change: dict[str, object], words: str
) -> None:
    """Beside a plan that differs in the condition alone and has it measured."""
    own = {"model": "Meta-Llama-3.1-8B", "accelerator": "A100-SXM4-80GB", "num_accelerators": 1, "prompt_length": 1000,
           "output_length": 1000, "batch_size": 16, "precision": "bf16", "software": engine}  # fmt: skip
    if engine in ("sglang", "nemo"):
        own["accelerator"] = "H100-SXM-80GB"
    results = results_of("inference", own, {**own, **change})
    before, after = (str(reason).partition("was never measured ")[2] for reason in results["trust_reason"])
    assert words in after and words not in before
    width = np.log(results.number("tpot_high") / results.number("tpot_low"))
    assert width[1] > width[0]
    assert BADGES.index(results["trust"].tolist()[1]) >= BADGES.index(results["trust"].tolist()[0])


def test_a_model_that_other_software_ran_there_is_not_measured_with_this_one() -> None:
    """TensorRT-LLM ran Llama 3.1 70B on GB200s; no other engine did."""
    own = {"model": "Meta-Llama-3.1-70B", "accelerator": "GB200-NVL72"}
    assert unplaced("inference", own, "tensorrt-llm", "fp4/continuous")[:2] == ("MEASURED", 0.0)
    badge, distance, said, unread = unplaced("inference", own, "vllm", "fp4/continuous")
    assert (badge, distance, unread) == ("INTERPOLATED", 0.0, 1.0) and "none by vLLM" in said


def test_a_new_source_widens_the_band_until_a_run_of_it_is_known(tmp_path: Path) -> None:
    """GPT-3 175B on H200 by Megatron, which nobody published: base, source and distance add as squares; one run of the
    user's own takes most of it away.
    """
    header = "model,accelerator,num accelerators,tensor parallel,pipeline parallel,measured step time (s)\n"
    path = tmp_path / "runs.csv"
    path.write_text(f"{header}GPT3-175B,H200-SXM-141GB,64,8,8,\n")
    before = evaluate(read_plans(path)[0], shipped())
    word = np.array(["any"], dtype=object)
    band = {
        name: float(one[0, 0]) for name, one in shipped().calibration.constants("band", word, word, word)[0].items()
    }
    shown = [
        abs(float(np.log(before.number(f"step_time_{end}") / before.number("step_time"))[0])) for end in ("low", "high")
    ]
    assert shown[0] == pytest.approx(shown[1], rel=1e-9)
    far = (shown[0] ** 2 - band["step"] ** 2 - band["step_source"] ** 2) / band["step_far"] ** 2
    assert 0.0 <= far < 4.0
    memory = float(np.log(before.number("memory_high") / before.number("memory"))[0])
    wide = band["memory"] ** 2 + band["memory_source"] ** 2 + far * band["memory_far"] ** 2
    assert memory**2 == pytest.approx(wide, rel=1e-6)
    path.write_text(f"{header}GPT3-175B,H200-SXM-141GB,64,8,8,{1.05 * before.number('step_time')[0]}\n")
    runs = read_plans(path)
    after = evaluate(runs[0], shipped().with_tables([own_runs(runs, shipped())]))
    width = np.log(after.number("step_time_high") / after.number("step_time_low"))[0]
    assert 0.0 < width < 0.5 * sum(shown)
    assert after.number("memory_high")[0] == before.number("memory_high")[0]  # nobody measured it


def test_memory_of_a_plan_that_nobody_ran_has_the_wider_band_whatever_else_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same plans as if their software had runs of the model on the accelerator, and as if it had none."""
    plans: list[dict[str, object]] = [
        {**RUN, "accelerator": accelerator, "model": model, "software": software, "num_accelerators": count}
        for accelerator in ("A100-SXM4-80GB", "H100-SXM-80GB", "B200-SXM-180GB", "MI300X", "TPU-v5p")
        for model in ("Meta-Llama-3.1-70B", "Mixtral-8x7B-v0.1")
        for software in ("megatron", "torchtitan", "somebody's")
        for count in (64, 8192)
    ]
    widths = []
    for unread in (0.0, 1.0):

        def known(*given: Any, unread: float = unread) -> dict[str, np.ndarray]:
            result = trust(*given)
            return result | {"unread": np.full(len(result["unread"]), unread)}

        monkeypatch.setattr("xlperf.engine.training.trust", known)
        results = results_of("training", *plans)
        ends = [np.log(results.number(f"memory_{end}") / results.number("memory")) for end in ("low", "high")]
        widths.append(np.abs(ends))
    assert (widths[0] > 0.0).all() and (widths[1] > widths[0]).all()


def test_an_illegal_plan_has_no_badge() -> None:
    results = results_of("training", {**RUN, "tensor_parallel": 7})
    assert results["trust"][0] == results["trust_reason"][0] == ""


def test_one_row_and_many_rows_say_the_same() -> None:
    plans = [RUN, {**RUN, "num_accelerators": 4096}, {**RUN, "accelerator": "B200-SXM-180GB"}]
    many = results_of("training", *plans)
    for row, plan in enumerate(plans):
        one = results_of("training", plan)
        assert one["trust"][0] == many["trust"][row] and one["trust_reason"][0] == many["trust_reason"][row]
        assert one.number("step_time_high")[0] == many.number("step_time_high")[row]


def test_without_results_the_badge_goes_by_model_and_accelerator() -> None:
    names = (("models", "model"), ("accelerators", "accelerator"))
    rows = [shipped().tables[kind].text(column).tolist().index(RUN[column]) for kind, column in names]
    at = np.full((len(RANGES), 1), np.nan)
    words = coded_words(["megatron"]), coded_words(["16-bit/"])
    result = trust("training", shipped(), *(np.array([row]) for row in rows), *words, at)
    assert result["trust"][0] == BADGES[0] and result["distance"][0] == 0.0


def test_the_table_of_measured_runs_is_that_of_the_published_rows() -> None:
    """Models, accelerators, numbers of rows, and in what which software was measured; errors move with every fit."""
    measured = shipped_measured()
    made = measured_csv((measured.training, measured.inference), shipped(), []).splitlines()
    shown = {
        (
            one.kind,
            one.model,
            one.shape,
            f"{one.parameters:.4g}",
            one.accelerator,
            f"{one.rows}",
            " ".join(f"{name}/{own.format}/{own.load}" for name, own in one.conditions),
        )
        for kind in ("training", "inference")
        for one in measured_runs(kind)
    }
    lines = [line.split(",") for line in made[1:]]
    assert {(*line[:4], line[4].casefold(), line[6], line[-1]) for line in lines} == shown


def test_releases_that_nobody_measured_are_farther_than_those_that_somebody_did() -> None:
    """vLLM 0.6 on a machine and a model that newer releases ran: their constants and 1.2 ms a step, a wider band."""
    plan = {**SERVED, "model": "Qwen3-32B", "accelerator": "H100-SXM-80GB", "mode": "continuous", "concurrency": 16}
    results = results_of("inference", {**plan, "software": "vllm"}, {**plan, "software": "vllm-0.6"})
    width = results.number("tpot_high") / results.number("tpot_low")
    assert width[1] > 1.05 * width[0]
    assert results.text("trust").tolist()[1] == "EXTRAPOLATED"
    assert results.number("tpot")[1] == pytest.approx(results.number("tpot")[0] + 1.2e-3, rel=0.1)


def test_copies_of_an_accelerator_are_compared_with_published_runs_once(
    tmp_path: Path, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep of a number of the catalog has a copy of the accelerator for each sample."""
    pairs: list[int] = []
    pair_of = trust_module._pair
    monkeypatch.setattr(trust_module, "_pair", lambda *asked: pairs.append(1) or pair_of(*asked))
    plans = tmp_path / "plans.csv"
    plans.write_text("model,accelerator,num accelerators\nLlama3-70B,H100-SXM-80GB,64\n")
    vary = ("--vary", "accelerators.memory bandwidth=x0.9..x1..x1.1", "--samples", "300", "--processes", "1")
    done = command("evaluate", plans, *vary, "-o", tmp_path / "results.csv")
    assert done.code == 0 and len(pairs) <= 5  # once for each block of samples
