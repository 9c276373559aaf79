"""Tables on a terminal are as wide as it, progress is a line that goes, and pipes get whole tables."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from xlperf.base.resources import workbook
from xlperf.catalog.catalog import Catalog
from xlperf.cli import output, published, questions
from xlperf.cli.app import cli
from xlperf.cli.output import TextColumn, narrowed, progress, say
from xlperf.cli.plans import _limits
from xlperf.explore.forms import Shown

COLUMN = st.builds(
    TextColumn,
    st.text("abcdefgh ", min_size=1, max_size=30).map(str.strip).filter(bool),
    st.sampled_from(["", "s", "GiB"]),
    st.lists(st.text("0123456789abc.", max_size=40), min_size=3, max_size=3),
    st.booleans(),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.lists(COLUMN, min_size=1, max_size=8), st.integers(60, 200))
def test_no_line_is_wider_than_the_terminal_and_no_column_is_lost_without_a_word(
    columns: list[TextColumn], width: int
) -> None:
    lines = narrowed(columns, width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for column in columns:
        assert all(word in text for word in column.name.split())


@given(st.lists(COLUMN, min_size=1, max_size=8))
def test_a_pipe_gets_the_whole_table(columns: list[TextColumn]) -> None:
    whole = narrowed(columns, 0)
    assert not any(line.startswith(("All rows: ", "Left out: ")) for line in whole)
    for column in columns:
        assert all(any(cell in line for line in whole) for cell in column.cells)


def test_a_command_on_a_narrow_terminal_and_with_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for width, options in ((80, []), (80, ["--wide"]), (400, [])):
        monkeypatch.setattr(output.shutil, "get_terminal_size", lambda width=width: (width, 40))
        monkeypatch.setattr(output, "is_terminal", lambda: True)
        done = CliRunner().invoke(cli, ["explain", str(workbook()), "--sheet", "training", "--row", "1", *options])
        assert done.exit_code == 0, done.output
        shown[width, bool(options)] = done.stdout.splitlines()
    table = [line for line in shown[80, False] if "compute" in line]
    assert table and max(map(len, shown[80, False])) <= 80
    assert any(line.startswith("Left out: ") for line in shown[80, False])
    assert shown[80, True] == shown[400, False] and max(map(len, shown[80, True])) > 80


def test_progress_on_a_terminal_is_cleared_before_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(output.sys, "stderr", terminal)
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress(100, "100 plans") as done:
        done(25)
        assert "100 plans: 25 done, 25 %" in terminal.getvalue()
        say("a table")
        assert terminal.getvalue().endswith("\r")
    assert "\n" not in terminal.getvalue()


def test_progress_in_a_pipe_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(output.sys, "stderr", piped)
    clock = iter(float(second) for second in range(0, 1000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress(0, "plans tried") as done:
        for _ in range(9):
            done(100)
    lines = piped.getvalue().splitlines()
    assert len(lines) == 3 and lines[0] == "plans tried: 300, 25/s, 12 s"


def test_colour_only_where_a_terminal_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for is_terminal, environment in ((True, None), (True, "1"), (False, None)):
        terminal = Terminal() if is_terminal else io.StringIO()
        monkeypatch.setattr(output.sys, "stdout", terminal)
        monkeypatch.delenv("NO_COLOR", raising=False)
        if environment:
            monkeypatch.setenv("NO_COLOR", environment)
        say("plan  MEASURED")
        shown.append(terminal.getvalue())
    assert shown[1:] == ["plan  MEASURED\n"] * 2
    assert shown[0] == "plan  \x1b[32mMEASURED\x1b[0m\n"


def test_sentences_are_folded_between_words_and_commands_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.shutil, "get_terminal_size", lambda: (60, 40))
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    runner = CliRunner()
    asked = "spares --workload serving --accelerator H200 --num-accelerators 80"
    answer = runner.invoke(cli, asked.split())
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert max(map(len, lines)) <= 60 and lines[0].startswith("10 copies of 8 H200")
    assert "Accelerator H200 taken as" in lines[3]
    page = runner.invoke(cli, ["guide", "start"]).stdout.splitlines()
    command = next(line for line in page if line.startswith("$ xlperf serve"))
    assert len(command) > 60 and max(len(line) for line in page[:8]) <= 60


def test_results_of_an_answer_are_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A band goes below its number where the name of the result leaves too little room."""
    card = [Shown("a", "fleet cost per million output tokens (USD/Mtoken)", "0.3828", "0.2417 to 0.5641"),
            Shown("b", "accelerators", "152"), Shown("c", "chosen", "5 stacks, the fewest of all " * 4)]  # fmt: skip
    answer: Any = SimpleNamespace(card=card, words="152 H200", beside=[], notes=[])
    for width in (80, 120, 200):
        monkeypatch.setattr(questions, "terminal_width", lambda width=width: width)
        lines = questions.answer_lines(answer, [])
        assert max(map(len, lines)) <= width
        assert (lines[3].strip() == "80 % band 0.2417 to 0.5641") == (width == 80)


def test_each_constant_of_the_calibration_is_told_apart(monkeypatch: pytest.MonkeyPatch, catalog: Catalog) -> None:
    """No two lines hold for the same, and a time of a microsecond does not read 0."""
    table = catalog.tables["calibration"]
    for width in (80, 120):
        monkeypatch.setattr(published, "terminal_width", lambda width=width: width)
        lines = published._constants(table)
        assert max(map(len, lines)) <= width and not any("_" in line for line in lines)
        start = lines[0].index("constant")
        values = [line.split()[-3:] for line in lines[2:] if line[start - 2 : start] == "  " and line[start:].strip()]
        assert len(values) >= len(table) and not any(cells[0] == "0.00" for cells in values)
    monkeypatch.setattr(published, "terminal_width", lambda: 0)
    lines = published._constants(table)
    scopes = [line[: lines[0].index("value")].split("  ") for line in lines[2:]]
    assert len({tuple(words for words in scope if words) for scope in scopes}) == len(table)


def test_the_mark_of_the_best_chips_stays_in_a_narrow_table() -> None:
    columns = [TextColumn("cache", "MB", ["64", "128"], True), TextColumn("frontier", "", ["yes", "no"], False)]
    columns[1:1] = [TextColumn(f"result {number}", "W", ["1.25", "2.5"], True) for number in range(9)]
    assert "frontier" in narrowed(columns, 60)[0] + narrowed(columns, 60)[1]


def test_operators_hidden_behind_others_are_no_step_of_their_own() -> None:
    known: dict[str, list[Any]] = {"share": [0.75, 0.25, 0.0], "exposed_time": [0.3, 0.1, 0.0]}
    known |= {"phase": ["forward", "communication", "communication"], "bound": ["compute", "network", "network"]}
    operators: Any = SimpleNamespace(number=lambda name: np.array(known[name]), text=lambda name: np.array(known[name]))
    assert _limits(operators) == ["step 400 ms: compute 75 %, network 25 %"]


def test_long_words_are_folded_into_their_column() -> None:
    causes = ["another sharding stage + gradients in 16 bits", "full recomputation"]
    predicted = ["step time 15.33 s, memory 67.69 GiB", "step time 19 s"]
    columns = [TextColumn("rank", "", ["1", "2"], True), TextColumn("cause", "", causes, False)]
    columns.append(TextColumn("predicted", "", predicted, False))
    lines = narrowed(columns, 60)
    assert max(map(len, lines)) <= 60 and not any("..." in line for line in lines)
    assert " ".join(line[6:26].strip() for line in lines[2:5]).strip() == causes[0]
