"""Results show themselves in a notebook, with texts of users escaped, and plot themselves."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

import xlperf
from xlperf.catalog.schema import questions
from xlperf.notebook.result import Result
from xlperf.page.answer import MOST_ROWS

mpl.use("Agg")
EVIL = "<script>alert('a')</script>&\"\u202e"
TRAIN: dict[str, Any] = {
    "name": EVIL, "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 16, "tensor parallel": 2,
    "global batch size": 32,
}  # fmt: skip
SERVE: dict[str, Any] = {
    "name": "$s$", "model": "Llama3-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 1, "prompt length": 1000,
    "output length": 200, "concurrency": 16,
}  # fmt: skip


class Page(HTMLParser):
    """Cells by table and row; every element must be known and closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "style", "p", "b", "table", "thead", "tbody", "tr", "td", "th", "small", "br")
        assert all(name in ("class", "scoped") for name, _ in attrs)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def evaluated() -> Result:
    return xlperf.evaluate([{**TRAIN, "tensor parallel": degree} for degree in (1, 2, 3)])


@pytest.fixture(scope="module")
def served() -> Result:
    return xlperf.serve(model="Llama3-8B", accelerator="H100", users=400, speed_per_user=30)


def test_a_table_has_names_units_and_four_digits(evaluated: Result) -> None:
    page = Page(evaluated._repr_html_())
    (head, units, *rows) = page.tables[0]
    at = head.index("step time")
    assert units[at] == "s" and len(rows) == 3 and len({len(row) for row in (head, units, *rows)}) == 1
    assert float(rows[1][at]) == pytest.approx(evaluated["step time (s)"][1], rel=1e-3)
    assert rows[2][at] == "" and "tensor parallel" in rows[2][head.index("reason")]
    assert "2 of 3 plans legal" in page.text and "hfu" not in head, "the main columns"
    assert len(Page(xlperf.evaluate([TRAIN] * (MOST_ROWS + 5))._repr_html_()).tables[0]) == MOST_ROWS + 2


def test_texts_of_users_are_escaped(evaluated: Result) -> None:
    text = evaluated._repr_html_()
    assert "<script" not in text and "\u202e" not in text
    assert "<script>alert('a')</script>" in Page(text).text
    assert "\\u202e" in repr(xlperf.search({**TRAIN, "tensor parallel": "auto"})).split("\n")[0]
    two = xlperf.search([{**TRAIN, "tensor parallel": "auto"}] * 2)
    assert two._repr_html_().count("least step time of") == 2 and "\\n" not in two._repr_html_()


def test_an_answer_is_a_card_with_its_ways_and_notes(served: Result) -> None:
    page = Page(served._repr_html_())
    shown = {name: words for name, words in questions()["serve"].tables.items() if name != "others"}  # of cells alone
    assert all(words in page.text for words in shown.values())
    card, ways, _ = page.tables
    assert page.text.split("right}", 1)[1].startswith(served.answer)
    band = next(row for row in card if row[0] == "tpot (ms)")
    assert band[2].startswith("80 % band ") and float(band[1]) == pytest.approx(served["tpot (ms)"].item(), rel=1e-3)
    assert len(ways) == 2 + len(served.tables["ways"])
    assert all(note in page.text for note in served.notes)
    text = repr(served)
    assert text.startswith(served.answer) and text.endswith(served.notes[-1]) and "tpot (ms)" in text


def test_labels_of_a_plot_tell_rows_apart() -> None:
    """As many entries as differ, and more than two if two rows would have one label."""
    rows = [{**TRAIN, "tensor parallel": tp, "data parallel": 8 // tp, "micro batch size": size}
            for tp in (1, 2) for size in (1, 2)]  # fmt: skip
    result = xlperf.evaluate(rows)
    labels = result.plot._names()
    assert len(set(labels)) == len(rows)


def test_what_is_selected_of_a_result_is_a_frame(evaluated: Result) -> None:
    for part in (evaluated.head(2), evaluated[["mfu"]], evaluated.copy(), pd.concat([evaluated, evaluated])):
        assert type(part) is pd.DataFrame
    assert evaluated.plot.bar(y="mfu") is not None and evaluated.plot(kind="bar", y="mfu") is not None


def test_an_edited_result_shows_its_own_rows() -> None:
    result = xlperf.evaluate(TRAIN)
    result["mine"] = "<b>"
    assert "mine" in repr(result) and "mine" in result._repr_html_() and "<b>" not in result._repr_html_()


def test_a_roofline_has_the_operators_below_the_roof_of_the_accelerator(evaluated: Result, served: Result) -> None:
    for result in (evaluated, served, xlperf.explain(SERVE)):
        axes = result.plot("roofline")
        roofs = [line.get_xydata() for line in axes.get_lines()]
        assert max(roof[:, 1].max() for roof in roofs) in (989.0, 1979.0)
        points = np.concatenate([dots.get_offsets() for dots in axes.collections])
        roof = max(roofs, key=lambda one: one[-1, 1])
        bound = np.minimum(points[:, 0] * roof[0, 1] / roof[0, 0], roof[-1, 1])
        assert len(points) > 5 and (points[:, 1] < 1.3 * bound).all(), "cache may serve a part of the traffic"
        assert {text.get_text() for text in axes.get_legend().get_texts()} <= {"compute", "memory", "overhead"}
        plt.close(axes.figure)


def test_a_waterfall_adds_up_to_the_step(evaluated: Result, served: Result) -> None:
    axes = evaluated.plot("waterfall", row=1)
    *parts, whole = [bar.get_width() for bar in axes.patches]
    assert sum(parts) == pytest.approx(whole) == pytest.approx(evaluated["step time (s)"][1])
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([0.0, *np.cumsum(parts)[:-1], 0.0])
    assert axes.get_xlabel() == "time (s)" and served.plot.waterfall().get_xlabel() == "time (ms)"
    plt.close("all")


def test_a_frontier_joins_rows_that_no_other_beats(served: Result) -> None:
    plans = xlperf.sweep(SERVE, {"concurrency": [1, 8, 64], "tensor parallel": [1], "precision": ["bf16", "fp8"]})
    axes = plans.plot("frontier")
    points, line = axes.collections[0].get_offsets(), axes.get_lines()[0].get_xydata()
    assert len(points) == 6 and 1 <= len(line) < 6
    for x, y in points:
        assert any((x <= a and y <= b) for a, b in line)
    assert "per user" in axes.get_xlabel() and "per accelerator" in axes.get_ylabel()
    axes = served.plot.frontier()
    assert len(axes.get_lines()[0].get_xydata()) > 3
    assert axes.yaxis.get_major_formatter()(12000.0, 0) == "12,000", "thousands are parted as on every screen"
    chips = xlperf.chip(vary={"num dies": [1, 2]})
    assert "unit cost" in chips.plot.frontier().get_xlabel()
    other = plans.plot("frontier", x="concurrency", y="ttft (ms)")
    assert (other.get_xlabel(), other.get_ylabel()) == ("concurrency", "ttft (ms)")
    plt.close("all")


def test_bands_span_the_ends_of_each_row(evaluated: Result, served: Result) -> None:
    axes = evaluated.plot("bands")
    (spans,) = [one.get_segments() for one in axes.collections]
    assert spans[1][:, 0].tolist() == evaluated.loc[1, ["step time low (s)", "step time high (s)"]].tolist()
    assert served.plot("bands", column="tpot (ms)").get_xlabel().startswith("tpot (ms)")
    plt.close("all")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("rofline", {}, 'unknown kind "rofline"; kinds: roofline, waterfall, frontier, bands'),
        ("bands", {"column": "cost"}, 'bands: "cost" has no band; columns with one: step_time'),
        ("frontier", {"x": "mfuu"}, 'frontier: no column "mfuu"; did you mean mfu'),
        ("roofline", {"row": 3}, "row must be from 0 to 2, got 3"),
        ("roofline", {"row": 2}, "roofline: the plan has no operators, it is illegal"),
        ("waterfall", {"row": 2}, "waterfall: the plan has no times, it is illegal"),
    ],
)
def test_a_plot_that_cannot_be_is_refused(kind: str, options: dict[str, Any], message: str, evaluated: Result) -> None:
    with pytest.raises(xlperf.InputError) as caught:
        evaluated.plot(kind, **options)
    assert str(caught.value).startswith(f"plot: {message}")


def test_a_result_without_a_plan_or_matplotlib_says_so(evaluated: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(xlperf.InputError, match="has no plan of one catalog"):
        xlperf.worth(TRAIN).plot("roofline")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(xlperf.InputError, match=r"plots need it: pip install 'xlperf\[notebook\]'"):
        evaluated.plot("bands")


def test_a_plot_without_a_kind_suits_the_result() -> None:
    """A fleet draws the curve of its copy, a run its parts, chips their frontier, plans their bands; as print shows."""
    plan = {"model": "Llama3-8B", "accelerator": "H100", "num accelerators": 8}
    run = xlperf.train(model="Llama3-8B", accelerator="H100", num_accelerators=8)
    chips = xlperf.chip(vary={"num dies": [1, 2]})
    drawn = {
        "tokens per second": chips.plot().get_ylabel(), "time (": run.plot().get_xlabel(),
        "80 % band": xlperf.evaluate([plan, {**plan, "tensor parallel": 2}]).plot().get_xlabel(),
    }  # fmt: skip
    plt.close("all")
    assert all(words in label for words, label in drawn.items()), drawn
    lines = repr(run).splitlines()
    assert re.fullmatch(r"run time \(day\) +[\d.,]+ +80 % band .* to .*", lines[2]), lines[:4]
