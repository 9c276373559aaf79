"""Front sheets: forms answered by the engine, the same in cells as in Python, and one line where a form is wrong."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import openpyxl
import pytest
from shipped import few_rows, shipped_book, shipped_session, shipped_tables

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import FORMS, PLAN_TABLES, first_words, results_of, table_schema
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_devices
from xlperf.explore.chips import chip_worth
from xlperf.explore.forms import answers_of, answers_table, form_of
from xlperf.explore.search import evaluate_resolved
from xlperf.explore.train import FOLLOWING, SEARCHED
from xlperf.workbook.build import workbook_package
from xlperf.workbook.front import plan_card
from xlperf.workbook.front.layout import NUMBERS, SHEETS, Page, form_rows
from xlperf.workbook.front.start import live_cells
from xlperf.workbook.package import Formulas, data_rows

ASKED = {"model": "Meta-Llama-3.1-70B", "accelerator": "H200-SXM-141GB", "users": 1000.0, "prompt length": 2000.0,
         "output length": 500.0, "speed per user": 20.0, "ttft target": 2000.0}  # fmt: skip
ONE_WAY = {**ASKED, "software": "vllm", "mode": "continuous"}
"""For laws that hold of each engine and of both modes: all six ways take four times as long."""


@pytest.fixture(scope="module")
def session() -> Session:
    return shipped_session()


@pytest.fixture(scope="module")
def book() -> Any:
    return shipped_book()


@pytest.fixture(scope="module")
def values() -> Any:
    return shipped_book(data_only=True)


ANSWERS: dict[tuple[Any, ...], tuple[Catalog, dict[str, Any]]] = {}  # several tests look at the same answers


def answered(catalog: Catalog, kind: str, **asked: Any) -> dict[str, Any]:
    return all_answered(catalog, kind, [asked])[0]


def all_answered(catalog: Catalog, kind: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of several forms, which are searched together in two thirds of the time."""
    keys = [(id(catalog), kind, *sorted(each.items())) for each in asked]
    lacking = [place for place, key in enumerate(keys) if key not in ANSWERS]
    if lacking:
        header = list(dict.fromkeys(name for place in lacking for name in asked[place]))
        forms = table_from_rows(kind, header, [[asked[place].get(name) for name in header] for place in lacking])
        results = answers_table(forms, answers_of(forms, catalog))  # the comparison with the best way takes longer
        for row, place in enumerate(lacking):
            ANSWERS[keys[place]] = catalog, {name: column[row] for name, column in results.columns.items()}
    return [dict(ANSWERS[key][1]) for key in keys]


# --- Serve


def test_a_fleet_serves_its_users_at_their_speed(catalog: Catalog) -> None:
    result = answered(catalog, "serve", **ASKED)
    assert result["tokens_per_second_per_user"] >= 20.0
    assert result["ttft"] <= 2.0
    assert result["accelerators"] == result["servers"] * result["server_size"]
    assert result["copies"] * result["concurrency"] >= 1000.0 > (result["copies"] - 1.0) * result["concurrency"]
    assert result["copies"] * result["copy_size"] <= result["accelerators"]
    assert result["accelerators_low"] <= result["accelerators"] <= result["accelerators_high"]
    hour = result["accelerators"] * result["hour_price"]
    assert hour / result["tokens_per_second"] == pytest.approx(result["fleet_cost_per_million_output_tokens"])
    assert hour * 730.0 * 3600.0 == pytest.approx(result["monthly_cost"])
    assert result["trust"] in ("MEASURED", "INTERPOLATED", "EXTRAPOLATED")
    assert result["answer"].startswith(f"{result['accelerators']:,.0f} H200")


CHOSEN = (
    "tensor_parallel", "expert_parallel", "data_parallel_attention", "concurrency", "precision", "software", "mode",
    "expert_dispatch", "two_batch_overlap", "prefill_tokens", "redundant_experts", "max_running_batch",
    "prefill_accelerators", "prefill_tensor_parallel", "prefill_expert_parallel", "prefill_data_parallel_attention",
    "kv_precision", "pipeline_parallel", "prefill_pipeline_parallel",
)  # fmt: skip


def copy_of(asked: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The plan of a copy with its share of the users, from the answer alone."""
    plan = {name: asked[name] for name in ("model", "accelerator", "prompt length", "output length")}
    plan["num accelerators"] = result["copy_size"]
    stated = {name: result[name] for name in CHOSEN if result[name] == result[name] and result[name] != ""}
    own = {name.replace("_", " "): value for name, value in stated.items()}
    own["concurrency"] = min(own["concurrency"], float(np.ceil(result["users"] / result["copies"] * (1.0 - 1e-9))))
    return plan | own | ({flag: "yes" if own[flag] else "no"} if (flag := "two batch overlap") in own else {})


@pytest.mark.parametrize("mode", ["continuous", "disaggregated"])
def test_the_copy_that_was_chosen_is_what_the_engine_says_of_it(catalog: Catalog, mode: str) -> None:
    asked = {**ONE_WAY, "mode": mode}
    result = answered(catalog, "serve", **asked)
    plan = copy_of(ASKED, result)
    results = evaluate(table_from_rows("inference", list(plan), [list(plan.values())]), catalog)
    shared = [name for name in result if name in results.columns and isinstance(result[name], float)]
    assert {"cost_per_million_output_tokens", "cost_per_million_output_tokens_all_in", "tpot_low"} <= set(shared)
    for name in set(shared) - {"tokens_per_second", "accelerator_hour_cost"}:  # the output of the whole fleet
        assert results.number(name)[0] == result[name], f"{name}: one number under one name"
    # The fleet's cost is that of its copies over the share of it that is used.
    used = result["users"] / plan["concurrency"] * result["copy_size"] / result["accelerators"]
    spread = result["cost_per_million_output_tokens_all_in"] / used
    assert result["fleet_cost_per_million_output_tokens"] == pytest.approx(spread, rel=1e-9)
    dear = answered(catalog, "serve", **{**asked, "hour price": 2.0 * 3600.0 * result["hour_price"]})
    for name in ("fleet_cost_per_million_output_tokens", "cost_per_million_output_tokens"):
        assert dear[name] == pytest.approx(2.0 * result[name], rel=1e-9)


def test_no_mapping_of_another_size_needs_a_smaller_fleet(catalog: Catalog) -> None:
    sizes = (None, 1.0, 4.0, 16.0)
    best, *others = all_answered(catalog, "serve", [{**ONE_WAY, "num accelerators": size} for size in sizes])
    for size, fixed in zip((1.0, 4.0, 16.0), others, strict=True):
        if fixed["copies"] == fixed["copies"]:
            assert fixed["copies"] * size >= 0.99 * best["copies"] * best["copy_size"]


def test_more_users_and_faster_ones_never_need_fewer_accelerators(catalog: Catalog) -> None:
    asked = [{**ONE_WAY, "users": users} for users in (500, 1000, 4000)]
    asked += [{**ONE_WAY, "speed per user": speed} for speed in (10, 20, 40)]
    fleets = [result["accelerators"] for result in all_answered(catalog, "serve", asked)]
    assert fleets[:3] == sorted(fleets[:3])
    assert fleets[3:] == sorted(fleets[3:])


def test_a_request_rate_is_users_by_littles_law(catalog: Catalog) -> None:
    result = answered(catalog, "serve", **{**ONE_WAY, "users": None, "request rate": 40.0})
    assert result["users"] / 40.0 == pytest.approx(result["ttft"] + 499.0 * result["tpot"], rel=0.01)
    assert result["request_rate"] == pytest.approx(40.0)
    with pytest.raises(InputError, match="give users or request rate, or a facility power limit"):
        answered(catalog, "serve", **{**ASKED, "users": None})


def test_what_cannot_be_served_says_why(catalog: Catalog) -> None:
    fast = answered(catalog, "serve", **{**ASKED, "speed per user": 5000.0})
    assert np.isnan(fast["accelerators"])
    assert "token/s at most" in fast["reason"]
    large = answered(catalog, "serve", **{**ASKED, "model": "DeepSeek-V4-Pro", "num accelerators": 1.0})
    assert np.isnan(large["accelerators"]) and large["answer"].startswith("No answer: 1 H200 needs ")


FEW = {"mode": "continuous", "users": 10.0, "prompt length": 1000.0, "output length": 500.0, "ttft target": None}

MXFP4 = "MXFP4 weights, products in"
CHECKPOINTS = [
    # vllm start-up log of gpt-oss-120b on one H100: 64 to 66 GiB of MXFP4 weights
    ("gpt-oss-120b", "H100-SXM-80GB", "auto", f"{MXFP4} bf16.", 1.0, (64.0, 66.0)),
    # moonshotai/Kimi-K2.5: 595 GB of INT4 experts and 16 bits elsewhere, which copies of attention repeat
    ("Kimi-K2.5", "H200-SXM-141GB", "auto", "INT4 weights, products in bf16.", 8.0, (66.0, 90.0)),
    ("DeepSeek-V3", "A100-SXM4-80GB", "fp8", "FP8 weights, products in bf16.", 16.0, (39.0, 44.0)),
]
MORE_CHECKPOINTS = [
    # openai/gpt-oss-20b model card: runs within 16 GB
    ("gpt-oss-20b", "RTX 4090", "auto", f"{MXFP4} bf16.", 1.0, (11.0, 14.9)),
    # InferenceX issue 2128: eight H200 hold a copy from a memory fraction of 0.9113 on
    ("DeepSeek-V4-Pro", "H200-SXM-141GB", "auto", f"{MXFP4} bf16; attention in FP8.", 8.0, (99.0, 127.9)),
    ("gpt-oss-120b", "B200-SXM-180GB", "auto", f"{MXFP4} fp8.", 1.0, (64.0, 66.0)),
    # MXFP4 experts and FP8 elsewhere: 160 GB with a module of multi-token prediction that is not loaded
    ("DeepSeek-V4-Flash", "B200-SXM-180GB", "auto", f"{MXFP4} fp8; attention in FP8.", 1.0, (143.0, 149.0)),
]


@pytest.mark.parametrize(
    ("model", "accelerator", "precision", "words", "copy", "gib"),
    [*CHECKPOINTS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CHECKPOINTS)],
)
def test_a_form_without_a_precision_tries_the_published_checkpoint(
    catalog: Catalog, model: str, accelerator: str, precision: str, words: str, copy: float, gib: tuple[float, float]
) -> None:
    result = answered(catalog, "serve", **{**FEW, "model": model, "accelerator": accelerator})
    assert (result["precision"], result["copy_size"]) == (precision, copy)
    assert (words in result["answer"]) if words else ("weights" not in result["answer"])
    activation = "bf16" if precision != "auto" else ""
    assert result["kv_precision"] in (("bf16",) if accelerator.startswith("A100") else ("bf16", "fp8"))
    plan = copy_of(FEW | {"model": model, "accelerator": accelerator}, result) | {"activation precision": activation}
    results = evaluate(table_from_rows("inference", list(plan), [list(plan.values())]), catalog)
    assert results.number("tpot")[0] == result["tpot"] and results.number("memory")[0] == result["memory"]
    assert gib[0] <= results.number("memory_weights")[0] / 2.0**30 <= gib[1]
    if accelerator.startswith(("H100", "RTX")):
        asked = {**FEW, "model": model, "accelerator": accelerator, "precision": "fp4"}
        assert answered(catalog, "serve", **asked)["answer"] == result["answer"]


@pytest.mark.slow
def test_weights_that_are_not_as_published_are_named(catalog: Catalog) -> None:
    """Many users of gpt-oss on H100 are served by fewer accelerators with products in FP8; MXFP4 was published."""
    asked = {**FEW, "model": "gpt-oss-120b", "accelerator": "H100-SXM-80GB", "users": 100_000.0}
    result, own = answered(catalog, "serve", **asked), answered(catalog, "serve", **asked, precision="fp4")
    assert (result["precision"], result["answer"][-48:]) == ("fp8", "FP8 weights; the published checkpoint has MXFP4.")
    assert result["accelerators"] < own["accelerators"]


def test_a_precision_without_a_peak_is_of_the_weights_alone(catalog: Catalog) -> None:
    old = {**ONE_WAY, "accelerator": "A100-SXM4-80GB"}
    narrow, wide = (answered(catalog, "serve", **{**old, "precision": word}) for word in ("fp8", "bf16"))
    assert "FP8 weights, products in bf16." in narrow["answer"] and "weights" not in wide["answer"]
    assert narrow["kv_precision"] == "bf16" and narrow["memory"] <= narrow["memory_capacity"]
    # Without a published narrow checkpoint, nothing but the accelerator chooses.
    assert answered(catalog, "serve", **old)["answer"] == wide["answer"]


ON_MACHINES = [("A100-SXM4-80GB", "bf16", "vllm", "server"), ("MI300X", "fp8", "vllm", "server"),
               ("TPUv5p", "bf16", "vllm", "slice")]  # fmt: skip


@pytest.mark.parametrize(("accelerator", "precision", "software", "unit"), ON_MACHINES)
def test_a_form_takes_the_precision_and_the_engine_that_its_accelerator_has(
    catalog: Catalog, accelerator: str, precision: str, software: str, unit: str
) -> None:
    """A torus is had in slices as small as a copy; of whole servers an answer says how many would do."""
    asked = [{**ASKED, "accelerator": name, "users": 8.0} for name, *_ in ON_MACHINES]
    result = all_answered(catalog, "serve", asked)[ON_MACHINES.index((accelerator, precision, software, unit))]
    assert (result["precision"], result["software"]) == (precision, software)
    used = result["copies"] * result["copy_size"]
    assert result["accelerators"] == (used if unit == "slice" else 8.0) and f" in 1 {unit}" in result["answer"]
    assert (f"({used:,.0f} would do)" in result["answer"]) == (result["accelerators"] >= 1.5 * used)


@pytest.mark.parametrize(
    ("kind", "asked", "result"),
    [
        ("serve", ONE_WAY | {"accelerator": "H100-SXM-80GB"}, "fleet_cost_per_million_output_tokens"),
        ("train", {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 256.0,
                   "training tokens": 2.0, "sequence length": 8192.0, "global batch size": 1024.0}, "run_cost"),
        ("chip", {"technology": "3 nm", "core": "Blackwell SM", "memory": "HBM4", "link": "NVLink 5",
                  "package": "CoWoS-L", "model": "Meta-Llama-3.1-70B", "prompt length": 2000.0,
                  "output length": 500.0, "num dies": 2.0, "die area": 800.0}, "unit_cost"),
    ],
)  # fmt: skip
def test_a_scenario_moves_prices_and_bands(catalog: Catalog, kind: str, asked: dict[str, Any], result: str) -> None:
    low, base, high = (answered(catalog.in_case(case), kind, **asked)[result] for case in ("low", "base", "high"))
    assert low < base < high
    assert base == answered(catalog, kind, **asked)[result]


def test_a_scenario_cell_of_the_catalog_moves_prices(session: Session, catalog: Catalog) -> None:
    columns = table_schema("prices").columns
    block = [[column.header for column in columns], *data_rows(catalog.tables["prices"], columns)]
    plan = [["model", "Llama2-7B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 8.0]]
    handles = [session.call("XLPERF_CATALOG", [block, *case])[0][0] for case in ((), ("base",), ("low",), ("high",))]
    assert handles[0] == handles[1] and len(set(handles)) == 3
    rates = [session.call("XLPERF_ACCELERATOR_HOUR_COST", [plan, handle])[0][0] for handle in handles]
    assert rates == [1.69, 1.69, 1.3, 2.99]


@pytest.mark.slow
def test_badges_follow_the_published_runs(catalog: Catalog) -> None:
    far_asked = {**ASKED, "model": "DeepSeek-V3", "users": 10_000.0}
    asked = [{**ASKED, "model": "Meta-Llama-3.1-8B"}, far_asked, {**far_asked, "mode": "continuous"}]
    asked += [{**ONE_WAY, "model": "Qwen2.5-72B"}, {**ONE_WAY, "accelerator": "MI325X"}]
    measured, far, near, other, machine = all_answered(catalog, "serve", asked)
    assert measured["trust"] == "MEASURED" and "published run" in measured["trust_reason"]
    # two pools of 40 accelerators, which were never measured; the answer names the best way that is nearer
    assert far["trust"] == "EXTRAPOLATED" and "far from theirs" in far["trust_reason"]
    assert near["trust"] == "INTERPOLATED"
    said = f"No measured run is near this way; some are near {near['accelerators']:,.0f} H200 with SGLang in one pool."
    assert said in far["answer"]
    assert other["trust"] == "INTERPOLATED" and "none of Qwen2.5-72B" in other["trust_reason"]  # others on H200
    assert machine["trust"] != "MEASURED"


# --- Train

RUN = {"model": "Meta-Llama-3.1-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 256.0,
       "training tokens": 2.0, "sequence length": 8192.0, "global batch size": 1024.0}  # fmt: skip


def test_a_run_is_what_the_engine_says_of_the_mapping_that_was_chosen(catalog: Catalog) -> None:
    result = answered(catalog, "train", **RUN)
    plan = {
        **RUN,
        **{
            name.replace("_", " "): result[name]
            for name in (
                *SEARCHED,
                *FOLLOWING,
                "tensor_overlap",
                "token_dispatch",
                "cross_entropy",
                "graphs",
                "precision",
            )
        },
    }
    plan = {name: value for name, value in plan.items() if value == value and value != ""}
    results = evaluate(table_from_rows("training", list(plan), [list(plan.values())]), catalog)
    for name in ("step_time", "step_time_low", "step_time_high", "run_time", "run_cost", "run_energy", "mfu"):
        assert results.number(name)[0] == pytest.approx(result[name], rel=1e-12)
    shares = [value for name, value in result.items() if name.startswith("share_")]
    assert sum(shares) == pytest.approx(1.0)
    parts = ("weights", "gradients", "optimizer", "activations", "reserve", "free")
    assert sum(result[f"memory_{part}"] for part in parts) == pytest.approx(result["memory_capacity"])
    assert "256 H100 train" in result["answer"]


def test_a_deadline_is_kept_by_the_fewest_accelerators(catalog: Catalog) -> None:
    asked = {**RUN, "num accelerators": None, "deadline": 30.0}
    result = answered(catalog, "train", **asked)
    assert result["run_time"] <= 30.0 * 86400.0
    fewer = answered(catalog, "train", **{**RUN, "num accelerators": result["accelerators"] / 2.0})
    assert fewer["run_time"] > 30.0 * 86400.0
    with pytest.raises(InputError, match="a facility power limit must be given"):
        answered(catalog, "train", **{**RUN, "num accelerators": None})


def test_a_given_price_moves_the_cost_alone(catalog: Catalog) -> None:
    plain, dear = (answered(catalog, "train", **RUN, **{"hour price": price}) for price in (1.0, 3.0))
    assert dear["run_cost"] == pytest.approx(3.0 * plain["run_cost"])
    assert dear["run_time"] == plain["run_time"]


def test_a_run_that_does_not_fit_says_so(catalog: Catalog) -> None:
    result = answered(catalog, "train", **{**RUN, "num accelerators": 4.0})
    assert np.isnan(result["run_time"]) and "each of 4 H100 needs" in result["answer"]


# --- Build a chip

CHIP = {"technology": "3 nm", "core": "Blackwell SM", "num dies": 2.0, "die area": 800.0, "power budget": 1400.0,
        "memory": "HBM4", "link": "NVLink 5", "package": "CoWoS-L", "model": "Meta-Llama-3.1-70B",
        "prompt length": 2000.0, "output length": 500.0}  # fmt: skip


def test_a_chip_is_the_device_of_its_budgets(catalog: Catalog) -> None:
    result = answered(catalog, "chip", **CHIP)
    own = ("technology", "core", "num dies", "die area", "power budget", "memory", "link", "package")
    row = {"device": "d", **{name: CHIP[name] for name in own}}
    device = evaluate_devices(table_from_rows("devices", list(row), [list(row.values())]), catalog)
    for name in ("unit_cost", "capex", "memory_capacity", "memory_bandwidth", "peak_flop_rate_fp8", "memory_stacks"):
        assert device.number(name)[0] == pytest.approx(result[name], rel=1e-12)
    parts = [value for name, value in result.items() if name.startswith("cost_")]
    assert len(parts) == 8 and sum(parts) == pytest.approx(result["unit_cost"])


def test_stacks_asked_for_are_what_it_has_or_it_is_refused(catalog: Catalog) -> None:
    for stacks in (4.0, 6.0):
        assert answered(catalog, "chip", **CHIP, **{"memory stacks": stacks})["memory_stacks"] == stacks
    many = answered(catalog, "chip", **CHIP, **{"memory stacks": 40.0})
    assert np.isnan(many["memory_stacks"]) and many["answer"].startswith("No answer: 40 stacks of HBM4")


def test_a_bandwidth_asked_for_takes_the_fewest_stacks(catalog: Catalog) -> None:
    asked = answered(catalog, "chip", **CHIP, **{"bandwidth target": 9.0})
    fewer = answered(catalog, "chip", **CHIP, **{"memory stacks": asked["memory_stacks"] - 1.0})
    assert asked["memory_bandwidth"] >= 9e12 > fewer["memory_bandwidth"]
    both = answered(catalog, "chip", **CHIP, **{"bandwidth target": 9.0, "memory stacks": 6.0})
    assert both["memory_stacks"] == 6.0


def test_an_accelerator_in_the_place_of_the_chip_is_that_of_the_catalog(catalog: Catalog) -> None:
    result = answered(catalog, "chip", **CHIP, accelerator="H200-SXM-141GB")
    judged = {"software": "tensorrt-llm", "mode": "continuous"}
    sold = answered(catalog, "serve", **{**ASKED, "ttft target": None}, **judged)
    each = "tokens_per_second_per_accelerator"
    # Serve tries further sizes of prefill chunks; the fewest whole servers may take a copy that is a little slower.
    assert 0.85 * sold[each] <= result[each] <= 1.06 * sold[each]
    assert result[each] * 1000.0 / result["capex"] == pytest.approx(result["tokens_per_thousand_dollars"])


# --- cells


@pytest.mark.parametrize("kind", FORMS)
def test_a_wrong_name_is_one_line_on_top(session: Session, kind: str) -> None:
    first = {
        name: words if (value := number_of(words)) != value else value for name, words in first_words(kind).items()
    }
    forms = {kind: first} | {"train": RUN, "chip": CHIP}
    card = [["MODEL", None], ["model", "DeepSek-V3"], ["accelerator", "H200-SXM-141GB"], ["users", 10.0],
            ["prompt length", 10.0], ["output length", 10.0]] if kind == "serve" else [
        ["model", "DeepSek-V3"], *([name, value] for name, value in forms[kind].items() if name != "model"),
    ]  # fmt: skip
    (line,), *_ = session.call(f"XLPERF_{kind.upper()}", [card])
    assert line.startswith("No answer: ")
    assert "\n" not in line and "DeepSeek-V3" in line and len(line) < 220
    ((number,),) = session.call(f"XLPERF_{kind.upper()}", [card, "unit cost" if kind == "chip" else "accelerators"])
    assert isinstance(number, CellError)


def test_blank_and_auto_are_the_same(session: Session) -> None:
    card = [["SERVE", None], *([name, value] for name, value in ASKED.items())]
    plain = session.call("XLPERF_SERVE", [card, "monthly cost"])
    auto = session.call("XLPERF_SERVE", [[*card, ["tensor parallel", "auto"], ["hour price", "auto"]], "monthly cost"])
    assert plain == auto


def test_sheets_show_what_the_functions_answer(book: Any, values: Any, session: Session) -> None:
    for sheet, kind, numbers in zip(SHEETS, FORMS, NUMBERS, strict=False):
        area = [[cell.value for cell in row] for row in book[sheet][f"B5:C{4 + len(form_rows(kind))}"]]
        result = {
            column.name: session.call(f"XLPERF_{kind.upper()}", [area, column.name.replace("_", " ")])[0][0]
            for column in results_of(kind).columns
        }
        assert values[sheet]["F5"].value == result["answer"]
        shown = [cell.value for row in values[numbers].iter_rows() for cell in row]
        for name, value in result.items():
            if value not in ("", None) and not isinstance(value, CellError):
                assert value in shown, name


def test_tables_and_curves_beside_the_answers_have_numbers(values: Any) -> None:
    serve, train, chip = (values[name] for name in SHEETS[:3])
    assert sum(isinstance(serve[f"P{row}"].value, float) for row in range(23, 28)) >= 4
    for letter in ("E", "L", "N", "P", "R", "T"):  # a curve for each way
        curve = [values["calc serve"][f"{letter}{row}"].value for row in range(25, 33)]
        assert sum(isinstance(own, float | int) for own in curve) >= 6
    assert all(isinstance(train[f"O{row}"].value, float) for row in range(22, 27))
    assert all(isinstance(chip[f"{letter}{row}"].value, float | int) for letter in "OPQR" for row in range(15, 22))
    assert all(isinstance(chip[f"{letter}{row}"].value, float | int) for letter in "OPQ" for row in range(25, 29))
    rates, costs, marks = ([chip[f"{letter}{row}"].value for row in range(49, 85)] for letter in "GHJ")
    assert all(isinstance(value, float | int) for value in (*rates, *costs))
    best = [row for row, mark in enumerate(marks) if mark]
    assert 3 <= len(best) < 36 and rates.index(max(rates)) in best and costs.index(min(costs)) < 36


def test_the_sheet_says_what_the_next_unit_is_worth_as_the_command_does(values: Any, catalog: Catalog) -> None:
    asked = form_of("chip", first_words("chip"))
    worth = chip_worth(asked, answers_of(asked, catalog)[0], lambda forms: answers_of(forms, catalog))
    for letter, name in (("O", "rate"), ("P", "worth"), ("Q", "price")):
        shown = [values["Build a chip"][f"{letter}{row}"].value for row in range(25, 29)]
        assert shown == pytest.approx(worth.number(name).tolist(), rel=1e-9), name


def test_every_entry_has_a_drop_down_or_bounds(book: Any) -> None:
    for sheet, kind in zip(SHEETS, FORMS, strict=False):
        guarded = {str(one.sqref): one for one in book[sheet].data_validations.dataValidation}
        named = {column.header: column for column in table_schema(kind).columns}
        rows = [row for row in book[sheet]["B5:C37"] if row[0].value in named and named[row[0].value].kind != "text"]
        assert len(rows) >= 10
        for name, cell in rows:
            column = named[name.value]
            assert cell.coordinate in guarded, name.value
            if column.kind == "reference":
                assert book.defined_names[guarded[cell.coordinate].formula1].attr_text.startswith(column.reference)


@pytest.mark.parametrize("kind", PLAN_TABLES)
def test_two_plans_differ_by_the_sum_of_their_parts(
    kind: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = shipped_tables()
    names = (str(tables[kind]["name"][4]), str(tables[kind]["name"][-1]))
    monkeypatch.setattr(plan_card, "FIRST_CHOICE", names)
    book = openpyxl.Workbook()
    live = live_cells(tables, catalog, Formulas(), {})
    plan_card.compare_sheet(Page(book.create_sheet("Compare"), book.create_sheet("calc compare"), live))

    def shown(cell: str, sheet: str = "Compare") -> Any:
        return live.values.get((sheet, cell))

    def number(cell: str) -> Any:
        return shown(cell, "calc compare")

    before, after = number("Q14"), number("Q21")
    plans = tables[kind].take([4, len(tables[kind]) - 1])
    rates = evaluate_resolved(plans, catalog)[1]["tokens_per_second_per_accelerator"]
    assert [before, after] == pytest.approx((1000.0 / rates).tolist())
    assert sum(number(f"N{row}") for row in range(15, 21)) == pytest.approx(after - before, rel=1e-6)
    assert shown("F5").startswith(f"{names[1]} yields {rates[1] / rates[0]:.2f}× the tokens per accelerator")
    differ = [shown(f"B{row}") for row in range(10, 27) if shown(f"B{row}")]
    assert differ and all(str(shown(f"C{row}")) != str(shown(f"D{row}")) for row in range(10, 10 + len(differ)))


def test_a_card_tells_of_its_plan_and_one_that_is_wrong_in_one_line() -> None:
    tables = {**few_rows(), "inference": []}
    wrong = [{"name": "mine", "model": "no such model", "accelerator": "H100-SXM-80GB", "num_accelerators": 8}]
    for rows, line in ((tables["training"], " s a step (80 %: "), (wrong, 'unknown model "no such model"')):
        book = openpyxl.load_workbook(io.BytesIO(workbook_package({**tables, "training": rows})), data_only=True)
        cells = [cell.value for row in book["training"].iter_rows(max_row=9) for cell in row if cell.value is not None]
        assert sum(line in str(cell) for cell in cells) == 1
        assert not [cell for cell in cells if str(cell).startswith("#")]
