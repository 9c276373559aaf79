"""An answer as a page to send: one file without network, with the numbers of the terminal and of its sliders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import parts
from xlperf.cli.table_files import written_block
from xlperf.explore import workers
from xlperf.explore.forms import Answered, answered, asked_form
from xlperf.page import answer as charts
from xlperf.page.answer import Axis, Question, question_of, write_tables

Command = Callable[..., Outcome]
ONE_WAY = ("--software", "vllm", "--mode", "continuous")
ASKED = {
    "serve": ("--model", "Llama3-8B", "--accelerator", "H100", "--users", "400", "--speed-per-user", "30", *ONE_WAY),
    "train": ("--model", "Llama3-8B", "--num-accelerators", "64", "--training-tokens", "0.5"),
    "chip": ("--technology", "3nm", "--num-dies", "2", "--die-area", "400", "--limit", "unit cost<=10"),
}
VOID = ("meta", "input", "path", "rect", "circle", "polyline")


class Page(HTMLParser):
    """Texts by id, text as a whole, rows of tables; every element must be closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.by_id: dict[str, str] = {}
        self.sliders: list[dict[str, str | None]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._open: list[tuple[str, str]] = []
        self.feed(self.source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        assert not {"src", "href", "action", "onclick", "onload"} & given.keys(), (tag, given)
        if tag == "tr":
            self.rows.append([])
        elif tag == "input":
            self.sliders.append(given)
        if tag not in VOID:
            self._open.append((tag, str(given.get("id", ""))))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            tag, name = self._open[-1]
            self.by_id[name] = self.by_id.get(name, "") + data
            if tag in ("td", "th"):
                self.rows[-1].append(data)
            elif tag not in ("script", "style"):
                self.texts.append(data)

    @property
    def grid(self) -> Any:
        return json.loads(self.by_id["grid"])


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process: others would take longer to start than to answer."""
    monkeypatch.setattr(workers, "all_processes", lambda: 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def whole(words: dict[str, str]) -> str:
    """The answer of a page: its first sentence, a heading, and the sentences below."""
    return f"{words['answer']} {words.get('more', '')}".strip()


@pytest.mark.parametrize("kind", ASKED)
def test_a_page_says_what_the_terminal_says(
    kind: str, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "serve":  # each of its answers takes long: sliders of few steps
        monkeypatch.setattr(charts, "FACTORS", ((0.5, 1.0, 2.0), (1.0, 1.5)))
    path = folder / f"{kind}.html"
    done, shown = command(kind, *ASKED[kind], "-o", path), command(kind, *ASKED[kind])
    page = Page(path)
    assert done.code == shown.code and f"{path}: {len(page.grid['points'])} answers\n" in done.err
    first, *_ = shown.out.splitlines()
    assert done.out.splitlines()[0] == first and whole(page.by_id) == first
    notes = [line for line in shown.out.splitlines() if line.startswith(("asked: ", "assumptions: ", "Limit "))]
    assert len(notes) > 0 and all(note in page.texts for note in notes)
    for line in re.findall(r"^([a-z][^\n]*?)  +([\d.,]+(?: %)?)(?:  80 % band (.*))?$", shown.out, re.MULTILINE):
        assert any(row[:2] == list(line[:2]) for row in page.rows), line
    tiles = [page.by_id[f"tile-{number}"] for number in range(6)]
    assert all(tiles)
    assert page.source.count("<svg") == (2 if kind == "serve" else 1) and "NaN" not in page.source
    assert not any(engine in cells for cells in page.rows for engine in ("sglang", "vllm", "tensorrt-llm"))


@pytest.mark.parametrize("kind", ASKED)
def test_a_page_needs_no_network(kind: str, folder: Path) -> None:
    page = Page(folder / f"{kind}.html")
    assert "default-src 'none'" in page.source and "://" not in page.source and "url(" not in page.source
    assert "import" not in re.findall(r"[a-z]+", page.source.partition("<script>")[2]) and len(page.source) < 60_000
    assert page.tags & {"img", "link", "iframe", "object", "form"} == set()


@pytest.mark.parametrize("kind", ASKED)
def test_sliders_reach_answers_of_the_command(kind: str, command: Command, folder: Path) -> None:
    page = Page(folder / f"{kind}.html")
    axes, points = page.grid["axes"], page.grid["points"]
    assert [int(slider["max"] or "") for slider in page.sliders] == [len(axis) - 1 for axis in axes]
    assert len(points) == len(axes[0]) * len(axes[1]) >= 6
    start = [int(slider["value"] or "") for slider in page.sliders]
    asked = points[start[0] * len(axes[1]) + start[1]]
    assert whole(asked) == whole(page.by_id)
    assert [words for words, _ in asked["tiles"]] == [page.by_id[f"tile-{number}"] for number in range(6)]
    assert [page.by_id[f"value-{place}"] for place in (0, 1)] == [axes[place][start[place]] for place in (0, 1)]
    entries = {"serve": ("users", "speed-per-user"), "train": ("num-accelerators", "training-tokens"),
               "chip": ("num-dies", "die-area")}[kind]  # fmt: skip
    changed = [word for place, name in enumerate(entries) for word in (f"--{name}", axes[place][-1])]
    other = command(kind, *ASKED[kind], *changed)
    assert whole(points[-1]) == other.out.splitlines()[0]
    head = next(row for row in page.rows if row[0].replace(" ", "-").startswith(entries[0]) and len(row) >= 7)
    table = page.rows[page.rows.index(head) + 1 :][: len(points)]
    shown = [[words for words, _ in point["tiles"] if words] for point in points]
    without = int(kind == "train")  # the first tile repeats the number of accelerators that a slider moves
    reasons = [[point["answer"]] for point in points]  # a question without an answer has its reason for results
    assert [row[2:] for row in table] == [
        words[without:] or reason for words, reason in zip(shown, reasons, strict=True)
    ]
    assert page.source.count('<tr class="asked">') == 1


def test_texts_of_users_are_escaped(command: Command, catalog: Catalog, tmp_path: Path) -> None:
    models = catalog.tables["models"]
    model = models.take([models.text("model").tolist().index("Meta-Llama-3.1-8B")])
    block = [part for part in parts(model) if part[0].name != "aliases"]
    text = written_block(block, ".csv").decode()
    (tmp_path / "models.csv").write_text(text.replace("Meta-Llama-3.1-8B", "</script><b>m"), encoding="utf-8")
    asked = ("--model", "</script><b>m", "--num-accelerators", "16", "--catalog", tmp_path / "models.csv")
    done = command("train", *asked, "-o", tmp_path / "page.html")
    assert done.code == 0, done.err
    page = Page(tmp_path / "page.html")
    assert "train </script><b>m on" in page.by_id["answer"] and "<b>m" not in page.source
    assert all("</script><b>m" in point["answer"] for point in page.grid["points"])


def test_sliders_are_for_numbers_that_the_question_states(catalog: Catalog) -> None:
    def axes(kind: str, **given: str) -> dict[str, list[str]]:
        form, table = asked_form(kind, given)
        return {axis.name: axis.texts for axis in question_of(Answered(form, table, table), catalog).axes}

    days = axes("train", deadline="10", training_tokens="0.1")
    assert days == {"deadline": ["2.5", "5", "10", "20", "40"], "training_tokens": ["0.05", "0.1", "0.2"]}
    assert axes("serve", request_rate="3")["request_rate"] == ["0.75", "1.5", "3", "6", "12"]
    assert axes("chip", num_dies="1")["num_dies"] == ["1", "2", "4"], "whole numbers, each once"
    assert axes("serve", users="auto", facility_power_limit="1") == {"speed_per_user": ["10", "20", "40"]}


def test_a_question_without_an_answer_has_a_page(command: Command, tmp_path: Path) -> None:
    none = command("train", "--num-accelerators", "1", "-o", tmp_path / "b.html")
    assert none.code == 1
    page = Page(tmp_path / "b.html")
    assert page.by_id["answer"].startswith("No answer: ") and "<svg" not in page.source


@pytest.mark.parametrize(
    ("words", "message"),
    [(("explain", "plans.csv"), "the output must end in"), (("serve", "--users", "many"), "--users: users must be")],
)
def test_a_page_that_cannot_be_leaves_the_file(
    words: tuple[str, ...], message: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text("before", encoding="utf-8")
    done = command(*words, "-o", path)
    assert done.code == 2 and message in done.err and len(done.err.splitlines()) == 1
    assert path.read_text(encoding="utf-8") == "before" and list(tmp_path.iterdir()) == [path]


def test_charts_are_drawn_to_scale() -> None:
    drawn = charts.bars("t<", [charts.Bar("a&", 1.0, "1", 0.5, 2.0), charts.Bar("b", 2.0, "2")])
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height', drawn)]
    assert widths[1] == 2.0 * widths[0] and "a&amp;" in drawn and "t&lt;" in drawn
    assert charts.bars("t", []) == "" == charts.bars("t", [charts.Bar("a", 0.0, "")])
    wide = charts.bars("t", [charts.Bar("a plan with a long name, " * 9, 1.0, "1")])
    edge, label = re.findall(r'<text x="([\d.]+)"[^>]*end">([^<]+)<', wide)[0]
    assert len(label) * 7.0 <= float(edge) and label.startswith("a plan") and label.endswith("\N{HORIZONTAL ELLIPSIS}")
    line = charts.curve("t", [(1.0, 4.0), (2.0, 2.0)], (2.0, 2.0), ("x", "y"))
    (points,) = re.findall(r'points="([^"]+)"', line)
    assert points.split()[1] == "{},{}".format(*re.findall(r'c[xy]="([\d.]+)"', line))


def test_varied_entries_are_the_sliders_of_a_page(command: Command, tmp_path: Path) -> None:
    """Two entries, one of them words; each point is the answer that the command gives alone."""
    path = tmp_path / "chip.html"
    varied = ("--vary", "cache=32,128", "--vary", "technology=5 nm,3 nm")
    done = command("chip", *varied, "-o", path)
    assert done.code == 0 and f"{path}: 4 answers" in done.err
    page = Page(path)
    assert page.grid["axes"] == [["32", "128"], ["5 nm", "3 nm"]]
    assert [page.by_id["value-0"], page.by_id["value-1"]] == ["32", "3 nm"]
    alone = command("chip", "--cache", "128", "--technology", "5 nm")
    assert whole(page.grid["points"][2]) == alone.out.splitlines()[0]


def test_a_page_draws_each_column_that_the_sheet_draws(catalog: Catalog) -> None:
    """Of a fleet of two generations the page once drew the first alone, named generation 1."""
    given = {"generations": "B200;Rubin (VR200)", "years": "3", "request_rate": "875"}
    answer = answered("fleet", given, catalog)
    years, drawings = answer.nested["years"], "".join(charts._charts(answer))
    used = [number for number in range(1, 5) if (years.number(f"generation_{number}") > 0.0).any()]
    names = [str(answer.answer[f"generation_{number}_name"]) for number in used]
    titles = re.findall("<figcaption>(.*?)<", drawings)
    assert len(names) > 1 and titles == [f"Accelerators by generation and year: {name}" for name in names]


def test_a_grid_and_a_report_are_pages_of_tables(command: Command, tmp_path: Path) -> None:
    plans, path = tmp_path / "plans.csv", tmp_path / "grid.html"
    plans.write_text("model,accelerator,num accelerators\nLlama3-8B,H100-SXM-80GB,8\n", encoding="utf-8")
    asked = ("evaluate", plans, "--vary", "tensor parallel=1,2", "--result", "step time")
    done = command(*asked, "-o", path)
    assert done.code == 0 and f"{path}: 2 plans" in done.err
    page = Page(path)
    rows = json.loads(command(*asked, "--json").out)
    for row in rows:
        told = next(cells for cells in page.rows if cells[0] == f"{row['tensor_parallel']:g}")
        assert float(told[1].replace(",", "")) == pytest.approx(row["step_time_s"], rel=1e-3)
    assert page.source.count("<svg") == 1 and "step time (s) by tensor parallel" in page.source
    report = command("report", plans, "-o", path)
    assert report.code == 0 and "1 training plan" in report.err
    page = Page(path)
    assert "Training plans" in page.texts and "<script" not in page.source
    assert all(line in page.texts for line in report.out.splitlines())
    study = command("report", "-o", path, "--study", "gemm-bounds")
    assert study.code == 0, study.err
    page, (question, *findings) = Page(path), study.out.splitlines()
    assert f"<h1>{question}</h1>" in page.source and all(line in page.texts for line in findings)
    assert "<table" in page.source
    drawn = re.findall("<figcaption>(.*?)<", page.source)
    assert len(drawn) == page.source.count("<svg") and any("prefill and decode" in title for title in drawn)
    assert all(float(width) >= 0.0 for width in re.findall(r'width="(-?[\d.]+)" height', page.source))


def test_entries_that_exclude_each_other_are_a_point_without_an_answer(catalog: Catalog) -> None:
    """The slider of the output length once ended the page of RL with an error: it reaches beyond the longest output."""
    form, _ = asked_form("rl", {})
    axis = Axis("output_length", [form["output_length"], "6100"], 0)
    ((words, tiles),) = Question("rl", form, (axis,), catalog).answered([1])
    assert words.startswith("No answer: output length 6,100 must be below the longest output")
    assert len(tiles) == 6 and not any(one.words for one in tiles)


def test_many_headed_sentences_are_a_table(tmp_path: Path) -> None:
    """A report of many models is read by its headings; a few sentences, or one without a heading, stay paragraphs."""
    lines = [f"Training model {number}: cheapest <a>; fastest b." for number in range(12)]
    for given, tabulated in ((lines, True), (lines[:3], False), ([*lines, "No heading."], False)):
        write_tables(str(tmp_path / "page.html"), "A report", given, [])
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert page.count("<tr><th>Training model") == (12 if tabulated else 0)
        assert page.count("<p>") == (0 if tabulated else len(given)) and "<a>" not in page
        assert ("cheapest &lt;a&gt;;<br>fastest b." in page) == tabulated
