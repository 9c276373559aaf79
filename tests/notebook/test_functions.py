"""Each function of the public page gives what the command of its name gives with --json, and refuses in its words."""

from __future__ import annotations

import csv
import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Outcome

import xlperf
from xlperf.catalog.schema import FORMS, first_words
from xlperf.cli.app import cli
from xlperf.cli.output import json_key
from xlperf.notebook import result as frames

Command = Callable[..., Outcome]
TRAIN: dict[str, Any] = {
    "name": "a", "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 16, "tensor parallel": 2,
    "global batch size": 32,
}  # fmt: skip
SERVE: dict[str, Any] = {
    "name": "s", "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 2, "tensor parallel": 2,
    "prompt length": 1000, "output length": 200, "concurrency": 16,
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Plans as a file."""

    def write(*plans: dict[str, Any]) -> Path:
        pd.DataFrame(plans).to_csv(tmp_path / "plans.csv", index=False)
        return tmp_path / "plans.csv"

    return write


def as_json(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A frame as the rows that --json prints: plain keys, whole numbers as such, blanks are null."""

    def value(cell: Any) -> Any:
        if cell is pd.NA or cell == "" or (isinstance(cell, float) and not math.isfinite(cell)):
            return None
        if isinstance(cell, float) and cell.is_integer():
            return int(cell)
        return bool(cell) if isinstance(cell, (bool, np.bool_)) else cell

    return [{json_key(name): value(row[name]) for name in frame.columns} for _, row in frame.astype(object).iterrows()]


def printed(done: Outcome) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(done.out)
    return rows


def same(frame: pd.DataFrame, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a frame has the columns and values of rows, bit for bit, and holds anything."""
    assert as_json(frame) == list(rows)
    return len(rows) > 0 and len(frame.columns) > 3


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("serve", {"model": "Llama3-8B", "accelerator": "H100", "users": 400, "speed_per_user": 30.0}),
        ("serve", {"model": "Llama3-8B", "accelerator": "H100", "request_rate": 5.5}),
        ("train", {"model": "Llama3-8B", "num_accelerators": 16, "training_tokens": 0.1}),
        ("chip", {"technology": "3 nm", "num_dies": 4, "die_area": 400}),
    ],
)
def test_questions(kind: str, given: dict[str, Any], command: Command) -> None:
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    (row,) = printed(command(kind, *words, "--json"))
    result = getattr(xlperf, kind)(**given)
    for name, table in result.tables.items():
        assert same(table, row.pop(name)), name
    assert same(result, [row]) and result.found
    assert result.answer == row["answer"] == command(kind, *words).out.splitlines()[0]
    bare = getattr(xlperf, kind)(**given, inputs=False)
    assert set(bare) < set(result) and "answer" in bare and "model" not in bare and "num dies" not in given


def test_a_table_of_chips_and_limits(command: Command) -> None:
    vary = ("--vary", "num dies=1,2", "--vary", "cache=32,64")
    done = command("chip", *vary, "--json")
    result = xlperf.chip(vary={"num dies": [1, 2], "cache": "32,64"})
    assert same(result, printed(done)) and f"{result.answer}\n" in done.err
    bound = "unit cost<=10"
    none = xlperf.chip(vary=vary[1], limit=bound)
    assert not none.found and not len(none)
    assert none.answer == " ".join(command("chip", *vary[:2], "--limit", bound).err.splitlines())
    missed = xlperf.chip(num_dies=2, limit=bound)
    assert not missed.found and any(note.startswith("Limit missed: unit cost") for note in missed.notes)


@pytest.mark.parametrize("plan", [TRAIN, SERVE], ids=["training", "inference"])
def test_evaluate_and_explain(plan: dict[str, Any], command: Command, written: Callable[..., Path]) -> None:
    plans = [{**plan, "tensor parallel": degree} for degree in ("auto", 2, 3)]
    path = written(*plans)
    result = xlperf.evaluate(plans)
    assert same(result, printed(command("evaluate", path, "--json")))
    assert result.answer == "2 of 3 plans legal" and result.found
    bare = xlperf.evaluate(plans, inputs=False)
    assert "tensor parallel" not in bare and bare.equals(result[bare.columns])
    operators = xlperf.explain(plans[1])
    assert same(operators, printed(command("explain", path, "--row", "2", "--json")))


def test_sweep(command: Command, written: Callable[..., Path]) -> None:
    path = written(TRAIN)
    vary = ("--vary", "tensor parallel=1,2", "--vary", "accelerators.memory bandwidth=x1,x2")
    given = {"tensor parallel": [1, 2], "accelerators.memory bandwidth": ["x1", "x2"]}
    result = xlperf.sweep(TRAIN, given)
    assert same(result, printed(command("evaluate", path, *vary, "--json"))) and len(result) == 4
    best = command("evaluate", path, *vary, "--objective", "cost", "--top", "2", "--result", "mfu", "--json")
    chosen = xlperf.sweep(TRAIN, [vary[1], vary[3]], objective="cost", top=2, result="mfu")
    assert same(chosen, printed(best)) and chosen.answer in best.err
    drawn = ("--vary", "accelerators.memory bandwidth=2..8", "--samples", "5", "--seed", "3")
    sampled = xlperf.sweep(TRAIN, {"accelerators.memory bandwidth": "2..8"}, samples=5, seed=3)
    assert same(sampled, printed(command("evaluate", path, *drawn, "--json")))
    none = xlperf.sweep(TRAIN, given, limit="step time<=0.0001")
    assert not none.found and none.answer.startswith("none of 4 plans fits")


def test_search(command: Command, written: Callable[..., Path]) -> None:
    plan = {**TRAIN, "tensor parallel": "auto", "micro batch size": "auto"}
    path = written(plan)
    for words, given in (
        ((), {}),
        (("--objective", "cost", "--limit", "memory<=60", "--top", "2"),
         {"objective": "cost", "limit": "memory<=60", "top": 2}),
        (("--objective", "cost", "--objective", "memory", "--all"), {"objective": ["cost", "memory"], "all": True}),
        (("--vary", "networks.link bandwidth=x1,x2"), {"vary": {"networks.link bandwidth": ["x1", "x2"]}}),
    ):  # fmt: skip
        done = command("search", path, *words, "--json")
        result = xlperf.search(plan, **given)  # type: ignore[arg-type]
        assert same(result, printed(done)), words
        assert f"{result.answer}\n" in done.err
    none = xlperf.search(plan, limits=["memory<=1"])
    assert not none.found and not len(none) and "none keeps memory <= 1 GiB" in none.answer


def test_solve(command: Command, written: Callable[..., Path]) -> None:
    path = written(SERVE)
    for words, given in (
        (("--vary", "num accelerators=2..8"), {"vary": {"num accelerators": "2..8"}}),
        (("--vary", "accelerators.memory bandwidth=1..16"), {"vary": {"accelerators.memory bandwidth": "1..16"}}),
        (("--vary", "prompt length=1000,4000", "--largest"),
         {"vary": {"prompt length": [1000, 4000]}, "largest": True}),
    ):  # fmt: skip
        done = command("search", path, *words, "--target", "tpot<=20", "--json")
        result = xlperf.solve(SERVE, target="tpot<=20", **given)  # type: ignore[arg-type]
        assert same(result, printed(done)) and result.found and f"{result.answer}\n" in done.err
    none = xlperf.solve(SERVE, {"num accelerators": "2..4"}, "tpot<=0.001")
    assert not none.found and not len(none)


def test_diagnose(command: Command, written: Callable[..., Path], tmp_path: Path) -> None:
    path, out, profile = written(TRAIN), tmp_path / "out.json", tmp_path / "profile.csv"
    profile.write_text("class,ms\ngemm,500\nattention,100\n", encoding="utf-8")
    for words, given in (
        (("--measured", "step time=6", "--top", "3"), {"measured": {"step time": 6}, "top": 3}),
        (("--measured", "step time=6", "--profile", profile), {"measured": "step time=6", "profile": profile}),
        (("--measured", "step time=6", "--before", "step time=4", "--all"),
         {"measured": "step time=6", "before": ["step time=4"], "all": True}),
    ):  # fmt: skip
        done = command("diagnose", path, *words, "-o", out)
        result = xlperf.diagnose(TRAIN, **given)  # type: ignore[arg-type]
        assert same(result, json.loads(out.read_text(encoding="utf-8"))) and result.found == (done.code == 0)
        said = [*result.answer.splitlines(), *result.notes]
        apart = str(out), "variants of the plan: "
        assert all(line in said for line in done.err.splitlines() if not line.startswith(apart))
    beside = xlperf.diagnose({**TRAIN, "measured step time (s)": 6.0}, top=3)
    assert as_json(beside) == as_json(xlperf.diagnose(TRAIN, "step time=6", top=3))
    assert {"steps", "plan"} == set(beside.tables) and len(beside.tables["plan"]) == 1


def test_diagnose_reads_a_log_as_the_command_does(command: Command, tmp_path: Path) -> None:
    log, out = tmp_path / "run.log", tmp_path / "out.json"
    flags = "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 8 --seq-length 4096 --bf16"
    step = "elapsed time per iteration (ms): 6000.0 | global batch size: 8 |"
    log.write_text(
        f"torchrun pretrain_gpt.py {flags}\n iteration 10/ 20 | {step}\n iteration 20/ 20 | {step}\n", "utf-8"
    )
    given = {"model": "Llama3-70B", "accelerator": "H100", "num accelerators": 8}
    texts = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    done = command("diagnose", log, *texts, "-o", out)
    result = xlperf.diagnose(log, set=given)
    assert same(result, json.loads(out.read_text(encoding="utf-8"))) and result.found == (done.code == 0)
    assert "measured step time 6 s" in result.answer


def test_uncertainty_and_worth(command: Command, written: Callable[..., Path]) -> None:
    path = written(TRAIN, {**TRAIN, "name": "b", "tensor parallel": 4})
    plans = pd.read_csv(path)
    vary = {"prices.rental price": "x0.7..x1.5"}
    words = ("--vary", "prices.rental price=x0.7..x1.5", "--draws", "200", "--json")
    unsure = xlperf.uncertainty(plans, "cost", vary, draws=200)
    assert same(unsure, printed(command("uncertainty", path, "--result", "cost", *words)))
    assert len(unsure.tables["inputs"])
    assert same(xlperf.worth(plans), printed(command("worth", path, "--json")))
    against = xlperf.worth(plans, against="B200-SXM-180GB")
    assert same(against, printed(command("worth", path, "--against", "B200-SXM-180GB", "--json")))


def test_validate(command: Command, written: Callable[..., Path]) -> None:
    path = written({**TRAIN, "measured step time (s)": 1.5}, {**TRAIN, "name": "b", "tensor parallel": 3})
    done = command("validate", path, "-o", "-")
    rows = list(csv.DictReader(done.out.splitlines()))
    for files in (path, [path], pd.read_csv(path)):
        result = xlperf.validate(files)
        assert list(result) == list(rows[0]) and len(result) == len(rows) and result.found == (done.code == 0)
        for name in ("row_id", "metric", "reason"):
            assert result[name].tolist() == [row[name] for row in rows]
        for name in ("measured", "predicted", "relative_error"):
            said = [float(row[name] or "nan") for row in rows]
            assert result[name].tolist() == pytest.approx(said, rel=1e-5, nan_ok=True)
    assert "By source" in result.tables


def test_signatures_are_those_of_the_commands() -> None:
    """Each option of a command is a keyword, but for files, outputs and rows that a frame chooses; no other is."""
    tasks = {**cli.tasks(), "sweep": cli.tasks()["evaluate --vary"], "solve": cli.tasks()["search --target"]}
    elsewhere = {
        "output",
        "json",
        "wide",
        "row",
        "name",
        "sheet",
        "mine",
        "readme",
        "files",
        "help",
        "plans",
        "measured",
    }  # with_own_runs makes a catalog
    in_other_words = {"least": "largest", "no_band": "band", "no_ranges": "ranges"}
    for name in set(xlperf.__all__) - {"Catalog", "InputError", "Table", "XlperfError", "__version__",
                                       "load_catalog", "read_plans", "with_own_runs"}:  # fmt: skip
        function = getattr(xlperf, name)
        known = set(inspect.signature(function).parameters)
        assert function.__doc__ and inspect.signature(function).return_annotation == "Result"
        if name == "validate":
            continue  # the tables of the calibration's own judgement stay with the command
        options = {
            max((*option.opts, *option.secondary_opts), key=len).strip("-").replace("-", "_").split("/")[0]
            for option in tasks[name].params
        } - elsewhere  # fmt: skip
        options = {in_other_words.get(option, option) for option in options}
        extra = {"plans", "plan", "inputs", "limits", "measured"}
        machines = {"processes", "scheduler"} if name == "evaluate" else set()
        assert options - machines <= known, name
        assert known - extra <= options | {"limit", "target"}, name
    for kind in FORMS:
        assert set(first_words(kind)) < set(inspect.signature(getattr(xlperf, kind)).parameters)
        assert all(f"    {entry}: " in getattr(xlperf, kind).__doc__ for entry in first_words(kind))


@pytest.mark.parametrize(
    ("called", "words", "message"),
    [
        (lambda: xlperf.serve(model="DeepSek-V3"), ("serve", "--model", "DeepSek-V3"), ""),
        (lambda: xlperf.chip(num_dies=0), ("chip", "--num-dies", "0"), ""),
        (lambda: xlperf.train(num_accelerators="auto"), ("train", "--num-accelerators", "auto"), ""),
        (lambda: xlperf.chip(vary="cache"), ("chip", "--vary", "cache"), ""),
        (lambda: xlperf.sweep(TRAIN, {"tensor parallel": "x"}), ("evaluate", "F", "--vary", "tensor parallel=x"), ""),
        (lambda: xlperf.search(TRAIN, mapping=True, objective="tost"),
         ("search", "F", "--mapping", "--objective", "tost"), ""),
        (lambda: xlperf.solve(TRAIN, {"precision": "bf16,fp8"}, "cost<=1"),
         ("search", "F", "--vary", "precision=bf16,fp8", "--target", "cost<=1"), ""),
        (lambda: xlperf.solve(TRAIN, {"num accelerators": "1..4"}),
         ("search", "F", "--least", "--vary", "num accelerators=1..4"), ""),
        (lambda: xlperf.diagnose(TRAIN), ("diagnose", "F"), ""),
        (lambda: xlperf.worth(TRAIN, {"memory": "x2"}), ("worth", "F", "--vary", "memory=x2"), ""),
        (lambda: xlperf.validate("none.csv"), ("validate", "none.csv"), ""),
        (lambda: xlperf.serve(usrs=3), (), "serve(): no entry usrs; did you mean users"),
        (lambda: xlperf.serve(catalog=3), (), "catalog: must be a Catalog or the path of a workbook, got int"),
        (lambda: xlperf.search({**TRAIN, "tensor parallel": "auto"}, top=0), (), "--top: must be a whole number above"),
        (lambda: xlperf.search(TRAIN), (), "plans: no cell says auto"),
        (lambda: xlperf.sweep(TRAIN, 3), (), "--vary takes a text or a list of texts, got 3"),
        (lambda: xlperf.evaluate([3]), (), "plans: must be a DataFrame, a dict or a list of dicts, got int"),
        (lambda: xlperf.diagnose([TRAIN, TRAIN], "step time=3"), (), "diagnose takes one plan, got 2"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_the_words_of_the_command(
    called: Callable[[], object], words: tuple[str, ...], message: str, command: Command, written: Callable[..., Path]
) -> None:
    """The line of the command may begin with its name and end with where its help is."""
    with pytest.raises(xlperf.InputError) as caught:
        called()
    said = str(caught.value)
    assert message in said and "\n" not in said
    if words:
        path = str(written(TRAIN))
        done = command(*(path if word == "F" else word for word in words))
        assert done.code == 2 and said.casefold() in done.err.casefold(), (said, done.err)


def test_names_read_as_others_are_notes() -> None:
    assert xlperf.evaluate({**TRAIN, "accelerator": "H100"}).notes == ["accelerator H100 taken as H100-SXM-80GB"]
    with pytest.raises(xlperf.InputError, match=r'unknown accelerator "H10O".*H100'):
        xlperf.sweep({**TRAIN, "accelerator": "H10O"}, {"tensor parallel": [1]})


def test_catalogs_are_those_of_the_command(command: Command, written: Callable[..., Path], tmp_path: Path) -> None:
    path, book = written(TRAIN), tmp_path / "plans.xlsx"
    assert command("evaluate", path, "-o", book).code == 0
    with pytest.raises(xlperf.InputError) as caught:
        xlperf.evaluate(TRAIN, book)
    assert str(caught.value) in command("evaluate", path, "--catalog", book).err
    prices = tmp_path / "prices.csv"
    prices.write_text("price,rental price (USD/h),source,year\nH100-SXM-80GB,20,mine,2026\n", encoding="utf-8")
    asked = {"model": "Llama3-8B", "num_accelerators": 16}
    words = ("--model", "Llama3-8B", "--num-accelerators", "16", "--catalog", prices, "--json")
    result = xlperf.train(**asked, catalog=prices)
    (row,) = printed(command("train", *words))
    assert set(result.tables) == {"owning"} and same(result.tables["owning"], row.pop("owning"))
    assert same(result, [row]) and result["hour price (USD/h)"].item() == 20.0
    assert same(xlperf.train(**asked, catalog=xlperf.load_catalog(prices)), as_json(result))


def test_progress_is_drawn_in_notebooks_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with frames.progress(3, "plans") as done:
        done(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with frames.progress(3, "plans") as done:
        done(3)
    assert capsys.readouterr().err == "", "short work"
    monkeypatch.setattr(frames, "DELAY", 0.0)
    with frames.progress(3, "plans") as done:
        done(3)
    assert "plans" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with frames.progress(3, "plans") as done:
        done(3)
    assert capsys.readouterr().err == ""


def test_types_of_the_public_page_are_known_to_a_checker() -> None:
    """Without mypy: the page imports for checkers the names that it offers."""
    source = inspect.getsource(xlperf)
    checked = source.partition("if TYPE_CHECKING:")[2].partition("\n\n__version__")[0]
    assert all(name in checked for name in xlperf.__all__ if name != "__version__")
