"""What a report rests on: the catalog rows used, where they come from, and why plans were refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter

from xlperf.catalog.schema import CATALOG_TABLES
from xlperf.catalog.table import Table
from xlperf.engine.devices import accelerators_of
from xlperf.workbook.report_data import (
    GOOD,
    REFUSED,
    TOO_LARGE,
    Plans,
    Report,
    extra_column,
    is_filled,
    listed,
    percent_words,
    plural,
)
from xlperf.workbook.style import column_widths, page_setup, put
from xlperf.workbook.tables import data_rows, write_table

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

_TOP = 4
_WORDS = {GOOD: "fits, with a remark", TOO_LARGE: "does not fit", REFUSED: "refused"}
_MEANINGS = (
    (
        "tokens per second",
        "Training: global batch x sequence length / step time. Inference: output, steady state.",
    ),
    ("MFU", "6 x active matmul parameters (logits included) and full attention, over the dense peak of the precision."),
    ("HFU", "As MFU, with recomputation counted."),
    (
        "memory",
        "Peak allocated on the accelerator that needs most; memory reserved adds allocator and runtime. GiB = 2^30 B.",
    ),
    ("TPOT", "(latency - TTFT) / (output tokens - 1)."),
    (
        "cost",
        "Sheet prices: the rental price where the row has one, else capex over life, opex and energy; cost basis.",
    ),
    ("all-in cost", "All accelerators over the output tokens: output cost + input cost x prompt / output length."),
    (
        "owned cost",
        "Sheet servers: an owner's cost. The sheet cost bridge gives the difference to the cost, line by line.",
    ),
    ("energy", "From the grid x PUE: accelerators by their work, rest of the server at full (owned: mean) load."),
)


def calibration_rows(report: Report) -> np.ndarray:
    """Rows of the calibration sheet that the plans can draw on: their generations, precisions and software."""
    table = report.catalog.tables["calibration"]
    generation = report.catalog.tables["accelerators"].text("generation")
    keys: dict[str, set[str]] = {"generation": set(), "precision": set(), "software": set()}
    keys["generation"].update(map(str, generation[report.used("accelerators")]))
    for group in report.groups:
        for name in ("precision", "software"):
            default = group.plans.schema.by_name[name].default
            keys[name].update(map(str, group.plans.text(name, default)))
    if {"fp16", "int4"} & {value.lower() for value in keys["precision"]}:
        keys["precision"].add("bf16")
    keep = np.ones(len(table), dtype=bool)
    for name, values in keys.items():
        known = {value.casefold() for value in values} | {"any", ""}
        keep &= np.array([str(value).casefold() in known for value in table.text(name)], dtype=bool)
    return np.flatnonzero(keep)


def used_rows(report: Report, kind: str) -> Table:
    """The rows of a catalog table that the plans of a report use."""
    rows = calibration_rows(report) if kind == "calibration" else report.used(kind)
    if kind == "accelerators":
        return accelerators_of(report.catalog).table.take(rows)
    return report.catalog.tables[kind].take(rows)


def not_calibrated(report: Report) -> list[str]:
    """Generations of the accelerators used that no calibration row names: their constants are extrapolated."""
    own = {str(name).casefold() for name in report.catalog.tables["calibration"].text("generation")}
    used = used_rows(report, "accelerators").text("generation")
    return sorted({str(name) for name in used if str(name).casefold() not in own})


def catalog_sheet(sheet: Worksheet, report: Report, kind: str) -> None:
    """Fill the sheet that shows the rows of one catalog table that the plans use."""
    table = used_rows(report, kind)
    columns = [column for column in table.schema.columns if is_filled(table, column)] or [table.schema.key]
    area = write_table(sheet, columns, data_rows(table, columns), f"A{_TOP}", kind)
    wide = sum(sheet.column_dimensions[get_column_letter(i)].width for i in range(1, len(columns) + 1))
    pages = max(1, round(wide / 190))
    words = f"{kind.capitalize()} used"
    page_setup(sheet, _TOP, area=area, pages_wide=pages, key_columns="A:A", heading=words)


def assumptions_sheet(sheet: Worksheet, report: Report) -> None:
    """Fill the sheet that says what the numbers rest on."""
    row = _TOP
    for name, value in _facts(report):
        put(sheet.cell(row, 1), name, "xlperf key")
        cell = put(sheet.cell(row, 2), value, "xlperf text")
        cell.alignment = Alignment(vertical="center", wrap_text=True, indent=1)
        sheet.merge_cells(start_row=row, start_column=2, end_row=row, end_column=7)
        sheet.row_dimensions[row].height = 14.0 * max(1, -(-len(value) // 125)) + 2
        row += 1
    row += 1
    put(sheet.cell(row, 1), "Catalog rows used", "xlperf heading")
    sheet.row_dimensions[row].height = 22
    key = extra_column("name", "", "Name of the row in its sheet", "name")
    columns = [
        key,
        extra_column("sheet", "", "Sheet of the catalog, and of this report", "text"),
        extra_column("kind", "", "What sort of number these are", "text"),
        extra_column("year", "", "Year of the source", "number"),
        extra_column("source", "", "Where the numbers were read", "text"),
        extra_column("notes", "", "What a reader should know", "text"),
    ]
    rows = [row for kind in CATALOG_TABLES if kind != "calibration" for row in _register(report, kind)]
    rows += _register_calibration(used_rows(report, "calibration"))
    column_widths(sheet, 44, 14, 12, 9, 60, 60, 2)
    write_table(sheet, columns, rows, f"A{row + 1}", "rows_used", freeze=None, widths=False)
    sheet.freeze_panes = f"A{_TOP}"
    page_setup(sheet, row + 1)


def _register(report: Report, kind: str) -> list[list[Any]]:
    """A line for each row of a catalog table that is used."""
    table = used_rows(report, kind)
    tiers, years = table.number("tier"), table.number("year")
    rows: list[list[Any]] = []
    for i, name in enumerate(table.text(table.schema.key.name)):
        shown = f"{name}, tier {tiers[i]:g}" if kind == "networks" else str(name)
        texts = [str(table.text(text)[i]) for text in ("kind", "source", "notes")]
        rows.append([shown, kind, texts[0], int(years[i]) if years[i] == years[i] else None, texts[1], texts[2]])
    return rows


def _register_calibration(table: Table) -> list[list[Any]]:
    """A line for each family, generation, precision and software: its constants were fitted together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in range(len(table)):
        key = tuple(str(table.text(name)[i]) for name in ("family", "generation", "precision", "software"))
        groups.setdefault(key, []).append(i)
    rows: list[list[Any]] = []
    for key, members in groups.items():
        first = members[0]
        year, error = table.number("year")[first], table.number("error")[first]
        said = [plural(len(members), "constant"), str(table.text("fit_set")[first])]
        if error == error:
            said.append(f"error {percent_words(float(error))}")
        if table.text("date")[first]:
            said.append(f"fitted {table.text('date')[first]}")
        texts = [str(table.text(text)[first]) for text in ("kind", "source")]
        notes = "; ".join(text for text in said if text)
        name = ", ".join(word for word in key if word not in ("", "any"))
        rows.append([name, "calibration", texts[0], int(year) if year == year else None, texts[1], notes])
    return rows


def _facts(report: Report) -> list[tuple[str, str]]:
    calibration = report.catalog.tables["calibration"].take(calibration_rows(report))
    fitted = [str(date) for date in calibration.text("date") if date]
    missing = not_calibrated(report)
    extrapolated = sum(
        sum("extrapolated" in str(reason) for reason in group.results.text("reason")) for group in report.groups
    )
    words = "Every generation has calibration rows of its own."
    if not len(calibration):
        words = "The calibration sheet holds no row for these plans: defaults stand in for all of its constants."
    elif missing:
        words = f"No calibration row names {listed(missing, 8)}: constants of other generations stand in."
    if extrapolated:
        words += f" {plural(extrapolated, 'plan')} extrapolate; their reasons say so."
    facts = [
        ("xlperf", f"version {report.version}"),
        ("catalog", f"{report.catalog.origin}, fingerprint {report.catalog.fingerprint}"),
        ("date", report.date.isoformat()),
        ("calibration", f"{plural(len(calibration), 'row')}{f', last fit {max(fitted)}' if fitted else ''}. {words}"),
    ]
    return facts + [(name, meaning) for name, meaning in _MEANINGS]


def reasons_sheet(sheet: Worksheet, groups: Sequence[Plans]) -> None:
    """Fill the sheet that lists every plan with a reason: refused ones first, then those too large, then remarks."""
    columns = [
        extra_column("plan", "", "Name of the plan", "name"),
        extra_column("sheet", "", "Sheet of the plan", "text"),
        extra_column("row", "", "Row of the plan in that sheet, the first is 1", "number"),
        extra_column("model", "", "Model of the plan", "text"),
        extra_column("accelerator", "", "Accelerator of the plan", "text"),
        extra_column("state", "", "What became of the plan", "result-text"),
        extra_column("reason", "", "Why a plan is refused or does not fit; and what was assumed", "result-text"),
    ]
    order = [REFUSED, TOO_LARGE, GOOD]
    rows: list[tuple[int, list[Any]]] = []
    for group in groups:
        reasons = group.results.text("reason")
        for i, state in enumerate(group.states):
            if reasons[i] or state != GOOD:
                machine = (group.models[i], group.accelerators[i])
                cells = [group.names[i], group.kind, i + 1, *machine, _WORDS[state], reasons[i]]
                rows.append((order.index(state), cells))
    rows.sort(key=lambda row: row[0])
    column_widths(sheet, 46, 12, 8, 22, 20, 19, 90)
    write_table(sheet, columns, [cells for _, cells in rows], f"A{_TOP}", "reasons", widths=False)
    if not rows:
        put(sheet.cell(_TOP + 1, 1), "No plan has a reason: all are legal and fit.", "xlperf text")
    page_setup(sheet, _TOP)
