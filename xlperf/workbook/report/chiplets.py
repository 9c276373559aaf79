"""One die or several: cost over silicon area and number of chiplets, and over volume with the crossover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.formatting.rule import ColorScaleRule
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.pagebreak import Break

from xlperf.base.units import MILLION
from xlperf.catalog.table import Table
from xlperf.equations.cost.designs import crossover_volume
from xlperf.workbook.charts import SERIES, Cells, curve, curve_chart, spots
from xlperf.workbook.package import write_table
from xlperf.workbook.report.data import Report, extra_column, number_words
from xlperf.workbook.style import FONT, INK, chart_rows, even_rows, page_setup, put

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

    from xlperf.catalog.catalog import Catalog

AREAS = (100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 1000.0, 1200.0, 1400.0, 1600.0, 2000.0, 2400.0)
COUNTS = (1, 2, 3, 4, 6, 8)
VOLUMES = tuple(million * MILLION for million in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0))
SPLIT_AREA = 800.0
LINK_SHARE = 0.10
MAP_VOLUME = MILLION
_TOP = 4
_SIZE = (30.0, 10.5)
_COLOURS = ("000000", *SERIES)


@dataclass(frozen=True)
class Basis:
    """Node and packages that one die and several dies are compared on."""

    node: str
    single: str
    several: str


def basis_of(report: Report, designs: np.ndarray) -> Basis | None:
    """Node of the first design that is shown, and the first packages for one die and for several; None without."""
    from xlperf.engine.devices import designs_with_devices

    catalog = report.catalog
    packages = catalog.tables["packages"]
    if not len(designs) or not len(packages):
        return None
    structures = packages.text("structure").tolist()
    names = packages.text("package").tolist()
    first = {kind: name for name, kind in zip(reversed(names), reversed(structures), strict=True)}
    if "soc" not in first or "organic" not in first:
        return None
    node = str(designs_with_devices(catalog.tables["chiplets"], catalog).text("node")[designs[0]])
    return Basis(node, str(first["soc"]), str(first["organic"]))


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
    put(sheet.cell(header - 1, 1), f"Unit cost at {MAP_VOLUME:,.0f} units, chiplets alike", "xlperf heading")
    key = extra_column("silicon_area", "mm2", "Area of all dies together, without links", "number")
    columns = [
        extra_column("one_die" if count == 1 else f"{count}_chiplets", "USD", f"Unit cost with {count} equal dies")
        for count in COUNTS
    ]
    rows = [[area, *(None if np.isnan(v) else float(v) for v in line)] for area, line in zip(AREAS, unit, strict=True)]
    head = [key, *columns]
    area = write_table(sheet, head, rows, f"A{header}", "chiplet_map", freeze=None, widths=False, fitted=True)
    for column in range(2, len(COUNTS) + 2):
        sheet.column_dimensions[get_column_letter(column)].width = 15
    make: Any = ColorScaleRule
    scale = make(
        start_type="min", start_color="FF9BD3C5", mid_type="percentile", mid_value=50, mid_color="FFFFF7E0",
        end_type="max", end_color="FFE7A6A0",
    )  # fmt: skip
    sheet.conditional_formatting.add(area.replace(f"A{header}", f"B{header + 1}"), scale)
    for down, line in enumerate(unit, start=header + 1):
        if np.isfinite(line).any():
            cell: Any = sheet.cell(down, 2 + int(np.nanargmin(line)))
            cell.font = Font(name=FONT, size=10, bold=True, color=INK)
    last = header + len(rows)
    words = "Bold: the cheapest number of dies. Blank: a die is beyond the reticle."
    put(sheet.cell(last + 1, 1), words, "xlperf note")
    x = Cells(sheet, 1, header + 1, last)
    points = []
    for place in range(len(COUNTS)):
        given = np.flatnonzero(np.isfinite(unit[:, place]))
        first, end = header + 1 + int(given[0]), header + 1 + int(given[-1])
        points.append(
            curve(
                Cells(sheet, 2 + place, header, header),
                Cells(sheet, x.column, first, end),
                Cells(sheet, 2 + place, first, end),
                _COLOURS[place],
            )
        )
    chart = curve_chart(
        f"Unit cost over silicon area and number of dies, {basis.node}",
        points,
        x_title="area of all dies (mm2)",
        y_title="unit cost (USD)",
        x_number="#,##0",
        y_number="#,##0",
        x_range=(0.0, max(AREAS)),
        size=_SIZE,
    )
    sheet.add_chart(chart, f"A{top}")
    return last + 1


def _volumes(sheet: Worksheet, catalog: Catalog, basis: Basis, top: int, block: int) -> None:
    kinds = (("one die", 1, 1), ("2 different chiplets", 2, 2), ("4 different chiplets", 4, 4), ("4 alike", 4, 1))
    made, one_time = _costs(
        catalog, basis, SPLIT_AREA, np.array([k[1] for k in kinds]), np.array([k[2] for k in kinds])
    )  # fmt: skip
    volumes = np.array(VOLUMES)
    unit = made[None, :] + one_time[None, :] / volumes[:, None]
    header = top + block + 1
    even_rows(sheet, top, header - 1)
    put(sheet.cell(header - 1, 1), f"Unit cost of {SPLIT_AREA:,.0f} mm2 over volume", "xlperf heading")
    key = extra_column("volume", "", "Units that carry the one-time costs", "number")
    columns = [extra_column(name.replace(" ", "_"), "USD", f"Unit cost of {name}") for name, _, _ in kinds]
    rows = [[float(v), *map(float, line)] for v, line in zip(volumes, unit, strict=True)]
    write_table(sheet, [key, *columns], rows, f"A{header}", "cost_over_volume", freeze=None, widths=False, fitted=True)
    crossing_top = header + len(rows) + 3
    crossing = crossover_volume(made[0], one_time[0], made[1:], one_time[1:])
    put(sheet.cell(crossing_top - 1, 1), "Crossover with one die", "xlperf heading")
    crossed = [
        extra_column("crossover", "", "Design that is set against one die", "name"),
        extra_column("crossover_volume", "", "Units from which it is cheaper, or up to which it is; blank: one of them "
                     "is cheaper at every volume"),
        extra_column("unit_cost_there", "USD", "Unit cost of both at that volume"),
        extra_column("made_for", "USD", "Cost of making one, without one-time costs"),
        extra_column("one_time_cost", "MUSD", "Design and masks"),
    ]  # fmt: skip
    lines: list[list[Any]] = [["one die", None, None, float(made[0]), float(one_time[0]) / MILLION]]
    for place, (name, _, _) in enumerate(kinds[1:], start=1):
        volume = float(crossing[place - 1])
        cheaper = made[place] < made[0]
        if volume == volume:
            verdict = f"cheaper {'from' if cheaper else 'up to'} {number_words(volume)} units"
        else:
            verdict = "cheaper at every volume" if cheaper else "more expensive at every volume"
        there = float(made[0] + one_time[0] / volume) if volume == volume else None
        lines.append([f"{name}: {verdict}", volume if volume == volume else None, there, float(made[place]),
                      float(one_time[place]) / MILLION])  # fmt: skip
    write_table(sheet, crossed, lines, f"A{crossing_top}", "crossover", freeze=None, widths=False, fitted=True)
    last = header + len(rows)
    x = Cells(sheet, 1, header + 1, last)
    points = []
    for place in range(len(kinds)):
        name_cell, values = Cells(sheet, 2 + place, header, header), Cells(sheet, 2 + place, header + 1, last)
        points.append(curve(name_cell, x, values, _COLOURS[place]))
    seen = [place for place, line in enumerate(lines) if line[1] and VOLUMES[0] <= line[1] <= VOLUMES[-1]]
    for place in seen:
        row = crossing_top + 1 + place
        words_cell, at, cost = (Cells(sheet, column, row, row) for column in (1, 2, 3))
        points.append(spots(words_cell, at, cost, _COLOURS[place], "diamond"))
    chart = curve_chart(
        f"{SPLIT_AREA:,.0f} mm2 as one die or as chiplets: unit cost over volume, {basis.node}",
        points,
        x_title="units",
        y_title="unit cost (USD)",
        x_number="#,##0",
        y_number="#,##0",
        x_log=True,
        y_log=True,
        x_range=(VOLUMES[0], VOLUMES[-1]),
        size=_SIZE,
    )
    sheet.add_chart(chart, f"A{top}")
