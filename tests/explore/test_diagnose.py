"""Diagnoses: known faults are found again, published changes named, measurements inside the band left alone."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import openpyxl
import pytest
import run_logs
from conftest import Outcome, csv_rows
from shipped import shipped_published

from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.base.resources import rows, workbook
from xlperf.calibrate.published_errors import plans_of
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import results_of, table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore.causes import NONE, Variants, changes, measured_texts
from xlperf.explore.diagnose import BANDED, Diagnosis, Measured, diagnose, read_measured
from xlperf.explore.objectives import objective_of
from xlperf.interop.logs import read_log, read_profile
from xlperf.measurements.comparison import RATES, STEP_TIME, compare, predicted
from xlperf.measurements.published import PublishedPlans

Command = Callable[..., Outcome]
NAME = "Llama-3 70B, 64 H100, bf16"


def shipped(kind: str) -> Table:
    table = next(table for table in read_plans(workbook()) if table.kind == kind)
    stated = [row for row in range(len(table)) if not any(mask[row] for mask in table.auto.values())]
    return replace(table.take(stated), auto={})


def named(name: str = NAME) -> Table:
    table = shipped("training")
    return table.take([table["name"].tolist().index(name)])


def causes_of(result: Diagnosis) -> list[frozenset[str]]:
    return [frozenset(words.split(" + ")) for words in result.explanations["cause"].tolist()]


NOT_SHIPPED = {"gradients in FP32", "context not balanced", "prefix cache not hit", "two-batch overlap off"}
NOT_SHIPPED |= {"drafted tokens rejected", "CUDA graphs off"}
"""Causes of which no shipped plan uses what they take away."""


# --- the data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_every_change_is_of_columns_that_there_are(kind: str) -> None:
    sheets = {"plan": kind, "accelerators": "accelerators", "innermost tier": "networks", "outer tiers": "networks"}
    for change in changes(kind):
        if change.sheet == "results":
            assert change.columns == ("time",)
            continue
        known = table_schema(sheets[change.sheet]).by_name
        assert set(change.columns) <= set(known)
        assert 0.0 < change.prior < 0.2 and len(change.advice) > 10
        if change.sheet == "accelerators":
            assert 0.0 < change.factor < 1.0


def test_priors_are_counts_of_public_scripts_or_alike() -> None:
    """A setting: a tenth of its share of the scripts (rule of succession), 0.01 at least; faults all have the same."""
    others = set()
    for row in rows("explore/causes.csv"):
        counted = re.match(r"(\d+) of (\d+) public launch scripts \w+", row["source"])
        if counted is None:
            others.add((row["prior"], row["source"]))
            continue
        of_value, scripts = (float(number) for number in counted.groups())
        shares = [(of_value + 1.0) / (scripts + values) for values in (2.0, 3.0, 4.0)]
        assert any(abs(max(0.1 * share, 0.01) - float(row["prior"])) < 6e-4 for share in shares), row["cause"]
        assert of_value <= scripts <= 59
    assert others == {("0.03", "no published count: as every fault and fall-back")}


@pytest.mark.slow
def test_every_value_of_a_plan_column_is_legal_somewhere() -> None:
    """Each change alone moves a result of some shipped plan: no row of the sheet of causes is dead."""
    catalog = load_catalog()
    for kind in ("training", "inference"):
        alive: set[str] = set()
        plans = shipped(kind)
        asked = {change.cause for change in changes(kind)} - NOT_SHIPPED
        for row in range(len(plans)):
            if asked <= alive:
                break
            variants = Variants.of(plans.take([row]))
            table, changed = variants.evaluated_on(catalog)
            few = np.arange(1 + len(variants.tried))
            results = evaluate(table.take(few), changed)
            names = (BANDED[kind], "memory", "max_batch_size", "ttft")
            shown = np.stack([results.number(name) for name in names if name in results])
            moved = (np.abs(shown / shown[:, :1] - 1.0) > 1e-3).any(axis=0)
            for number, change in enumerate(variants.tried, 1):
                if change.sheet == "results" or moved[number]:
                    alive.add(change.cause)
        assert asked <= alive


# --- faults that are known -------------------------------------------------------------------------------------------


@dataclass
class Score:
    """Of synthetic runs: first cause right, all causes among the first three, remainder under 5 %."""

    first: int = 0
    three: int = 0
    close: int = 0
    count: int = 0


def results_of_variants(variants: Variants, catalog: Catalog) -> tuple[Table, dict[str, np.ndarray]]:
    """Results of all variants, and what would be measured: changed where a change is of the measured times alone."""
    results = evaluate(*variants.evaluated_on(catalog))
    values = {}
    for column in results.schema.columns:
        if column.name in results and not column.is_text:
            values[column.name] = results.number(column.name).copy()
            if column.unit in ("s", "ms") and not column.name.startswith("time_"):
                values[column.name] *= variants.time_factors
            elif column.name.startswith("tokens_per_second"):
                values[column.name] /= variants.time_factors
    return results, values


def read_run(kind: str, write: Callable[..., str], values: dict[str, float], rng: object, path: Path) -> list[str]:
    """What the log of a run, the power of its accelerators and a profile say, written as text and read back."""
    texts: dict[str, str] = {}
    for one in (write, run_logs.nvidia_smi):
        path.write_text(one(values, rng))
        texts |= {value.result: value.text for value in read_log(path).results}
    path.write_text(run_logs.PROFILES[kind](values, rng))
    return [*texts.values(), *measured_texts(kind, read_profile(path))]


def synthetic(kind: str, count: int, seed: int, path: Path) -> Score:
    """Logs of runs of shipped plans with one or two faults drawn by their priors, beside logs of runs without.

    Faults move the step outside the band. Three of four runs have one. The first cause is right if all that the first
    explanation names is at fault; both must be one explanation to be among the first three.
    """
    rng, catalog, plans, score = np.random.default_rng(seed), load_catalog(), shipped(kind), Score()
    main, formats = BANDED[kind], run_logs.TRAINING if kind == "training" else run_logs.SERVING
    while score.count < count:
        plan = plans.take([int(rng.integers(len(plans)))])
        variants = Variants.of(plan)
        results, values = results_of_variants(variants, catalog)
        ratio = values[main] / values[main][0]
        band = [float(results.number(f"{main}_{end}")[0] / results.number(main)[0]) for end in ("low", "high")]
        outside = np.isfinite(ratio) & ((ratio < band[0]) | (ratio > band[1]))
        seen = np.append(np.abs(ratio[1 : len(variants.tried) + 1] - 1.0) > 0.04, True)
        two = score.count % 4 == 3
        prior = np.array([change.prior for change in variants.tried] + [1.0])
        chance = prior[variants.first] * prior[variants.second] * outside * ((variants.second != NONE) == two)
        chance *= seen[variants.first] & seen[variants.second]
        if not chance.sum() > 0.0:
            continue
        row = int(rng.choice(len(chance), p=chance / chance.sum()))
        write = list(formats.values())[score.count % len(formats)]
        after, before = (
            read_run(kind, write, {name: float(each[place]) for name, each in values.items()}, rng, path)
            for place in (row, 0)
        )
        names = {text.partition("=")[0] for text in after}
        measured = read_measured(kind, after, [text for text in before if text.partition("=")[0] in names])
        result = diagnose(plan, catalog, measured, top=3, ranked=True)
        fault = {variants.tried[n].cause for n in (variants.first[row], variants.second[row]) if n != NONE}
        score.count += 1
        score.first += causes_of(result)[0] <= fault
        score.three += frozenset(fault) in causes_of(result)
        score.close += abs(result.explanations["remainder"][0]) < 0.05
    return score


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variants of a plan on the shipped catalog are evaluated once: logs of equal plans, and their diagnoses."""
    known: dict[str, Table] = {}
    computed = evaluate

    def evaluated(table: Table, catalog: Catalog, progress: object = None) -> Table:
        key = str([table.kind, *((name, values.tolist()) for name, values in sorted(table.columns.items()))])
        if key not in known:
            known[key] = computed(table, catalog)
        return known[key]

    monkeypatch.setattr("xlperf.explore.diagnose.evaluate", evaluated)
    monkeypatch.setitem(globals(), "evaluate", evaluated)


@pytest.mark.usefixtures("once")
def test_known_faults_are_found_again_from_logs(tmp_path: Path) -> None:
    """40 logs in the formats of ten stacks.

    The ranking was developed on seeds 1 to 9 and 2026. Of 360 runs of six seeds drawn afterwards (72001 to 72006) the
    first cause is right in 93 %, all causes are among the first three in 97 %, the remainder is under 5 % in 96 %; of
    360 of six more (90101 to 90106), after constants were fitted anew, in 97, 96 and 95 %. With the rule that a rest
    calls for a second cause, chosen on 2026 and 93001 to 93006: 94, 98 and 97 % of six drawn afterwards (95001 to
    95006). With bands by one rule, which draw other runs: 96, 97 and 97 % of 180 (95001 to 95003).
    """
    result = [synthetic(kind, count, 95001, tmp_path / "log") for kind, count in (("training", 24), ("inference", 16))]
    total = sum(one.count for one in result)
    assert total == 40
    assert sum(one.first for one in result) >= 0.85 * total
    assert sum(one.three for one in result) >= 0.95 * total
    assert sum(one.close for one in result) >= 0.95 * total


# --- changes that were published -------------------------------------------------------------------------------------

OF_COLUMN = {
    ("recompute", "full"): "full recomputation",
    ("recompute", "none"): "no recomputation",
    ("recompute", "selective"): "selective recomputation",
    ("sequence_parallel", "0.0"): "sequence parallelism off",
    ("sequence_parallel", "1.0"): "sequence parallelism on",
    ("precision", "bf16"): "precision falls back to bf16",
    ("precision", "fp4"): "products in FP4",
}


def measured_values(plans: PublishedPlans) -> dict[int, dict[str, float]]:
    """What was measured of published plans, by result."""
    results = predicted(plans)
    at = {name: row for row, name in enumerate(plans.published.text["row_id"])}
    where = {int(row): number for number, row in reversed(list(enumerate(plans.index.tolist())))}
    result: dict[int, dict[str, float]] = {}
    for record in compare(plans, results):
        plan = where.get(at[record.row_id])
        if plan is None or not record.covered or not record.predicted > 0.0:
            continue
        ratio = record.measured / record.predicted
        if record.quantity in (STEP_TIME, "layer time") and record.primary:
            name = "step_time" if record.quantity == STEP_TIME else "layer_time"
            ratio = 1.0 / ratio if record.metric in RATES else ratio
        elif record.quantity == "memory":
            shares = plans.published.text["mem_kind"][at[record.row_id]].startswith("percent")
            name = "memory_layer_activations" if shares else "memory"
        else:
            continue
        result.setdefault(plan, {})[name] = float(results.number(name)[plan]) * ratio
    return result


def published_pairs() -> list[tuple[PublishedPlans, int, int, str, dict[int, dict[str, float]]]]:
    """Published plans of one source that differ in one thing, in both directions, each configuration once."""
    pairs, seen = [], set()
    follows = {"quantized_copies", "wide_layers", "activation_storage", "pipeline_schedule", "name"}
    own = ("recompute", "sequence_parallel", "virtual_pipeline", "precision")
    for published in shipped_published():
        if published.kind != "training":
            continue
        plans = plans_of(published, load_catalog())
        values = measured_values(plans)
        table = plans.plans
        filled = {name: table.filled(name).astype(str) for name in table.columns if name not in follows}
        groups: dict[tuple[str, ...], list[int]] = {}
        for plan in values:
            key = tuple(str(words[plan]) for name, words in filled.items() if name not in own)
            groups.setdefault((published.text["source_id"][int(plans.index[plan])], *key), []).append(plan)
        for key, group in groups.items():
            for one, other in itertools.permutations(group, 2):
                differ = [name for name in own if name in filled and filled[name][one] != filled[name][other]]
                common = set(values[one]) & set(values[other])
                state = (key, tuple(filled[name][one] for name in own), tuple(filled[name][other] for name in own))
                if len(differ) != 1 or not common or state in seen:
                    continue
                seen.add(state)
                name, value = differ[0], str(filled[differ[0]][other])
                cause = OF_COLUMN.get((name, value), "products in FP8" if "fp8" in value else "")
                if name == "virtual_pipeline":
                    cause = "interleaving not used" if value == "1.0" else "interleaving used"
                if cause:
                    pairs.append((plans, one, other, cause, values))
    return pairs


@pytest.mark.slow
def test_changes_between_published_runs_are_named() -> None:
    """Of pairs of runs whose measurements differ by more than the band, the change is named first in 80 %.

    Every fourth pair is tried.

    Nothing in the ranking was fitted on them: priors are counts of launch scripts, or all alike. Recipes of the same
    precision family count as one cause; by source it is 92 % of memories, 90 % of the DGX recipes, 58 % of the layer
    times, 57 % of Megatron-Bridge and half of torchtitan.
    """
    right = outside = 0
    for plans, one, other, cause, values in published_pairs()[::4]:
        measured = [
            Measured(objective_of("training", name), values[other][name], values[one][name])
            for name in values[one]
            if name in values[other]
        ]
        result = diagnose(plans.plans.take([one]), plans.catalog, measured, top=1)
        if not result.inside:
            outside += 1
            right += causes_of(result)[0] == {cause}
    assert outside >= 30
    assert right >= 0.8 * outside


# --- laws ------------------------------------------------------------------------------------------------------------


def test_inside_the_band_is_said_to_be_inside() -> None:
    plan = named()
    step = float(evaluate(plan, load_catalog())["step_time"][0])
    result = diagnose(plan, load_catalog(), read_measured("training", [f"step time={step * 1.02} s"]))
    assert result.inside and not len(result.explanations)
    assert result.readings[0].words.endswith("inside the band")


def test_a_fault_is_the_difference_of_two_plans() -> None:
    """The prediction of an explanation is that of the changed plan, evaluated by itself."""
    catalog, plan = load_catalog(), named()
    result = diagnose(plan, catalog, read_measured("training", ["step time=20.6 s", "memory=25 GiB"]))
    full = evaluate(replace(plan, columns={**plan.columns, "recompute": np.array(["full"], dtype=object)}), catalog)
    assert result.explanations["cause"][0] == "full recomputation"
    assert result.explanations["predicted"][0].startswith(f"step time {full['step_time'][0]:.4g} s")
    assert abs(result.steps["difference"][1:-1].sum() - (20.6 - result.steps["value"][0])) < 1e-9
    assert 0.0 < result.explanations["probability"].sum() <= 1.0
    assert (np.diff(result.explanations["probability"]) <= 0.0).all()


def test_slow_links_change_the_tiers_that_they_are_of() -> None:
    catalog, plan = load_catalog(), named()
    variants = Variants.of(plan)
    table, changed = variants.evaluated_on(catalog)
    for sheet, places in (("innermost tier", [0]), ("outer tiers", [1])):
        number = next(n for n, change in enumerate(variants.tried) if change.sheet == sheet)
        row = 1 + number
        before = catalog.tables["networks"].number("link_bandwidth")
        default = catalog.tables["accelerators"].text("default_network")
        own = default[catalog.tables["accelerators"]["accelerator"].tolist().index(plan["accelerator"][0])]
        first = before[catalog.network_tiers(str(own))]
        after = changed.tables["networks"].number("link_bandwidth")[changed.network_tiers(str(table["network"][row]))]
        factor = np.ones(len(first))
        factor[places] = variants.tried[number].factor
        assert after.tolist() == pytest.approx((first * factor).tolist())


def test_a_change_away_from_the_measurement_is_no_explanation(command: Command) -> None:
    """Three times the predicted rate: faults are not listed, and what is left is said."""
    outcome = command("diagnose", workbook(), "--name", NAME, "--measured", "tokens per second=200000")
    assert outcome.code == 1 and "slow" not in outcome.out and "power cap" not in outcome.out
    assert "no change that is tried comes near" in outcome.err
    assert "outside the band of explanation 1 as well: tokens per second" in outcome.out


def test_nothing_near_exits_with_1_and_no_probability(command: Command, tmp_path: Path) -> None:
    """28 s beside a measurement of 0.25 s: the best cause leaves 97 %, so a cause that is not listed is likelier."""
    plans = tmp_path / "plans.csv"
    plans.write_text(
        "model,accelerator,num accelerators,pipeline parallel,virtual pipeline,expert parallel,global batch size\n"
        "Qwen3-30B-A3B,H100-SXM-80GB,16,2,12,8,512\n"
    )
    outcome = command("diagnose", plans, "--measured", "step time=0.25", "-o", tmp_path / "why.json")
    assert outcome.code == 1 and "no change that is tried comes near" in outcome.err
    assert sum(row["probability"] for row in json.loads((tmp_path / "why.json").read_text())) < 0.1


def test_a_frequent_setting_does_not_hide_a_cause_that_explains(command: Command, tmp_path: Path) -> None:
    """A rival with the measurement in its band precedes a likelier cause, and something comes near."""
    plans = tmp_path / "plans.csv"
    plans.write_text(
        "model,accelerator,num accelerators,tensor parallel,expert parallel,expert tensor parallel,global batch size,"
        "micro batch size,sequence length,data overlap\nMixtral-8x7B-v0.1,H100-SXM-80GB,16,4,4,4,128,1,2048,no\n"
    )
    outcome = command("diagnose", plans, "--measured", "step time=10.06", "-o", tmp_path / "why.json")
    found = json.loads((tmp_path / "why.json").read_text())
    assert outcome.code == 0 and "comes near" not in outcome.err
    assert abs(found[0]["remainder"]) < 0.25 and found[0]["probability"] < max(row["probability"] for row in found)


def test_a_wide_band_explains_nothing(command: Command, tmp_path: Path) -> None:
    """A band of more than 1.5 times holds the measurement, and causes are ranked.

    The plan is that of Megatron-Bridge issue 949, by the stack of NeMo 2: Megatron-Bridge has a narrower band.
    """
    plans = tmp_path / "plans.csv"
    plans.write_text(
        "model,accelerator,num accelerators,pipeline parallel,virtual pipeline,expert parallel,micro batch size,"
        "global batch size,sequence length,recompute,software,software release,cross entropy\n"
        "Qwen3-30B-A3B,H100-SXM-80GB,16,2,2,2,8,512,4096,full,nemo,25.04,fused\n"
    )
    whole = evaluate(read_plans(plans)[0], load_catalog())
    step, high = float(whole["step_time"][0]), float(whole["step_time_high"][0])
    assert high / step > 1.5
    outcome = command("diagnose", plans, "--measured", f"step time={(step * high) ** 0.5}")
    assert outcome.code == 0 and "which is too wide to explain it" in outcome.out and "rank" in outcome.out
    assert "rank" not in command("diagnose", plans, "--measured", f"step time={1.02 * step}").out


def test_names_as_people_write_them(command: Command, tmp_path: Path) -> None:
    """H100 names one row, however many changed copies of it are tried."""
    plans = tmp_path / "plans.csv"
    plans.write_text("model,accelerator,num accelerators,tensor parallel\nLlama3-70B,{},64,8\n".format("H100"))
    short = command("diagnose", plans, "--measured", "step time=60")
    plans.write_text(plans.read_text().replace("H100", "H100-SXM-80GB"))
    assert short.code == 0 and short.out == command("diagnose", plans, "--measured", "step time=60").out


def test_what_tells_two_explanations_apart_is_named() -> None:
    """One step time fits several causes; the result named differs between the first two by more than its band."""
    result = diagnose(named(), load_catalog(), read_measured("training", ["step time=20.6 s"]))
    assert re.match(r"to tell 1 from 2, measure [a-z ]+ [\d.]+ \w+ \(1\) or", result.telling)


@pytest.mark.parametrize(
    ("texts", "before", "words"),
    [
        (["step tme=3"], [], "step time"),
        (["step time 3"], [], 'must be as "step time=38 s"'),
        (["step time=3 GiB"], [], "cannot be in GiB"),
        (["step time=1e400"], [], 'must be as "step time=38 s"'),
        (["step time=1-2"], [], 'must be as "step time=38 s"'),
        (["step time=-3"], [], "must be above 0"),
        (["step time=3", "step time=4"], [], "given twice"),
        (["step time=3"], ["memory=3"], "not among --measured"),
    ],
)
def test_what_is_no_measurement_is_refused_in_a_line(texts: list[str], before: list[str], words: str) -> None:
    with pytest.raises(InputError) as caught:
        read_measured("training", texts, before)
    assert words in "\n".join(caught.value.lines())


# --- the command and the function ------------------------------------------------------------------------------------


def test_command(command: Command, tmp_path: Path) -> None:
    asked = ("diagnose", workbook(), "--name", NAME, "--measured", "step time=20.6 s", "--measured", "memory=25")
    outcome = command(*asked)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].startswith("measured step time 20.6 s; predicted step time 15.61 s")
    assert "full recomputation" in next(line for line in lines if line.startswith("   1"))
    assert any(line.startswith("1: activation checkpointing") for line in lines)
    why = tmp_path / "why.json"
    assert command(*asked, "-o", why).code == 0
    rows = json.loads(why.read_text())
    assert rows[0]["cause"] == "full recomputation" and rows[0]["change"] == "recompute full"
    book = tmp_path / "why.xlsx"
    assert command(*asked, "-o", book).code == 0
    read = openpyxl.load_workbook(book)
    assert set(read.sheetnames) == {"diagnosis", "waterfall", "training", "asked"}
    assert read_plans(book)[0]["tensor_parallel"][0] == 2.0  # the better plan
    assert len(read["asked"]._charts) == 2
    assert [read["waterfall"].cell(row, 2).value for row in (2, 3)] == ["predicted", "full recomputation"]


def test_what_remains_is_a_measured_run(command: Command, tmp_path: Path) -> None:
    """The row has the setting that was found, so that predictions are corrected by the remainder alone."""
    row = tmp_path / "runs.csv"
    asked = ("diagnose", workbook(), "--name", NAME, "--measured", "step time=20.6 s", "--measured", "memory=25")
    assert command(*asked, "--mine", row).code == 0
    (line,) = csv_rows(row.read_text())
    assert line["recompute"] == "full" and float(line["measured_step_time"]) == 20.6
    shown = command("calibrate", "--mine", row)
    assert shown.code == 0 and "20.6" in shown.out and "own runs: your steps take" in shown.out
    again = command(*asked, "--measured", row)
    assert again.code == 0 and "own runs: your memory is" in again.err


def test_command_inside_the_band_and_illegal_plans(command: Command, tmp_path: Path) -> None:
    outcome = command("diagnose", workbook(), "--name", NAME, "--measured", "step time=15.7")
    assert outcome.code == 0 and "inside the band" in outcome.out and "rank" not in outcome.out
    plans = tmp_path / "plans.csv"
    plans.write_text("model,accelerator,num accelerators,tensor parallel\nLlama3-70B,H100-SXM-80GB,64,3\n")
    outcome = command("diagnose", plans, "--measured", "step time=15.7")
    assert outcome.code == 2 and "the plan has no step time: " in outcome.err and "tensor parallel" in outcome.err


def test_function() -> None:
    plan = [["model", "accelerator", "num accelerators", "tensor parallel"], ["Llama3-70B", "H100-SXM-80GB", 64.0, 8.0]]
    session = Session()
    header, first, *_ = session.call("XLPERF_DIAGNOSE", [plan, [["step time", 60.0]]])
    assert header[:2] == ["rank", "cause"] and first[0] == 1.0
    assert session.call("XLPERF_DIAGNOSE", [plan, [["step time=60 s"]]])[1] == first
    step = session.call("XLPERF_STEP_TIME", [plan])[0][0]
    assert "inside the band" in session.call("XLPERF_DIAGNOSE", [plan, [["step time", step]]])[0][0]
    assert len(header) == len(results_of("training").columns[:7])
