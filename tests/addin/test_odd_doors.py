"""Odd arguments at the doors that are no spreadsheet: the command line and the functions for DataFrames.

Whatever they are given, results come back or faults in words: no traceback, no exception but the documented one.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from conftest import Outcome
from host_calls import CARD, ODD, SERVING

import xlperf
from xlperf.catalog.schema import table_schema
from xlperf.cli.app import cli

PLANS = {"training": dict(CARD), "inference": dict(SERVING)}
DOORS: dict[str, Callable[..., pd.DataFrame]] = {
    name: getattr(xlperf, name) for name in ("evaluate", "explain", "search")
}
NUMBERS = [
    None, np.nan, np.inf, -1.0, 0.0, 1e308, 10**400, True, "8", "words", "auto", "#N/A", "=1+1",
    decimal.Decimal("8"), datetime.datetime(2026, 1, 1), [], {}, (1, 2), np.float64(8), b"\xff", "a\ud800b",
    object(),
]  # fmt: skip
"""What a cell of a DataFrame may hold by mistake."""
WHOLE = [
    *ODD.values(), None, np.nan, [], {}, [[]], [{}], [None], [1, 2], {"model": []}, {1: 2}, pd.DataFrame(),
    pd.Series([1.0]), pd.DataFrame({"model": ["x"]}), pd.DataFrame([[1, 2]], columns=["model", "model"]), object(),
    b"x", iter([]),
]  # fmt: skip
"""What may stand in place of plans."""
WORDS = [
    "",
    "words",
    "-1",
    "nan",
    "1e999",
    "#N/A",
    "8,8",
    "a=b",
    "=1+1",
    "x\u202ey",
    "tensor parallel=0",
    "step time<=words",
]
"""What may stand after an option."""
NO_PLANS = {
    "install": ["words"],
    "uninstall": ["words"],
    "new": ["new.xlsx"],
    "install --list": [],
    "calibrate": [],
    "serve": ["--model", "Llama3-8B", "--users", "100"],
    "train": ["--model", "Llama3-8B"],
    "chip": [],
}
"""Arguments of commands that take no file of plans."""


def answer(door: str, *given: Any, **named: Any) -> pd.DataFrame | None:
    """What a function returns; None for faults in words."""
    try:
        result = DOORS[door](*given, **named)
    except xlperf.InputError as error:
        assert error.lines()
        assert not [line for line in error.lines() if "Traceback" in line or "internal" in line]
        return None
    assert isinstance(result, pd.DataFrame)
    return result


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_anything_in_place_of_plans(door: str, number: int) -> None:
    answer(door, WHOLE[number])


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("door", ["evaluate", "explain"])
def test_anything_in_a_cell_of_a_plan(door: str, kind: str) -> None:
    columns = [column.name.replace("_", " ") for column in table_schema(kind).columns]
    for place, name in enumerate(columns):
        for value in NUMBERS[place % 6 :: 6] if door == "evaluate" else NUMBERS[place % 10 :: 10]:
            result = answer(door, {**PLANS[kind], name: value})
            if result is not None and door == "evaluate":
                assert result["reason"].notna().all(), (name, value)


@pytest.mark.parametrize("door", DOORS)
def test_anything_in_place_of_options(door: str) -> None:
    names = [name for name in inspect.signature(DOORS[door]).parameters if name not in ("plan", "plans")]
    values = [*NUMBERS, *WORDS, *ODD.values()]
    for place, name in enumerate(names):
        for value in values[place % 3 :: 3] if door == "search" else values:  # of many options
            if value is None or (name == "catalog" and value == ""):
                continue
            answer(door, PLANS["training"], **{name: value})
    for given in ((), (PLANS["training"], *[None] * (len(names) + 1))):
        with pytest.raises(TypeError):
            DOORS[door](*given)


def options() -> list[tuple[str, click.Option]]:
    """Options of all commands that take a value; of one that several commands share, the first command's."""
    every = {
        (*one.opts, one.metavar, one.help, str(one.type)): (name, one)
        for name, command in reversed(cli.tasks().items())
        for one in command.params
        if isinstance(one, click.Option) and not one.is_flag
    }
    return list(reversed(every.values()))


OPTIONS = options()


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Arguments that a command can start with, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("plans.csv").write_text("\n".join(",".join(str(row[at]) for row in CARD) for at in (0, 1)) + "\n")
    return lambda name: [*name.split(), *NO_PLANS.get(name, ["plans.csv"])]


def sound(outcome: Outcome) -> None:
    assert outcome.code in (0, 1, 2)
    assert "Traceback" not in outcome.out + outcome.err
    assert "internal" not in outcome.err
    if outcome.code == 2:
        assert outcome.err.strip()


@pytest.mark.parametrize(
    "place", range(len(OPTIONS)), ids=lambda place: " ".join([OPTIONS[place][0], OPTIONS[place][1].opts[0]])
)
def test_anything_after_an_option(
    place: int, command: Callable[..., Outcome], given: Callable[[str], list[str]]
) -> None:
    name, option = OPTIONS[place]
    sound(command(*given(name), option.opts[0], WORDS[place % len(WORDS)]))


@pytest.mark.parametrize("name", cli.tasks())
def test_too_few_and_too_many_arguments(
    name: str, command: Callable[..., Outcome], given: Callable[[str], list[str]]
) -> None:
    for arguments in (["missing.csv"], [*given(name)[len(name.split()) :], "more", "and more"], [""], ["--words"]):
        outcome = command(*name.split(), *arguments)
        sound(outcome)
        if arguments != [""]:  # "" is the workbook that comes with xlperf
            assert outcome.code in (1, 2), arguments
