"""One die or several: unit cost over silicon area, number of chiplets and volume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.base.units import MILLION
from xlperf.catalog.table import Table
from xlperf.equations.cost.designs import crossover_volume
from xlperf.workbook.charts import SERIES, curve, curve_chart, spots
from xlperf.workbook.report.data import Basis, Report, drawn_table, extra_column, number_words, report_columns
from xlperf.workbook.style import FONT, INK, chart_rows, even_rows, page_setup, put

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog


_TOP = 4
AREAS = (100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 1000.0, 1200.0, 1400.0, 1600.0, 2000.0, 2400.0)
COUNTS = (1, 2, 3, 4, 6, 8)
VOLUMES = tuple(million * MILLION for million in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0))
SPLIT_AREA = 800.0
LINK_SHARE = 0.10
MAP_VOLUME = MILLION
_SIZE = (30.0, 10.5)
_COLOURS = ("000000", *SERIES)


def chiplet_sheet(sheet: Worksheet, report: Report, basis: Basis) -> None:
    """Fill the sheet that sets one die against several: over area and number, and over volume."""
    words = (
        f"Node {basis.node}; one die on {basis.single}, several on {basis.several}, each with {LINK_SHARE:.0%} of its "
        "area for links. No memory, no board."
    )
    cell: Any = put(sheet.cell(_TOP, 1), words, "xlperf note")
    cell.alignment = Alignment(horizontal="left", vertical="center")
    sheet.column_dimensions["A"].width = 30
    block = chart_rows(_SIZE[1])
    last = _map(sheet, report.catalog, basis, _TOP + 1, block)
    sheet.row_breaks.append(Break(id=last + 1))
    _volumes(sheet, report.catalog, basis, last + 2, block)
    page_setup(sheet)
    sheet.freeze_panes = f"A{_TOP}"


def _costs(catalog: Catalog, basis: Basis, area: Any, count: Any, different: Any) -> tuple[np.ndarray, np.ndarray]:
    """Cost of a module and one-time cost in all [USD] of systems; NaN if a die is beyond the reticle."""
    from xlperf.engine.devices import evaluate_designs

    areas, counts, designs = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (area, count, different)))
    shape = areas.shape
    areas, counts, designs = areas.ravel(), counts.ravel(), designs.ravel()
    nodes = catalog.tables["process_nodes"]
    row = catalog.rows("process_nodes", np.array([basis.node], dtype=object), nodes, "node")[0]
    width, height = (float(nodes.filled(f"reticle_{side}")[row]) for side in ("width", "height"))
    links = np.where(counts > 1.0, LINK_SHARE, 0.0)
    die = areas / counts * (1.0 + links)
    legal = die <= width * height
    table = Table(
        "chiplets",
        {
            "chiplet": np.full(len(areas), "", dtype=object),
            "node": np.full(len(areas), basis.node, dtype=object),
            "package": np.where(counts > 1.0, basis.several, basis.single).astype(object),
            "num_dies": counts,
            "num_designs": designs,
            "module_area": np.where(legal, areas / counts, 1.0),
            "link_area_share": links,
        },
    )
    results = evaluate_designs(table, catalog)
    one_time = sum(results[name] for name in ("nre_module", "nre_chip", "nre_package", "nre_masks"))
    made = np.where(legal, results["module_cost"], np.nan)
    return made.reshape(shape), np.where(legal, one_time, np.nan).reshape(shape)


def _map(sheet: Worksheet, catalog: Catalog, basis: Basis, top: int, block: int) -> int:
    made, one_time = _costs(catalog, basis, np.array(AREAS)[:, None], np.array(COUNTS)[None, :], 1.0)
    unit = made + one_time / MAP_VOLUME
    header = top + block + 1
    even_rows(sheet, top, header - 1)
    columns = [
        extra_column("one_die" if count == 1 else f"{count}_chiplets", "USD", f"Unit cost with {count} equal dies")
        for count in COUNTS
    ]
    rows = [[area, *(None if np.isnan(v) else float(v) for v in line)] for area, line in zip(AREAS, unit, strict=True)]
    words = f"Unit cost at {MAP_VOLUME:,.0f} units, chiplets alike"
    table = drawn_table(sheet, [*report_columns("chiplet_map"), *columns], rows, header, "chiplet_map", words)
    for number in range(2, len(COUNTS) + 2):
        sheet.column_dimensions[get_column_letter(number)].width = 15
    make: Any = ColorScaleRule
    scale = make(
        start_type="min", start_color="FF9BD3C5", mid_type="percentile", mid_value=50, mid_color="FFFFF7E0",
        end_type="max", end_color="FFE7A6A0",
    )  # fmt: skip
    area = f"B{header + 1}:{get_column_letter(len(COUNTS) + 1)}{table.last}"
    sheet.conditional_formatting.add(area, scale)
    for down, line in enumerate(unit, start=header + 1):
        if np.isfinite(line).any():
            cell: Any = sheet.cell(down, 2 + int(np.nanargmin(line)))
            cell.font = Font(name=FONT, size=10, bold=True, color=INK)
    words = "Bold: the cheapest number of dies. Blank: a die is beyond the reticle."
    put(sheet.cell(table.last + 1, 1), words, "xlperf note")
    points = []
    for column, costs, colour in zip(columns, unit.T, _COLOURS, strict=False):
        given = np.flatnonzero(np.isfinite(costs))
        span = int(given[0]), int(given[-1]) + 1
        points.append(curve(table.head(column.name), table.cells("silicon_area", span),
                            table.cells(column.name, span), colour))  # fmt: skip
    words = f"Unit cost over silicon area and number of dies, {basis.node}"
    chart = curve_chart(
        words, points, "area of all dies (mm2)", "unit cost (USD)", _SIZE, x_number="#,##0", y_number="#,##0",
        x_range=(0.0, max(AREAS)),
    )  # fmt: skip
    sheet.add_chart(chart, f"A{top}")
    return table.last + 1


def _volumes(sheet: Worksheet, catalog: Catalog, basis: Basis, top: int, block: int) -> None:
    kinds = (("one die", 1, 1), ("2 different chiplets", 2, 2), ("4 different chiplets", 4, 4), ("4 alike", 4, 1))
    dies, different = (np.array([kind[i] for kind in kinds]) for i in (1, 2))
    made, one_time = _costs(catalog, basis, SPLIT_AREA, dies, different)
    volumes = np.array(VOLUMES)
    unit = made[None, :] + one_time[None, :] / volumes[:, None]
    header = top + block + 1
    even_rows(sheet, top, header - 1)
    columns = [extra_column(name.replace(" ", "_"), "USD", f"Unit cost of {name}") for name, _, _ in kinds]
    rows = [[float(v), *map(float, line)] for v, line in zip(volumes, unit, strict=True)]
    words = f"Unit cost of {SPLIT_AREA:,.0f} mm2 over volume"
    head = [*report_columns("cost_over_volume"), *columns]
    table = drawn_table(sheet, head, rows, header, "cost_over_volume", words)
    crossing = crossover_volume(made[0], one_time[0], made[1:], one_time[1:])
    lines: list[list[Any]] = [["one die", None, None, float(made[0]), float(one_time[0]) / MILLION]]
    for place, (name, _, _) in enumerate(kinds[1:], start=1):
        volume = float(crossing[place - 1])
        cheaper = made[place] < made[0]
        verdict, there = "cheaper at every volume" if cheaper else "more expensive at every volume", None
        if volume == volume:
            verdict = f"cheaper {'from' if cheaper else 'up to'} {number_words(volume)} units"
            there = float(made[0] + one_time[0] / volume)
        lines.append([f"{name}: {verdict}", volume if volume == volume else None, there, float(made[place]),
                      float(one_time[place]) / MILLION])  # fmt: skip
    words, below = "Crossover with one die", header + len(rows) + 3
    crossed = drawn_table(sheet, report_columns("crossover"), lines, below, "crossover", words)
    points = [
        curve(table.head(column.name), table.cells("volume"), table.cells(column.name), colour)
        for column, colour in zip(columns, _COLOURS, strict=False)
    ]
    for place, line in enumerate(lines):
        if line[1] and VOLUMES[0] <= line[1] <= VOLUMES[-1]:
            row = place, place + 1
            named, at, cost = (crossed.cells(name, row) for name in crossed.names[:3])
            points.append(spots(named, at, cost, _COLOURS[place], "diamond"))
    words = f"{SPLIT_AREA:,.0f} mm2 as one die or as chiplets: unit cost over volume, {basis.node}"
    chart = curve_chart(
        words, points, "units", "unit cost (USD)", _SIZE, x_number="#,##0", y_number="#,##0", log="xy",
        x_range=(VOLUMES[0], VOLUMES[-1]),
    )  # fmt: skip
    sheet.add_chart(chart, f"A{top}")
