"""The commands serve, train and chip: the answers of the front sheets in a line, with what was asked."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import readme
from conftest import Outcome, csv_rows
from places import ROOT

from xlperf.catalog.catalog import load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import FORMS, first_words, table_schema
from xlperf.cli.output import json_key
from xlperf.explore.forms import evaluate_forms

Command = Callable[..., Outcome]


def test_every_entry_of_a_form_is_an_option_with_its_value(command: Command) -> None:
    for kind in FORMS:
        words = "".join(command(kind, "--help").out.split())
        for name, value in first_words(kind).items():
            assert f"--{name.replace('_', '-')}" in words
            assert name in table_schema(kind).by_name
            assert not value or "".join(f"[default: {value}]".split()) in words
        assert "[default:]" not in words


def test_the_walks_of_the_readme_are_single_commands(command: Command) -> None:
    """Each of the lines in the README gives the answer that stands beside it; numbers within 3 %.

    Those that ``tests/house/test_readme.py`` or a page of the guide holds to the letter are not computed again.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    kinds = [kind for kind in FORMS if kind not in readme.commands(text)]
    assert len(kinds) > 2
    for kind in kinds:
        line = re.search(rf"^xlperf {kind} (.+)$", text, re.MULTILINE)
        assert line is not None, kind
        told = re.search(rf"^# {kind}: (.+)$", text, re.MULTILINE)
        assert told is not None, kind
        printed = readme.in_guide(line[0])
        if not printed:
            done = command(kind, *shlex.split(line[1], comments=True))
            assert done.code == 0, done.err
            printed = done.out.split("\n")[0]
        said, now = (re.findall(r"[\d,]*\.?\d+", words) for words in (told[1], printed))
        values, others = ([float(one.replace(",", "")) for one in own] for own in (said, now))
        assert len(values) > 4
        assert values == pytest.approx(others[: len(values)], rel=0.03)


def test_names_as_people_write_them_and_a_rate_in_place_of_users(command: Command) -> None:
    done = command("serve", "--model", "Llama3-70B", "--accelerator", "b200", "--request-rate", "50", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    asked = {**first_words("serve"), "model": "Meta-Llama-3.1-70B", "accelerator": "B200-SXM-180GB",
             "request_rate": "50", "users": ""}  # fmt: skip
    cells = {name: _number(value) for name, value in asked.items() if name}
    headers = [table_schema("serve").by_name[name].header for name in cells]
    own = evaluate_forms(table_from_rows("serve", headers, [list(cells.values())]), load_catalog())
    assert row["accelerators"] == own.number("accelerators")[0]
    assert row["request_rate_request_per_s"] == pytest.approx(50.0)
    assert row["model"] == "Llama3-70B"


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def test_a_deadline_chooses_the_number_of_accelerators(command: Command) -> None:
    done = command("train", "--model", "Llama3-8B", "--training-tokens", "0.1", "--deadline", "10", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    assert 0.0 < row["run_time_day"] <= 10.0
    assert row["accelerators"] >= 8.0


@pytest.mark.parametrize(
    ("accelerator", "stack"),
    [
        ("H100", "Megatron-Core"),
        ("MI300X", "Megatron-Core"),
        ("TPUv6e", "maxtext"),
        ("Trainium2", "A training stack of which no"),
    ],
)
def test_a_run_takes_the_training_stack_that_was_measured_on_its_accelerator(
    accelerator: str, stack: str, command: Command
) -> None:
    asked = ("--model", "Llama3-8B", "--training-tokens", "0.1", "--num-accelerators", "16")
    done = command("train", *asked, "--accelerator", accelerator)
    assert done.code == 0, done.err
    assert f"assumptions: {stack}" in done.out + done.err


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (("serve", "--model", "DeepSek-V3"), 2, r'--model: unknown model "DeepSek-V3".*DeepSeek-V3'),
        (("serve", "--users", "many"), 2, r'--users: users must be .*"many"'),
        (("chip", "--num-dies", "0"), 2, r"--num-dies: num dies must be .*, got 0"),
        (("train", "--num-accelerators", "auto"), 2, r"--num-accelerators: .*deadline"),
        (("serve", "--speed-per-user", "100000"), 1, r"^No answer: "),
    ],
)
def test_what_is_wrong_or_cannot_be_is_one_line(
    given: tuple[str, ...], code: int, words: str, command: Command
) -> None:
    done = command(*given)
    assert done.code == code
    text = done.err if code == 2 else done.out.split("\n")[0]
    assert re.search(words, text), text
    assert len(text.strip().split("\n")) == 1


SERVED = ("serve", "--model", "Llama3-8B", "--accelerator", "H100", "--users", "400", "--speed-per-user", "30")


@pytest.mark.parametrize("way", ["1", "6"])
def test_the_plan_of_a_way_is_a_row_that_evaluate_takes(way: str, command: Command, tmp_path: Path) -> None:
    """One pool and two: what evaluate makes of the plan is what the answer says of a copy."""
    (answer,) = json.loads(command(*SERVED, "--way", way, "--json").out)
    plan, results = tmp_path / "plan.csv", tmp_path / "results.csv"
    assert command(*SERVED, "--way", way, "-o", plan).code == 0
    assert command("evaluate", plan, "-o", results).code == 0
    (row,) = csv_rows(results.read_text(encoding="utf-8"))
    assert row["software"] == answer["software"] and row["mode"] == answer["mode"]
    assert float(row["num_accelerators"]) == answer["copy_size"]
    for header in ("ttft (ms)", "tpot (ms)", "tpot high (ms)", "memory (GiB)",
                   "cost per million output tokens all in (USD/Mtoken)"):  # fmt: skip
        assert float(row[header.split(" (")[0].replace(" ", "_")]) == pytest.approx(answer[json_key(header)], rel=1e-12)


def test_ways_are_in_json_and_in_a_table_of_eighty_columns(command: Command) -> None:
    (answer,) = json.loads(command(*SERVED, "--json").out)
    done = command(*SERVED)
    lines = done.out.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("way  engine"))
    shown = lines[start + 1 : start + 1 + len(answer["ways"])]
    assert len(answer["ways"]) == answer["num_ways"] == 6
    assert all(len(line) <= 80 for line in lines[start : start + 7])
    for number, (line, way) in enumerate(zip(shown, answer["ways"], strict=True), start=1):
        assert line.split()[0] == str(number) and line.endswith(way["trust"])
        assert f"{way['accelerators']:,.0f}" in line
    assert answer["accelerators"] == answer["ways"][0]["accelerators"]
    costs = [re.split("  +", line.strip())[-2] for line in shown]
    assert len({len(cost.partition(".")[2]) for cost in costs}) == 1, "decimals stand below each other"


def test_fleets_and_runs_are_varied_and_limited(command: Command) -> None:
    """A line per combination, as each is answered alone; a missed limit is told by how much."""
    words = ("serve", "--model", "Meta-Llama-3.1-8B", "--accelerator", "H100-SXM-80GB", "--users", "500")
    done = command(*words, "--vary", "speed per user=20,40", "--json")
    (alone,) = json.loads(command(*words, "--speed-per-user", "40", "--json").out)
    rows = json.loads(done.out)
    assert [row["speed_per_user_token_per_s"] for row in rows] == [20.0, 40.0]
    assert rows[1]["accelerators"] == alone["accelerators"]
    none = command(*words, "--vary", "speed per user=20,40", "--limit", "ttft<=0.1 ms")
    assert none.code == 1 and "No fleet of 2 keeps ttft" in none.err
    missed = command(*words, "--limit", "accelerators<=1")
    assert missed.code == 1 and "Limit missed: accelerators is" in missed.out + missed.err
    runs = command("train", "--vary", "num accelerators=128,256", "--limit", "run time<=1000", "--json")
    assert [row["accelerators"] for row in json.loads(runs.out)] == [128.0, 256.0]
    assert command("serve", "--vary", "accelerators.memory bandwidth=x2").code == 2


def test_an_engine_that_does_not_run_there_is_one_line(command: Command) -> None:
    done = command("serve", "--accelerator", "MI300X", "--software", "tensorrt-llm")
    assert done.code == 2
    assert done.err.strip() == (
        "--software: TensorRT-LLM does not run on MI300X; engines that do: sglang, vllm; or auto for all"
    )


@pytest.mark.parametrize(
    ("question", "result"),
    [
        (("serve", "--model", "Llama3-8B", "--accelerator", "H100", "--users", "200"), "tpot (ms)"),
        (("train", "--model", "Llama3-8B", "--accelerator", "H100", "--num-accelerators", "64"), "step time (s)"),
    ],
    ids=["serve", "train"],
)  # fmt: skip
def test_an_answer_hands_its_plan_to_the_other_commands(
    command: Command, tmp_path: Path, question: tuple[str, ...], result: str
) -> None:
    path = tmp_path / "plan.csv"
    (answer,) = json.loads(command(*question, "--json").out)
    assert command(*question, "-o", path).code == 0
    outcome = command("evaluate", path, "--json")
    assert outcome.code == 0, outcome.err
    (row,) = json.loads(outcome.out)
    assert row[json_key(result)] == pytest.approx(answer[json_key(result)], rel=1e-9)
    for other in (("launch",), ("explain",), ("worth",), ("uncertainty", "--result", result.partition(" (")[0])):
        done = command(*other, path)
        assert done.code == 0 and done.out, (other, done.err)


def test_numbers_of_entries_take_units_and_parted_thousands(command: Command) -> None:
    words = ("serve", "--model", "Meta-Llama-3.1-8B", "--accelerator", "H100-SXM-80GB", "--json")
    plain = command(*words, "--users", "2000", "--ttft-target", "1500").out
    assert command(*words, "--users", "2k", "--ttft-target", "1.5 s").out == plain
    assert command(*words, "--users", "2,000", "--ttft-target", "1500 ms").out == plain
    for wrong in ("2 kg", "2,00", "two"):
        refused = command(*words, "--users", wrong)
        assert refused.code == 2 and f'users must be a number above 0, got "{wrong}"' in refused.err


def test_one_machine_says_how_many_users_it_serves(command: Command) -> None:
    """Users auto fill one copy of so many accelerators; one more user than the answer takes a second copy."""
    words = ("serve", "--model", "Meta-Llama-3.1-8B", "--accelerator", "H100-SXM-80GB", "--num-accelerators", "8")
    (most,) = json.loads(command(*words, "--users", "auto", "--json").out)
    assert most["accelerators"] == most["copy_size"] == 8 and most["copies"] == 1 and most["head_room"] == 0
    (further,) = json.loads(command(*words, "--users", str(most["users"] + 1), "--way", "1", "--json").out)
    assert further["accelerators"] > 8 or further["users_that_fit"] > most["users"]
    shown = command(*words, "--users", "auto").out
    assert "way  engine" in shown and "users" in next(line for line in shown.split("\n") if line.startswith("way"))
    assert command(*words, "--json").out == command(*words, "--users", "auto", "--json").out  # no 10,000 users unasked
    assert "give users or request rate" in command(*words[:5], "--users", "auto").err


def test_entries_in_words_vary(command: Command) -> None:
    words = ("train", "--model", "Meta-Llama-3.1-8B", "--accelerator", "H100-SXM-80GB", "--num-accelerators", "16")
    rows = json.loads(command(*words, "--vary", "precision=bf16,fp8", "--json").out)
    assert [row["precision"] for row in rows] == ["bf16", "fp8"]
    assert rows[1]["step_time_s"] < rows[0]["step_time_s"]
