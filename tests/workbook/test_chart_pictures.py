"""Each kind of chart as LibreOffice draws it: a picture of it, looked at pixel by pixel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image
from openpyxl import Workbook

from xlperf.studies.outcome import Chart, StudySheet, own_column
from xlperf.workbook.axes import LOG_NUMBER, axis_number, log_axis
from xlperf.workbook.charts import (
    SERIES,
    Cells,
    Part,
    Points,
    bars_in_a_limit,
    curve_chart,
    horizontal_bars,
    tornado,
    waterfall,
)
from xlperf.workbook.package import save_workbook
from xlperf.workbook.report.data import Drawn
from xlperf.workbook.report.studies import study_chart

MACHINES = ("A100-SXM4-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB200-NVL72", "MI300X", "MI355X")
INK_OF_WATERFALL = ("1B3A57", "D55E00", "009E73")
SIZE = (17.0, 11.0)


def _table(sheet: Any, columns: dict[str, list[Any]]) -> dict[str, tuple[Cells, Cells]]:
    """Write columns with their headers; cells of header and values of each."""
    result = {}
    for place, (name, values) in enumerate(columns.items(), start=1):
        sheet.cell(1, place).value = name
        for row, value in enumerate(values, start=2):
            sheet.cell(row, place).value = value
        result[name] = Cells(sheet, place, 1, 1), Cells(sheet, place, 2, len(values) + 1)
    return result


def _logarithmic(chart: Any) -> Any:
    log_axis(chart.y_axis, [0.02, 55.0])
    return chart


def _drawn(book: Workbook) -> dict[str, tuple[str, ...]]:
    """A sheet with a chart of each kind; the colours that each must show."""
    plans = [f"Llama-3 70B, {n} H100, plan {n}" for n in range(1, 7)]
    amounts: dict[str, list[Any]] = {name: [float(i + j + 1) for i in range(6)] for j, name in enumerate(MACHINES)}
    expected: dict[str, tuple[str, ...]] = {}

    def add(name: str, columns: dict[str, list[Any]], make: Any, colours: tuple[str, ...]) -> None:
        sheet: Any = book.create_sheet(name)
        sheet.add_chart(make(_table(sheet, columns)), "A20")
        expected[name] = colours

    def parts(cells: dict[str, tuple[Cells, Cells]]) -> list[Part]:
        return [Part(*cells[name], SERIES[i]) for i, name in enumerate(MACHINES)]

    def points(cells: dict[str, tuple[Cells, Cells]]) -> list[Points]:
        return [Points(cells[name][0], cells["x"][1], cells[name][1], SERIES[i]) for i, name in enumerate(MACHINES)]

    seven = SERIES[:7]
    add(
        "stacked bars",
        {"plan": plans, **amounts},
        lambda c: horizontal_bars("Seven parts", c["plan"][1], parts(c), axis_title="share (%)", number="0", size=SIZE),
        seven,
    )
    add(
        "bars in a limit",
        {"plan": plans, **amounts, "capacity": [80.0] * 6},
        lambda c: bars_in_a_limit(
            "Memory",
            c["plan"][1],
            parts(c),
            Part(*c["capacity"], "000000"),
            axis_title="memory (GiB)",
            number="#,##0",
            size=SIZE,
        ),
        (*seven, "000000"),
    )
    curve = {name: [2.0e3 * (i + 1) / x for x in (1, 2, 4, 8, 16)] for i, name in enumerate(MACHINES)}
    along: dict[str, list[Any]] = {"x": [5.0, 12.0, 30.0, 60.0, 140.0], **curve}
    add(
        "log scatter",
        along,
        lambda c: curve_chart("Speed", points(c), x_title="token/s for a user", y_title="token/s", log="xy", size=SIZE),
        seven,
    )
    add(
        "curves",
        along,
        lambda c: curve_chart(
            "Curves", points(c), x_title="x", y_title="y", x_number="#,##0", y_number="#,##0", size=SIZE
        ),
        seven,
    )
    add(
        "bars on a logarithmic axis",
        {"plan": plans, "cost": [0.02, 0.3, 4.0, 7.0, 20.0, 55.0]},
        lambda c: _logarithmic(
            horizontal_bars(
                "Cost",
                c["plan"][1],
                [Part(*c["cost"], SERIES[0])],
                axis_title="USD",
                number="0",
                size=SIZE,
                stacked=False,
            )
        ),
        seven[:1],
    )
    columns = [own_column(name, "USD") for name in along]
    study = StudySheet("cost", "Cost", columns, list(zip(*along.values(), strict=True)))
    lines = Chart("lines", "Seven machines", "x", MACHINES, "ms", "USD", log_x=True, log_y=True)
    sheet: Any = book.create_sheet("study lines")
    _table(sheet, along)
    sheet.add_chart(study_chart(lines, study, Drawn(sheet, list(along), 1, len(along["x"]))), "A20")
    expected["study lines"] = seven
    add(
        "waterfall",
        {"step": ["start", "more", "less", "end"], "below": [0.0, 4.0, 3.0, 0.0], "high": [4.0, 2.0, 3.0, 3.0]},
        lambda c: waterfall(
            "Steps",
            c["step"][1],
            c["below"],
            c["high"],
            [INK_OF_WATERFALL[i] for i in (0, 1, 2, 0)],
            axis_title="USD",
            size=SIZE,
        ),
        INK_OF_WATERFALL,
    )
    add(
        "tornado",
        {"input": ["price", "yield"], "low": [-4.0, -1.0], "high": [6.0, 2.0]},
        lambda c: tornado("What decides", c["input"][1], c["low"], c["high"], axis_title="USD", size=SIZE),
        ("009E73", "D55E00"),
    )
    return expected  # fmt: skip


@pytest.fixture(scope="module")
def pictures(
    converted: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
    """Pixels of the chart of each kind, and the colours that it must show."""
    folder = tmp_path_factory.mktemp("pictures")
    book = Workbook()
    book.remove(book.worksheets[0])
    expected = _drawn(book)
    save_workbook(book, folder / "charts.xlsx")
    folder = converted(folder, "html", folder / "charts.xlsx")
    names = re.findall(r'<img src="([^"]+\.png)"', (folder / "charts.html").read_text(encoding="utf-8"), re.IGNORECASE)
    assert len(names) == len(expected)
    return {
        kind: (_pixels(folder / name), colours) for (kind, colours), name in zip(expected.items(), names, strict=True)
    }


def _pixels(path: Path) -> np.ndarray:
    """A PNG file as numbers, (rows, columns, red green blue)."""
    return np.rint(255.0 * image.imread(path)[..., :3]).astype(np.int64)


def _near(pixels: np.ndarray, colour: str, most: int = 12) -> np.ndarray:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)])
    return np.abs(pixels - wanted).max(axis=2) <= most


KINDS = (
    "stacked bars",
    "bars in a limit",
    "log scatter",
    "curves",
    "study lines",
    "waterfall",
    "tornado",
    "bars on a logarithmic axis",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_shows_each_colour_and_uses_its_area(
    pictures: dict[str, tuple[np.ndarray, tuple[str, ...]]], kind: str
) -> None:
    pixels, colours = pictures[kind]
    high, wide = pixels.shape[:2]
    drawn = np.zeros((high, wide), dtype=bool)
    for colour in colours:
        own = _near(pixels, colour)
        assert own.sum() >= 25, f"{kind}: {colour} is not to be seen"
        drawn |= own
    rows, columns = np.flatnonzero(drawn.any(axis=1)), np.flatnonzero(drawn.any(axis=0))
    assert rows[-1] - rows[0] > 0.45 * high and columns[-1] - columns[0] > 0.45 * wide, f"{kind}: the area is wasted"
    grey = pixels.sum(axis=2)
    edge = np.concatenate([grey[:, 1:3].ravel(), grey[:, -3:-1].ravel(), grey[1:3].ravel(), grey[-3:-1].ravel()])
    assert (edge > 3 * 180).all(), f"{kind}: a text is cut at the edge"


@pytest.mark.parametrize(
    ("values", "look", "named"),
    [
        ([[9.0, 4.0, 9.0], [8.0, 5.0, 2.0]], {}, 1),  # beside the first bars that leave room
        ([[9.0, 9.0, 4.0], [8.0, 8.0, 0.0]], {}, None),  # a bar that is not there has no end
        ([[9.0, 4.0, 9.0], [8.0, 5.0, -2.0]], {}, None),
        ([[1.0] * 30, [9.0] * 29 + [1.0]], {}, None),  # bars lower than letters
        ([[9.0, 4.0, 9.0], [8.0, 5.0, 2.0]], {"is_linear": False}, None),
        ([[9.0, 4.0, 9.0], [8.0, 5.0, 2.0]], {"stacked": True}, None),
    ],
)
def test_bars_beside_each_other_are_named_at_their_ends_or_in_a_legend(
    values: list[list[float]], look: dict[str, bool], named: int | None
) -> None:
    """In the order of the bars, whichever program draws them: LibreOffice turns the legend of such bars."""
    plans = [f"plan {n}" for n in range(len(values[0]))]
    table = _table(Workbook().active, {"plan": plans, "a name of a series": values[0], "another": values[1]})
    parts = [Part(*cells, SERIES[i]) for i, cells in enumerate([*table.values()][1:])]
    chart = horizontal_bars("Two", table["plan"][1], parts, "s", "0", (17.0, 8.0), **{"stacked": False, **look})
    labels = [series.dLbls.dLbl[0] for series in chart.series if series.dLbls is not None]
    assert [(one.idx, one.showSerName) for one in labels] == ([] if named is None else [(named, True)] * 2)
    assert (chart.legend is None) == (named is not None)


@pytest.mark.parametrize("kind", ("stacked bars", "log scatter", "study lines"))
def test_a_legend_takes_less_than_a_third_and_is_clear_of_the_plot(
    pictures: dict[str, tuple[np.ndarray, tuple[str, ...]]], kind: str
) -> None:
    """Below the plot, or right of it: a band without any colour lies between the plot and the keys of its legend."""
    pixels, colours = pictures[kind]
    drawn = np.logical_or.reduce([_near(pixels, colour) for colour in colours])
    high, wide = drawn.shape
    below = drawn.any(axis=1)[int(0.55 * high) :]
    right = drawn.any(axis=0)[int(0.55 * wide) :]
    gaps = [_longest_gap(side) / size for side, size in ((below, high), (right, wide))]
    assert max(gaps) > 0.02, f"{kind}: the legend touches the plot"
    last = np.flatnonzero(drawn.any(axis=1))
    assert last[0] < 0.3 * high


def _longest_gap(filled: np.ndarray) -> int:
    """Longest run of rows or columns without a colour between two with one."""
    places = np.flatnonzero(filled)
    return int(np.diff(places).max()) if len(places) > 1 else 0


def test_colours_of_series_are_told_apart_also_by_those_who_see_fewer() -> None:
    """Ten colours, no two alike; every one stands out from white by at least a quarter of the range of grey."""
    shades = np.array([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in SERIES])
    apart = np.abs(shades[:, None] - shades[None]).sum(axis=2)[np.triu_indices(len(SERIES), 1)]
    assert apart.min() >= 60
    assert (255 - shades @ np.array([0.2126, 0.7152, 0.0722]) > 40).all()


@pytest.mark.parametrize(
    ("values", "shown"),
    [([0.2, 30.0], "0.0"), ([5.0, 140.0], LOG_NUMBER), ([0.02, 900.0], LOG_NUMBER), ([1.0e4, 1.0e7], LOG_NUMBER)],
)
def test_numbers_along_log_axes_are_short_and_close_around_the_values(values: list[float], shown: str) -> None:
    from openpyxl.chart import ScatterChart

    axis = ScatterChart().x_axis
    log_axis(axis, values)
    low, high, base = float(axis.scaling.min), float(axis.scaling.max), float(axis.scaling.logBase)
    assert axis.numFmt.formatCode == shown
    assert low <= min(values) and high >= max(values) and low > min(values) / 5 and high < 5 * max(values)
    assert 2 <= np.log(high / low) / np.log(base) < 10, "three labels or more, and not a dozen"


def test_numbers_along_linear_axes_have_the_decimals_of_their_steps() -> None:
    assert axis_number([0.0, 0.004]) == "0.0000"
    assert axis_number([3.2, 80.0]) == "#,##0"
    assert axis_number([1.0e8]).endswith('" M"')
