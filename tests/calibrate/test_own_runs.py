"""Runs of one's own: what they teach about plans near and far, the band after them, bad cells, and every surface."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome, csv_rows
from fit_samples import sample_coarsely
from shipped import few_rows, plain_workbook, shipped_published, shipped_tables

import xlperf
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.base.resources import workbook
from xlperf.calibrate.own_fit import Accuracy, accuracies, sources_left_out
from xlperf.calibrate.validate import effects, own_runs
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.read import read_plans
from xlperf.catalog.schema import MEASURED, OWN_RUNS
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.learning import QUANTITIES, Places, Process, band, effects_of, without_own_runs
from xlperf.engine.lessons import lessons, run_faults
from xlperf.explore.changed_catalogs import changed_catalog
from xlperf.explore.vary import read_variation
from xlperf.measurements.published import Published, read_power
from xlperf.workbook import build
from xlperf.workbook.build import workbook_package

Command = Callable[..., Outcome]
HEADER = "name,model,accelerator,num accelerators,tensor parallel,global batch size"
PLANS = f"""{HEADER}
a,Llama3-70B,H100-SXM-80GB,64,8,128
b,Llama3-70B,H100-SXM-80GB,128,8,256
c,GPT3-175B,H100-SXM-80GB,64,8,128
d,Llama3-70B,B200-SXM-180GB,64,8,128
e,GPT3-175B,A100-SXM4-80GB,64,8,128
f,Llama3-70B,H100-SXM-80GB,64,3,128
"""
SERVING = """name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,{load},mode,software
a,Llama3-70B,H100-SXM-80GB,8,4,1024,256,{number},{mode},vllm
"""
MODES = {"static": ("concurrency", 32), "continuous": ("concurrency", 32), "disaggregated": ("concurrency", 32)}


def read(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "plans.csv"
    path.write_text(text)
    return read_plans(path)[0]


def measured(plans: Table, rows: list[int], **factors: float) -> Table:
    """Some plans with measured values that are predicted ones times a factor."""
    some = plans.take(rows)
    results = evaluate(some, load_catalog())
    return some.with_columns({MEASURED + name: results[name] * factor for name, factor in factors.items()})


def small_book(runs: Table) -> bytes:
    """A workbook with few plans and prices, every model and machine, and own runs; with formulas alone."""
    named = {kind: shipped_tables()[kind] for kind in ("models", "accelerators", "networks")}
    return workbook_package({**few_rows(), **named, OWN_RUNS: runs}, False)


def taught(*runs: Table) -> Catalog:
    return load_catalog().with_tables([own_runs(runs, load_catalog())])


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.25, 2.0])
@pytest.mark.parametrize("name", ["step_time", "memory"])
def test_a_run_lies_in_its_own_band(tmp_path: Path, name: str, factor: float) -> None:
    plans = read(tmp_path, PLANS)
    run = measured(plans, [0], **{name: factor})
    after = evaluate(run, taught(run))
    assert after[f"{name}_low"][0] <= run[MEASURED + name][0] <= after[f"{name}_high"][0]
    noise = np.log(after[name][0] / run[MEASURED + name][0])
    assert abs(noise) < 0.1 * abs(np.log(factor)) + 1e-9  # the ratio applies nearly whole where it was measured


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("mode", MODES)
def test_a_served_run_lies_in_its_own_band(tmp_path: Path, mode: str, factor: float) -> None:
    load, number = MODES[mode]
    plans = read(tmp_path, SERVING.format(mode=mode, load=load, number=number))
    run = measured(plans, [0], tpot=factor, ttft=1.0 / factor)
    before, after = evaluate(plans, load_catalog()), evaluate(plans, taught(run))
    for name in ("tpot", "ttft"):
        assert after[f"{name}_low"][0] <= run[MEASURED + name][0] <= after[f"{name}_high"][0]
    power = {"accelerator_power": 1.0, "tpot": factor}
    drawn = evaluate(plans, taught(measured(plans, [0], **power)))["accelerator_power"]
    assert drawn == pytest.approx(before["accelerator_power"], rel=1e-6)
    # the corrected times and rates belong together
    assert after["latency"][0] == pytest.approx(after["ttft"][0] + 255.0 * after["tpot"][0], rel=1e-6)
    served = after["tokens_per_second"] * after["latency"], before["tokens_per_second"] * before["latency"]
    assert served[0][0] == pytest.approx(served[1][0])
    parts = [name for name in after.columns if name.startswith("time_")]
    scaled = sum(after[name][0] for name in parts) / sum(before[name][0] for name in parts)
    assert scaled == pytest.approx(after["tpot"][0] / before["tpot"][0])


def test_runs_of_two_ways_still_lie_in_their_band(tmp_path: Path) -> None:
    """Two measurements of one plan that contradict each other by a factor of two."""
    plans = read(tmp_path, PLANS)
    runs = [measured(plans, [0], step_time=factor) for factor in (0.7, 1.4)]
    runs[1] = runs[1].with_columns({"name": np.array(["again"], dtype=object)})
    after = evaluate(plans, taught(*runs))
    for run in runs:
        assert after["step_time_low"][0] <= run["measured_step_time"][0] <= after["step_time_high"][0]


def test_near_plans_move_more_than_far_ones(tmp_path: Path) -> None:
    plans = read(tmp_path, PLANS)
    before, after = evaluate(plans, load_catalog()), evaluate(plans, taught(measured(plans, [0], step_time=1.3)))
    ratio = after["step_time"] / before["step_time"]
    own, near, model, machine, far, illegal = ratio.tolist()
    assert own >= near > model > 1.0 and near > machine > far > 1.0 and np.isnan(illegal)
    width = np.log(after["step_time_high"] / after["step_time_low"])
    wide = np.log(before["step_time_high"] / before["step_time_low"])
    assert (width[:2] < wide[:2]).all() and width[4] / wide[4] > width[2] / wide[2]
    parts = [name for name in after.columns if name.startswith("time_")]
    assert sum(after[name][0] for name in parts) == pytest.approx(after["step_time"][0])
    assert "1 own run: steps take 1.30 times as long as predicted without" in after["reason"][0]
    operators = explain(plans, taught(measured(plans, [0], step_time=1.3)))
    assert operators.number("exposed_time").sum() == pytest.approx(after["step_time"][0], rel=1e-9)


def test_memory_and_power_are_learned_too(tmp_path: Path) -> None:
    plans = read(tmp_path, PLANS)
    before = evaluate(plans, load_catalog())
    after = evaluate(plans, taught(measured(plans, [0], memory=1.5, accelerator_power=0.8)))
    assert 1.4 < after["memory"][0] / before["memory"][0] < 1.5
    assert (
        after["memory_reserved"][0] > before["memory_reserved"][0] and after["step_time"][0] == before["step_time"][0]
    )
    # measured watts are compared with watts as predicted: a step twice as long does not halve them
    slow = evaluate(plans, taught(measured(plans, [0], step_time=2.0, accelerator_power=1.0)))
    assert slow["accelerator_power"] == pytest.approx(before["accelerator_power"], rel=1e-6, nan_ok=True)
    unmeasured = evaluate(plans, taught(measured(plans, [0], step_time=2.0)))
    assert unmeasured["accelerator_power"][0] < 0.9 * before["accelerator_power"][0]
    groups = ("memory_weights", "memory_gradients", "memory_optimizer", "memory_activations")
    assert sum(after[name][0] for name in groups) == pytest.approx(after["memory"][0])
    assert 0.8 < after["accelerator_power"][0] / before["accelerator_power"][0] < 0.95
    assert after["energy_per_token"][0] < before["energy_per_token"][0]


def test_without_runs_every_bit_stays(tmp_path: Path) -> None:
    """Also for plans of the other kind than the runs."""
    plans = read(tmp_path, PLANS)
    catalog = taught(measured(plans, [0], step_time=1.3))
    serving = read(tmp_path, SERVING.format(mode="continuous", load="concurrency", number=32))
    for table, known in ((plans, without_own_runs(catalog)), (serving, catalog)):
        before, after = evaluate(table, load_catalog()), evaluate(table, known)
        for name, values in before.columns.items():
            assert np.array_equal(after[name], values, equal_nan=values.dtype != object), name


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    plans = read(tmp_path, PLANS)
    runs = [measured(plans, [row], step_time=factor) for row, factor in ((0, 1.2), (1, 1.1), (2, 1.4), (3, 0.9))]
    first, second = evaluate(plans, taught(*runs)), evaluate(plans, taught(*reversed(runs)))
    for name, values in first.columns.items():
        assert np.array_equal(second[name], values, equal_nan=values.dtype != object), name
    alone = evaluate(plans.take([1]), taught(*runs))
    assert alone["step_time"][0] == first["step_time"][1]  # one row as in a table


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_laws_of_the_process(quantity: str) -> None:
    one = effects_of(quantity)
    assert sum(one.shares) == pytest.approx(1.0, abs=0.01) and min(one.shares) >= 0.0 < one.noise

    def places(*names: tuple[int, int, int], degree: float = 3.0, part: int = 0) -> Places:
        numbers = np.full((len(names), 14), degree)
        parts = np.zeros((len(names), len(one.parts)))
        parts[:, part : part + 1] = 1.0
        return Places(np.array(names), numbers, np.full((len(names), 3), "bf16", dtype=object), parts)

    def learned(ratios: list[float], plan: Places) -> tuple[float, float, float]:
        found = Process(one, places(*[(0, 0, 0)] * len(ratios)), np.array(ratios)).learned(plan)
        return found.mean[0], found.half_width[0], found.unknown[0]

    same, other = places((0, 0, 0)), places((-2, 0, 0))
    # many runs: their mean ratio; few: shrunk towards none
    many = learned([0.1, 0.3] * 150, same)
    assert many[0] == pytest.approx(0.2, rel=0.01) and abs(learned([0.2], same)[0]) < 0.2
    assert abs(learned([0.2], other)[0]) < abs(learned([0.2], same)[0])
    assert learned([0.2], same)[2] < learned([0.2], other)[2] < learned([0.2], places((-2, -2, -2)))[2] < 1.0
    # a run teaches less about a plan that spends its time in another part
    if one.parts:
        part = int(np.argmax(one.parts))
        run = Process(one, places((0, 0, 0), part=part), np.array([0.2]))
        alike, unlike = (run.learned(places((-2, 0, 0), part=at)) for at in (part, (part + 1) % len(one.parts)))
        assert alike.mean[0] > unlike.mean[0] and alike.unknown[0] < unlike.unknown[0]
    # farther settings are less certain, and a plan of which nothing is known keeps its band
    assert learned([0.2], places((0, 0, 0), degree=6.0))[2] > learned([0.2], same)[2]
    found = Process(one, same, np.array([0.2])).learned(same)
    kept = found._replace(unknown=np.ones(1), half_width=found.first, cover=np.zeros(1))
    assert band(kept, np.array([[0.3], [0.4]])) == pytest.approx(np.array([[0.3], [0.4]]))


def test_changed_hardware_does_not_change_what_runs_teach(tmp_path: Path) -> None:
    """What if memory were twice as fast: a run of today's machine teaches the same about each part of the time."""
    plans = read(tmp_path, PLANS).take([0])
    catalog = taught(measured(plans, [0], step_time=1.3))
    asked = read_variation("training", [("accelerators.memory bandwidth", ["x2"])], "--vary")
    (number,) = asked.varied
    results = []
    for known in (load_catalog(), catalog):
        changed = changed_catalog(known, plans, [(number, float(number.values[0]))])
        results.append(evaluate(plans, changed)["step_time"][0] / evaluate(plans, known)["step_time"][0])
    assert results[0] < 0.999 and results[1] == pytest.approx(results[0], rel=0.02)
    sent = pickle.loads(pickle.dumps(changed))  # as to a worker of a cluster
    assert evaluate(plans, sent)["step_time"][0] == evaluate(plans, changed)["step_time"][0]


def test_an_outlier_is_named_and_not_clipped(tmp_path: Path) -> None:
    plans = read(tmp_path, PLANS)
    steady = [measured(plans, [row], step_time=1.1) for row in (0, 1, 2)]
    odd = measured(plans, [3], step_time=2.8)
    (one,) = lessons(taught(*steady, odd))
    assert one.runs == 4 and [name for name, _ in one.outliers] == ["d"] and "d is 2." in one.words()
    after, before = evaluate(plans, taught(odd)), evaluate(plans, load_catalog())
    assert after["step_time"][3] / before["step_time"][3] > 2.5
    (alone,) = lessons(taught(measured(plans, [0], step_time=1.14)))
    assert alone.words().startswith("your steps take 1.14 times as long as predicted (1 run), most of it in ")
    assert "in tensor parallel, which takes 1.2" in alone.words()
    # the longer part takes no more time than the longer step
    (slow,) = lessons(taught(measured(plans, [0], step_time=2.4)))
    share = before["time_tensor_parallel"][0] / before["step_time"][0]
    assert slow.part[0] == "tensor parallel" and 0.3 < share * (slow.part[1] - 1.0) / (slow.factor - 1.0) <= 1.0
    assert alone.before > 0.12 and alone.after < 0.02 and np.isnan(alone.left_out) and not alone.outliers


def test_targets_and_rates_of_serving_follow(tmp_path: Path) -> None:
    text = SERVING.format(mode="continuous", load="request rate,tpot target", number="2,40")
    plans = read(tmp_path, text)
    before = evaluate(plans, load_catalog())
    after = evaluate(plans, taught(measured(plans, [0], tpot=1.5, ttft=1.5)))
    assert after["tokens_per_second"][0] == pytest.approx(before["tokens_per_second"][0])  # the rate is given
    assert after["max_request_rate"][0] < before["max_request_rate"][0]
    assert after["batch_at_targets"][0] < before["batch_at_targets"][0]
    full = replace(plans, columns={**plans.columns, "request_rate": 0.9 * before["max_request_rate"]})
    slow = evaluate(full, taught(measured(plans, [0], tpot=2.0, ttft=2.0)))
    assert np.isnan(slow["ttft"][0]) and "requests" in slow["reason"][0]  # more than the corrected capacity


BAD = (
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,128,8400", "another unit?", "line 2, measured step time"),
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,3,128,8.4", "no step time to compare with", "line 2"),
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,128,-8.4", "above 0", "line 2, measured step time"),
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,128,nan", "must be a number", "line 2, measured step time"),
    ("step time (s)", "a,Llama3-70C,H100-SXM-80GB,64,8,128,8.4", "unknown", "line 2, model"),
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,128,", "needs plans with a column of measured values", ""),
    ("step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,128,10 %", "must be a number", "line 2, measured step time"),
)


@pytest.mark.parametrize(("column", "row", "words", "place"), BAD)
def test_what_cannot_be_a_run_gets_a_line(
    command: Command, tmp_path: Path, column: str, row: str, words: str, place: str
) -> None:
    path, plans = tmp_path / "runs.csv", tmp_path / "plans.csv"
    path.write_text(f"{HEADER},measured {column}\n{row}\n")
    plans.write_text(PLANS)
    for arguments in (("calibrate", "--mine", path), ("evaluate", plans, "--measured", path)):
        outcome = command(*arguments)
        lines = [line for line in outcome.err.splitlines() if words in line]
        assert outcome.code == 2 and len(lines) == 1 and place in lines[0], outcome.err


def test_cells_of_the_sheet_are_checked(tmp_path: Path) -> None:
    """A sheet of own runs names the cell of a fault; a serving value on a training run, and a run without a value."""
    path = tmp_path / "own.csv"
    start = "own run,model,accelerator,num accelerators,tensor parallel,"
    for rest, line, words in (
        ("measured step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,", "no measured value that teaches"),
        ("measured tpot (ms)", "a,Llama3-70B,H100-SXM-80GB,64,8,12", "belongs to a run of serving"),
        ("optimizer,measured step time (s)", "a,Llama3-70B,H100-SXM-80GB,64,8,adamm,9", "must be one of adam"),
    ):
        path.write_text(f"{start}{rest}\n{line}\n")
        with pytest.raises(InputError, match=words) as fault:
            lessons(load_catalog(path))
        assert "own.csv [line 2" in str(fault.value)


def test_the_commands(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the front sheets of a workbook take a minute to answer: it is written with formulas alone, of few rows
    monkeypatch.setattr(build, "workbook_package", lambda tables, _values: small_book(tables[OWN_RUNS]))
    path, plans, book = tmp_path / "runs.csv", tmp_path / "plans.csv", tmp_path / "mine.xlsx"
    path.write_text(f"{HEADER},optimizer,measured step time (s)\na,Llama3-70B,H100-SXM-80GB,64,8,128,adam,9.2\n")
    plans.write_text(PLANS)
    shown = command("calibrate", "--mine", path)
    assert shown.code == 0 and "8.622 " in shown.out and "80 % band now" in shown.out
    assert "own runs: your steps take 1.07 times as long as predicted (1 run), most of it in tensor" in shown.out
    assert command("calibrate", "--mine", path, "-o", book).code == 0
    assert load_catalog(book).tables[OWN_RUNS]["optimizer"].tolist() == ["adam"]  # a setting that the sheet hides
    rows = csv_rows(command("evaluate", plans, "--catalog", book).out)
    direct = command("evaluate", plans, "--measured", path)
    assert rows == csv_rows(direct.out) == csv_rows(command("evaluate", plans, "--measured", book).out)
    assert "own runs: your steps take 1.07 times" in direct.err and "1 own run: steps take" in rows[0]["reason"]
    assert command("check", book).code == 0
    again = tmp_path / "rows.csv"
    assert command("calibrate", "--mine", path, "--catalog", book, "-o", again).code == 0
    assert [row["own_run"] for row in csv_rows(again.read_text())] == ["a"]  # the same name replaces the row
    for arguments in (
        ("explain", plans, "--row", "1"),
        ("search", plans, "--row", "1", "--vary", "tensor parallel=auto"),
        ("evaluate", plans, "--vary", "tensor parallel=4,8", "--row", "1"),
        ("diagnose", plans, "--row", "1", "--measured", "step time=9.2"),
        ("uncertainty", plans, "--row", "1", "--draws", "50", "--result", "step time"),
        ("worth", plans, "--row", "1", "--vary", "accelerators.memory bandwidth=x1.1"),
    ):
        before, after = command(*arguments), command(*arguments, "--measured", path)
        assert after.code == 0 and "own runs: your steps take 1.07 times" in after.err, (arguments, after.err)
        assert after.out != before.out


def test_a_sheet_with_a_bad_run_fails_its_check(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = read(tmp_path, PLANS)
    run = measured(plans, [0], step_time=1.2).with_columns({"measured_step_time": np.array([9000.0])})
    path = tmp_path / "book.xlsx"
    plain_workbook(path, {OWN_RUNS: own_runs([run], load_catalog())})
    (fault,) = run_faults(load_catalog(path))
    assert "another unit" in fault.problem
    outcome = command("check", path)
    assert outcome.code == 1 and "book.xlsx [own_runs!" in outcome.out and "another unit" in outcome.out


def test_effects_name_what_moved(tmp_path: Path) -> None:
    plans = measured(read(tmp_path, PLANS), [0], step_time=1.1)
    (one,) = effects(taught(plans))
    assert one.before[0] < one.after[0] < one.measured and one.after[1] < one.measured < one.after[2]
    assert one.after[2] / one.after[1] < one.before[2] / one.before[1]


def test_one_row_of_cells_moves_a_formula() -> None:
    session = Session()
    plan = [
        ["model", "accelerator", "num accelerators", "tensor parallel", "global batch size"],
        ["Llama3-70B", "H100-SXM-80GB", 64.0, 8.0, 128.0],
    ]
    before = session.call("XLPERF_STEP_TIME", [plan])[0][0]
    run = [["own run", *plan[0], "measured step time (s)"], ["a", *plan[1], 1.2 * before], ["", "", "", "", "", "", ""]]
    after = session.call("XLPERF_STEP_TIME", [plan, session.call("XLPERF_CATALOG", [run])])[0][0]
    assert 1.15 < after / before < 1.2
    empty = session.call("XLPERF_CATALOG", [[run[0], run[2]]])
    assert session.call("XLPERF_STEP_TIME", [plan, empty])[0][0] == before


def test_frames_take_measured_runs() -> None:
    plan = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}
    before = xlperf.evaluate(plan)["step time (s)"][0]
    runs = [{**plan, "measured step time (s)": 1.2 * before}]
    assert 1.15 < xlperf.evaluate(plan, xlperf.with_own_runs(runs))["step time (s)"][0] / before < 1.2
    with pytest.raises(InputError, match="is auto"):
        xlperf.with_own_runs([{**runs[0], "tensor parallel": "auto"}])


BARS = {"step_time": 0.11, "ttft": 0.45, "memory": 0.20, "tpot": 0.20}
"""Largest median over sources left out, as first predicted, of the error of their other rows after one run."""


MOST_ROWS, FEWEST_SOURCES = 12, 10
"""Rows of a source that are enough for ten runs and others; sources whose share in the band tells something."""


def spread(rows: Published) -> Published:
    """At most so many rows of each source, spread evenly."""
    places: dict[str, list[int]] = {}
    for row, source in enumerate(rows.text["source_id"]):
        places.setdefault(source, []).append(row)
    chosen = [own[at] for own in places.values() for at in
              np.unique(np.linspace(0, len(own) - 1, MOST_ROWS).astype(int)).tolist()]  # fmt: skip
    return rows.take(sorted(chosen))


@pytest.mark.slow
def test_runs_of_left_out_sources_teach_about_their_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy after one, three and ten runs, against the mean ratio applied whole, and the share in the band.

    Of a dozen rows of each source of inference, in fits that sample constants coarsely; the accuracy page has all.
    """
    sample_coarsely(monkeypatch)
    power = read_power(workbook("validation.xlsx"))
    published = [spread(rows) if rows.kind == "inference" else rows for rows in shipped_published()]
    result = accuracies(sources_left_out([*published, *power], load_catalog(), str))
    by_name: dict[tuple[str, int], Accuracy] = {(one.quantity, one.runs): one for one in result}
    for quantity, bar in BARS.items():
        one = by_name[quantity, 1]
        assert one.medians[1] <= bar and one.rows[1] < one.rows[0] and one.sources > 20, one
        for runs in (1, 3, 10):
            several = by_name[quantity, runs]
            if several.sources < FEWEST_SOURCES:  # shares of few sources say little
                continue
            # All rows tell more than the middle one of twenty sources.
            _, after, whole = several.rows
            assert after <= 1.02 * whole, several
            assert 0.76 <= round(several.inside, 2) <= 0.87, several
