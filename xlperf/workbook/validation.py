"""``validation.xlsx``: published measurements as they are printed, kernel measurements, and tolerances.

Columns keep the names of the published tables. The rows are CSV files under ``workbooks/rows/validation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openpyxl.comments import Comment
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.base.resources import workbook as shipped
from xlperf.catalog.cells import ErrorValue, Unsaved, is_blank
from xlperf.catalog.read import missing_sheet
from xlperf.catalog.table import column_letters
from xlperf.catalog.xlsx import Workbook as Reader
from xlperf.workbook.rows import Cells, read_cells, rows_folder

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet


HEADER_ROW = 4


@dataclass(frozen=True)
class Part:
    """A sheet of the workbook: its name, its native table, the column that every such sheet has, and words."""

    sheet: str
    table: str
    key: str
    title: str
    words: str


PARTS = (
    Part("training", "published_training", "row_id", "Published training runs",
        "Measured time, rate, utilisation or memory of training runs, as printed. Blank: not stated."),
    Part("inference", "published_inference", "row_id", "Published inference runs",
        "Measured latency, time to the first token, time per output token or rate, as printed. Blank: not stated."),
    Part("power", "published_power", "row_id", "Measured power and energy",
         "Watts of an accelerator and joules of a token, as printed. "
         "fitted: constants of power were fitted on the row."),
    Part("kernels", "kernels", "row_id", "Kernel measurements",
        "Times of single products, attention kernels and collectives: what the calibration of kernels is fitted on."),
    Part("tolerances", "tolerances", "statistic", "Tolerances",
        "Bounds of the error of a group of rows; xlperf validate fails where one is missed."),
)  # fmt: skip
_TOLERANCES: tuple[tuple[str, str], ...] = (
    ("group", "Group of published rows, as in the sheets training and inference"),
    ("metric", "Published column that is predicted; blank: any"),
    ("statistic", "What of the absolute errors is bounded: mean, median, p90 or max"),
    ("bound", "Largest value allowed, as a share: 0.06 is 6 %"),
    ("source", "Where the bound comes from"),
    ("notes", "What a reader should know"),
)
_KERNELS: Mapping[str, str] = {
    "row_id": "Name of the row",
    "kind": "gemm, gemm_max, attention, attention_decode, collective, moe_a2a, layer_op or vector_op",
    "gpu": "Accelerator",
    "n_gpus": "Accelerators that take part",
    "nodes": "Servers that take part",
    "dtype": "Precision of the inputs",
    "m": "Rows of the product",
    "n": "Columns of the product",
    "k": "Depth of the product",
    "batch": "Independent products or sequences",
    "direction": "Forward, backward, prefill or decode",
    "causal": "Whether a token sees only those before it; such attention counts half its FLOP",
    "bytes": "Message size of a collective, or bytes of the key-value cache",
    "op": "Collective operation or name of the kernel",
    "latency_us": "Time of one call; us",
    "tflops": "TFLOP/s: 2 m n k over the time",
    "gbps_busbw": "Bus bandwidth as nccl-tests defines it; GB/s",
    "gbps_algbw": "Bytes over time; GB/s",
    "eff_pct": "Share of the peak; percent",
}
PREDICTED = Part(
    "predictions", "predictions", "row_id", "What xlperf predicts",
    "A line per published row and metric, made with the workbook. Low and high: 80 % band. Refused rows say why.",
)  # fmt: skip
_PREDICTIONS = {
    "row_id": "Name of the published row",
    "kind": "training or inference",
    "group": "Group that accuracy is quoted by",
    "source_id": "Source of the row",
    "accelerator": "Accelerator",
    "metric": "Published column that is predicted",
    "measured": "Value as published",
    "predicted": "Value that xlperf gives",
    "relative_error": "Error of the time: predicted over measured less 1, without sign",
    "low": "Lower end of the 80 % band",
    "high": "Upper end of the 80 % band",
    "reason": "Why the row is refused, and what was assumed",
}

_FRONT = (
    "Measurements that others published, each with its source. xlperf validate predicts the rows of the sheets "
    "training and inference and compares; xlperf calibrate fits kernel constants on the sheet kernels.",
    "Rows of the group papers are those that the two papers behind xlperf quote: no constant is ever fitted on them.",
    "Rows of unseen groups were read after the model was made: predicted once before a change, and in no fit.",
    "confidence says whether a number was read in its source (found), quoted from memory (remembered) or computed from "
    "numbers that were read (derived); quality and notes say what was inferred.",
    "Rates are turned into times before they are compared: error = |predicted time / measured time - 1|.",
)


def read_parts(path: str | Path) -> dict[str, Cells]:
    """Header and rows of each sheet of the workbook; columns of published rows that it does not have yet are blank.

    Raises InputError with every fault: missing sheet or table, errors or unsaved formulas in cells.
    """
    from xlperf.measurements.published import published_columns

    by_name: dict[str, Cells] = {}
    faults: list[Fault] = []
    with Reader(path) as book:
        for part in PARTS:
            sheet = book.sheet(part.sheet)
            if sheet is None:
                faults.append(Fault(book.name, missing_sheet(book, part.sheet)))
                continue
            cells = book.cells(sheet)
            top = next((row for row in sorted(cells) if part.key in cells[row].values()), None)
            if top is None:
                faults.append(Fault(f"{book.name} [{sheet}]", f'the sheet has no header "{part.key}"'))
                continue
            columns = sorted(column for column, value in cells[top].items() if not is_blank(value))
            rows = [[cells[row].get(column) for column in columns] for row in sorted(cells) if row > top]
            for number, row in zip((row for row in sorted(cells) if row > top), rows, strict=True):
                for column, value in zip(columns, row, strict=True):
                    if isinstance(value, (ErrorValue, Unsaved)):
                        place = f"{book.name} [{sheet}!{column_letters(column)}{number}]"
                        faults.append(Fault(place, "holds an error or a formula without a value; enter a value"))
            header = [cells[top][column] for column in columns]
            missing = [name for name in published_columns().get(part.sheet, ()) if name not in header]
            blank = [None] * len(missing)
            kept = [[*row, *blank] for row in rows if not all(map(is_blank, row))]
            by_name[part.sheet] = [[*header, *missing], *kept]
    if faults:
        raise InputError(faults)
    return by_name


def is_validation(path: str | Path) -> bool:
    """Whether a workbook has the sheet of kernel measurements, as validation.xlsx does."""
    with Reader(path) as book:
        return book.sheet("kernels") is not None


def rows_in_text() -> dict[str, Cells]:
    """Header and rows of each sheet from the CSV files of ``workbooks/rows/validation``."""
    from xlperf.measurements.published import published_columns

    parts: dict[str, Cells] = {}
    for part in PARTS:
        are_text = {name: kind == "text" for name, kind in published_columns().get(part.sheet, {}).items()}
        parts[part.sheet] = read_cells(rows_folder("validation.xlsx") / f"{part.sheet}.csv", are_text)
    return parts


def predictions_of(path: str | Path) -> Cells:
    """Predictions of xlperf beside the measurements of a validation workbook, as cells of the sheet ``predictions``."""
    from xlperf.calibrate.validate import validate
    from xlperf.catalog.catalog import load_catalog

    rows: Cells = [list(_PREDICTIONS)]
    for record in validate([path], load_catalog()).records:
        values = [getattr(record, name) for name in _PREDICTIONS]
        rows.append([None if isinstance(value, float) and value != value else value for value in values])
    return rows


def validation_package(parts: Mapping[str, Cells], predictions: Cells | None = None) -> bytes:
    """The validation workbook of some rows.

    ``parts``: by sheet: the header row, then the rows. ``predictions``: cells of the sheet ``predictions``; without
    them the workbook has no such sheet. Returns an .xlsx file; equal rows give equal bytes.
    """
    from openpyxl import Workbook

    from xlperf.workbook.package import workbook_bytes
    from xlperf.workbook.style import add_styles

    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    _front(book, parts)
    for part in PARTS:
        _sheet(book, part, parts[part.sheet])
    if predictions is not None:
        _sheet(book, PREDICTED, predictions)
    book.properties.creator = "xlperf"
    book.properties.title = "xlperf validation"
    return workbook_bytes(book)


def build_validation(path: str | Path | None = None) -> Path:
    """Build the validation workbook from its rows, with the predictions of today beside them."""
    from xlperf.workbook.package import replace_file

    target = Path(path) if path is not None else shipped("validation.xlsx")
    in_text = path is None and rows_folder("validation.xlsx").is_dir()
    parts = rows_in_text() if in_text else read_parts(target)
    replace_file(target, validation_package(parts))  # the rows that are predicted
    replace_file(target, validation_package(parts, predictions_of(target)))
    return target


def _front(book: Workbook, parts: Mapping[str, Cells]) -> None:
    from xlperf.workbook.style import column_widths, link, page_setup, put, title

    sheet = book.create_sheet("start")
    beside = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=True)
    title(sheet, "xlperf validation", "Published measurements, kernel measurements and tolerances", "B1")
    column_widths(sheet, 2, 26, 12, 70, 2)
    for row, words in enumerate(_FRONT, start=4):
        put(sheet[f"B{row}"], words)
        sheet.merge_cells(f"B{row}:D{row}")
        sheet.row_dimensions[row].height = 30
    top = 5 + len(_FRONT)
    for column, words in zip("BCD", ("sheet", "rows", "what it holds"), strict=True):
        put(sheet[f"{column}{top}"], words, "xlperf header")
    for row, part in enumerate(PARTS, start=top + 1):
        link(sheet[f"B{row}"], part.sheet, part.title)
        put(sheet[f"C{row}"], len(parts[part.sheet]) - 1, "xlperf computed", "#,##0")
        put(sheet[f"D{row}"], part.words).alignment = beside
        sheet.row_dimensions[row].height = 28
    row = top + 2 + len(PARTS)
    put(sheet[f"B{row}"], "Rows by group", "xlperf heading")
    for column, words in zip("BCD", ("group", "rows", "sources"), strict=True):
        put(sheet[f"{column}{row + 1}"], words, "xlperf header")
    row += 2
    for kind in ("training", "inference"):
        for group, count, sources in _groups(parts[kind]):
            put(sheet[f"B{row}"], f"{kind}: {group}", "xlperf key")
            put(sheet[f"C{row}"], count, "xlperf computed", "#,##0")
            put(sheet[f"D{row}"], ", ".join(sources), "xlperf reason").alignment = beside
            sheet.row_dimensions[row].height = 14 * max(1, -(-len(", ".join(sources)) // 80))
            row += 1
    page_setup(sheet, landscape=False)


def _groups(cells: Cells) -> list[tuple[str, int, list[str]]]:
    header = cells[0]
    group, source = header.index("group"), header.index("source_id")
    names: dict[str, tuple[int, set[str]]] = {}
    for row in cells[1:]:
        count, sources = names.get(str(row[group]), (0, set()))
        names[str(row[group])] = count + 1, sources | {str(row[source])}
    return [(name, count, sorted(sources)) for name, (count, sources) in sorted(names.items())]


def _meanings(part: Part) -> Mapping[str, str]:
    from xlperf.measurements.published import published_columns

    if part.sheet in published_columns():
        rows = resources.rows("measurements/published_columns.csv")
        return {row["column"]: row["meaning"] for row in rows if row["table"] == part.sheet}
    if part.sheet == PREDICTED.sheet:
        return _PREDICTIONS
    return dict(_TOLERANCES) if part.sheet == "tolerances" else _KERNELS


def _sheet(book: Workbook, part: Part, cells: Cells) -> Worksheet:
    from openpyxl.worksheet.table import Table as ListObject
    from openpyxl.worksheet.table import TableStyleInfo

    from xlperf.workbook.style import page_setup, put, title

    sheet: Worksheet = book.create_sheet(part.sheet)
    title(sheet, part.title, part.words)
    meanings = _meanings(part)
    header, rows = cells[0], cells[1:]
    for offset, name in enumerate(header, start=1):
        cell = put(sheet.cell(HEADER_ROW, offset), str(name), "xlperf header")
        if str(name) in meanings:
            cell.comment = Comment(f"{meanings[str(name)]}.", "xlperf", width=250, height=60)
        longest = max((len(str(_stored(row[offset - 1]))) for row in rows if row[offset - 1] is not None), default=0)
        width = min(max(longest, len(str(name)) + 3) * 1.05 + 1.5, 40.0)
        sheet.column_dimensions[get_column_letter(offset)].width = width
    for number, row in enumerate(rows or [[None] * len(header)], start=HEADER_ROW + 1):
        for offset, value in enumerate(row, start=1):
            if value is not None:
                inside: Any = sheet.cell(number, offset)
                inside.value = _stored(value)
                if isinstance(value, str):
                    inside.data_type = "s"
    last = f"{get_column_letter(len(header))}{HEADER_ROW + max(len(rows), 1)}"
    native = ListObject(displayName=part.table, ref=f"A{HEADER_ROW}:{last}")
    native.tableStyleInfo = TableStyleInfo(name="TableStyleLight1", showRowStripes=True)
    sheet.add_table(native)
    sheet.freeze_panes = f"B{HEADER_ROW + 1}"
    sheet.row_dimensions[HEADER_ROW].height = 22
    page_setup(sheet, HEADER_ROW, pages_wide=3 if len(header) > 20 else 1, key_columns="A:A")
    sheet.page_setup.paperSize = 8
    return sheet


def _stored(value: Any) -> Any:
    """A value as the file holds it: 15 digits, as Excel has them; whole numbers without a point."""
    if not isinstance(value, float):
        return value
    rounded = float(f"{value:.15g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
