"""``python -m xlperf.workbook.build``: the shipped workbooks, built from their rows.

The rows are the source of truth: CSV files under ``workbooks/rows`` in a checkout, else the sheets of the workbook.
The build makes everything else (styles, formulas, drop-downs, comments, checks, values beside the formulas) from the
schema: the same rows give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openpyxl.comments import Comment
from openpyxl.styles import Alignment
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.table import Table as ListObject
from openpyxl.worksheet.table import TableStyleInfo

from xlperf.addin.cells import block_of, read_block, solved
from xlperf.addin.handles import content_of, handle_of
from xlperf.addin.worker import Engine
from xlperf.base import resources
from xlperf.base.errors import Fault, InputError, raise_faults
from xlperf.catalog import schema
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import ErrorValue, Unsaved, is_blank
from xlperf.catalog.read import missing_sheet, read_catalog_tables, read_plan_tables
from xlperf.catalog.table import Table, column_letters
from xlperf.catalog.xlsx import Workbook as Reader
from xlperf.workbook import package
from xlperf.workbook.data_sheets import ASKED, LIVE_RESULTS, PLANNED, Rows, columns_of, data_sheet, table_of
from xlperf.workbook.front import start
from xlperf.workbook.front.plan_card import NUMBERS, plan_cards
from xlperf.workbook.front.question import functions_sheet
from xlperf.workbook.plain_formulas import checks_sheet, cost_charts, tco_sheet
from xlperf.workbook.report.studies import build_studies
from xlperf.workbook.style import column_widths, link, new_book, page_setup, put, texts, title

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet.worksheet import Worksheet


KINDS = (*schema.PLAN_TABLES, *schema.CATALOG_TABLES)
ORIGIN = "xlperf.xlsx"


def read_tables(path: str | Path) -> dict[str, Table]:
    """Data sheets of a workbook by kind."""
    catalog, faults = read_catalog_tables(path, required=True)
    plans, more = read_plan_tables(path)
    if faults or more:
        raise InputError([*faults, *more])
    return {table.kind: table for table in (*catalog, *plans)}


def workbook_package(tables: Mapping[str, Table | Rows], values: bool = True, examples: bool = True) -> bytes:
    """The workbook of some tables.

    ``tables``: by kind, a Table or rows (:func:`table_of`); a kind that is not given gets an empty sheet, one of the
    tables of cost and technology none. ``values``: whether to evaluate the plans and to put the values beside the
    formulas. ``examples``: whether the cards of the front sheet are filled in. Returns an .xlsx file; equal tables give
    equal bytes.
    """
    full: dict[str, Table] = {}
    for kind in (*KINDS, *schema.OPTIONAL_TABLES):
        given = tables.get(kind, ())
        table = given if isinstance(given, Table) else table_of(kind, given)
        if kind in (*KINDS, *schema.OWN_TABLES) or len(table):
            full[kind] = table
    results = live_results(full) if values else {}
    formulas = package.Formulas()
    live = start.live_cells(full, _catalog(full) if values else None, formulas, results)
    book = new_book("xlperf")
    start.front_sheet(book, full, catalog_handle(full), live, examples)
    for kind in full:
        data_sheet(book, full[kind], results.get(kind, {}), formulas, full)
    tco_sheet(book, full, live)
    checks_sheet(book, full, results, live)
    functions_sheet(book)
    if all(len(full.get(kind, ())) for kind in ("models", "accelerators", *schema.TECHNOLOGY_TABLES)):
        start.question_sheets(book, full, live)
    plan_cards(book, book.create_sheet(NUMBERS), live)
    start.numbers_look(book[NUMBERS])
    cost_charts(book, live)
    start.arrange(book, full, live)
    return package.packed(book, formulas)


def live_results(tables: Mapping[str, Table]) -> dict[str, dict[str, list[Any]]]:
    """Cells of the live results of plans, designs and servers, by kind and name.

    A cell for each row: a number in the schema's unit, text, flag or CellError.
    """
    catalog = _catalog(tables)
    by_name = {}
    for kind, names in LIVE_RESULTS.items():
        if kind in tables and len(tables[kind]):
            columns = schema.table_schema(kind).columns
            block: list[list[Any]] = [[column.header for column in columns], *package.data_rows(tables[kind], columns)]
            answer = solved(read_block(block, None, kind), lambda rows, names: Engine().evaluate(rows, catalog, names))
            by_name[kind] = {name: answer.words() if name == "reason" else answer.column(name) for name in names}
    if "servers" in by_name:
        numbers = [tables["servers"].number(name).tolist() for name in ASKED]
        for row, given in enumerate(zip(*numbers, strict=True)):
            if all(value != value for value in given):
                for name in (own for own in LIVE_RESULTS["servers"] if own.endswith(PLANNED)):
                    by_name["servers"][name][row] = ""
    return by_name


def catalog_handle(tables: Mapping[str, Table]) -> str:
    """Text of the catalog cell for these tables."""
    blocks = []
    for kind in start.catalog_kinds(tables):
        columns = [column for column in columns_of(tables[kind]) if not column.is_result]
        blocks.append(block_of([[column.header for column in columns], *package.data_rows(tables[kind], columns)]))
    return handle_of(content_of(blocks))


def _catalog(tables: Mapping[str, Table]) -> Catalog:
    return Catalog.from_tables([tables[kind] for kind in start.catalog_kinds(tables)], ORIGIN)


def write_workbook(path: str | Path, tables: Mapping[str, Table | Rows], values: bool = True) -> None:
    """Write :func:`workbook_package` of some tables to a file, which is replaced whole."""
    package.replace_file(path, workbook_package(tables, values))


def new_workbook(path: str | Path, content: str = "all") -> None:
    """Write a workbook for a user to start from.

    ``content``: ``all``: the shipped workbook; ``examples``: one plan of each kind and the rows that it refers to
    (``templates/study.xlsx``); ``empty``: no rows but the calibration.
    """
    if content == "empty":
        calibration = read_tables(resources.workbook())["calibration"]
        package.replace_file(path, workbook_package({"calibration": calibration}, values=False, examples=False))
        return
    source = resources.template("study.xlsx") if content == "examples" else resources.workbook()
    package.replace_file(path, source.read_bytes())


def build_examples() -> Path:
    """Write ``templates/study.xlsx``: one plan of each kind of the shipped workbook and the rows that it refers to."""
    target = resources.template("study.xlsx")
    write_workbook(target, start.example_tables(read_tables(resources.workbook())))
    return target


def build(path: str | Path | None = None) -> Path:
    """Build a workbook from its rows: the shipped one by default."""
    target = Path(path) if path is not None else resources.workbook()
    folder = package.rows_folder(target.name)
    in_text = target.resolve() == resources.workbook().resolve() and folder.is_dir()
    write_workbook(target, package.read_rows(folder) if in_text else read_tables(target))
    return target


def write_rows(path: str | Path | None = None) -> list[Path]:
    """Take the edits of a workbook back into the CSV files of ``workbooks/rows``."""
    sources = [Path(path)] if path is not None else [resources.workbook(), resources.workbook("validation.xlsx")]
    paths: list[Path] = []
    for source in sources:
        if is_validation(source):
            folder, parts = package.rows_folder("validation.xlsx"), read_parts(source)
            for part in PARTS:
                package.write_cells(folder / f"{part.sheet}.csv", parts[part.sheet])
            paths += [folder / f"{part.sheet}.csv" for part in PARTS]
        else:
            paths += package.write_tables(package.rows_folder("xlperf.xlsx"), read_tables(source))
    return paths


def build_template(path: str | Path | None = None) -> Path:
    """Write ``templates/report.xlsx``: the sheets of a report with titles, styles and print set-up, without data.

    A template edited by hand (fonts, colours, a logo in the header, paper size) keeps working: reports are written into
    its sheets.
    """
    book = new_book()
    for row in resources.rows("workbook/report_sheets.csv"):
        name = row["sheet"]
        sheet: Any = book.create_sheet(name)
        title(sheet, "xlperf report" if name == "summary" else name.capitalize(), row["subtitle"])
        if name != "summary":
            link(sheet["A3"], "summary", "to the summary")
            sheet.row_dimensions[3].height = 20
        sheet.sheet_properties.tabColor = row["tab"]
        sheet.sheet_view.zoomScale = 100
        page_setup(sheet)
    target = Path(path) if path is not None else resources.template("report.xlsx")
    package.save_workbook(book, target)
    return target


def build_checked(path: str | Path | None = None) -> list[Path]:
    """Write the table of measured runs, which badges go by, with errors of models left out of the fit."""
    from xlperf.calibrate.accuracy import cross_validated_errors, measured_csv
    from xlperf.calibrate.published_errors import read_measured

    measured = read_measured()
    published = (measured.training, measured.inference)
    catalog = _catalog(read_tables(path if path is not None else resources.workbook()))
    table = resources.table("catalog/measured.csv")
    errors = cross_validated_errors(published, catalog)
    table.write_text(measured_csv(published, catalog, errors), encoding="utf-8")
    return [table]


def _build_all(path: str | None = None) -> list[Path]:
    return [build(path)] if path else [build(), build_examples()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild ``xlperf.xlsx`` and ``templates/study.xlsx``, or the files that an option names.

    ``--validation``: validation.xlsx. ``--template``: the template of reports. ``--studies``: workbooks of studies.
    ``--checked``: the table of measured runs. ``--rows``: the CSV files, from an edited workbook.
    """
    actions: dict[str, Callable[..., list[Path]]] = {
        "--validation": lambda *paths: [build_validation(*paths)],
        "--template": lambda *paths: [build_template(*paths)],
        "--studies": build_studies,
        "--checked": build_checked,
        "--rows": write_rows,
    }
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = {word for word in given if word.startswith("-")}
    paths = [word for word in given if word not in options]
    if len(paths) > 1 or len(options) > 1 or options - set(actions):
        sys.stderr.write(f"usage: python -m xlperf.workbook.build [{' | '.join(actions)}] [FILE]\n")
        return 2
    try:
        targets = (actions[options.pop()] if options else _build_all)(*paths)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("".join(f"{target}\n" for target in targets))
    return 0


HEADER_ROW = 4


@dataclass(frozen=True)
class Part:
    """A sheet of the workbook: its name, its native table, the column that every such sheet has, and words."""

    sheet: str
    table: str
    key: str
    title: str
    words: str


*PARTS, PREDICTED = (Part(**row) for row in resources.rows("workbook/validation_sheets.csv"))


def read_parts(path: str | Path) -> dict[str, package.Cells]:
    """Header and rows of each sheet of the workbook; columns of published rows that it does not have yet are blank."""
    from xlperf.measurements.published import published_columns

    by_name: dict[str, package.Cells] = {}
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
    raise_faults(faults)
    return by_name


def is_validation(path: str | Path) -> bool:
    """Whether a workbook has the sheet of kernel measurements, as validation.xlsx does."""
    with Reader(path) as book:
        return book.sheet("kernels") is not None


def rows_in_text() -> dict[str, package.Cells]:
    """Header and rows of each sheet from the CSV files of ``workbooks/rows/validation``."""
    from xlperf.measurements.published import published_columns

    parts: dict[str, package.Cells] = {}
    for part in PARTS:
        are_text = {name: kind == "text" for name, kind in published_columns().get(part.sheet, {}).items()}
        parts[part.sheet] = package.read_cells(package.rows_folder("validation.xlsx") / f"{part.sheet}.csv", are_text)
    return parts


def predictions_of(path: str | Path) -> package.Cells:
    """Predictions of xlperf beside the measurements of a validation workbook, as cells of the sheet ``predictions``."""
    from xlperf.calibrate.validate import validate
    from xlperf.catalog.catalog import load_catalog

    columns = list(_meanings(PREDICTED))
    rows: package.Cells = [list(columns)]
    for record in validate([path], load_catalog()).records:
        values = [getattr(record, name) for name in columns]
        rows.append([None if isinstance(value, float) and value != value else value for value in values])
    return rows


def validation_package(parts: Mapping[str, package.Cells], predictions: package.Cells | None = None) -> bytes:
    """The validation workbook of some rows."""
    book = new_book("xlperf validation")
    _front(book, parts)
    for part in PARTS:
        _sheet(book, part, parts[part.sheet])
    if predictions is not None:
        _sheet(book, PREDICTED, predictions)
    return package.workbook_bytes(book)


def build_validation(path: str | Path | None = None) -> Path:
    """Build the validation workbook from its rows, with the predictions of today beside them."""
    target = Path(path) if path is not None else resources.workbook("validation.xlsx")
    in_text = path is None and package.rows_folder("validation.xlsx").is_dir()
    parts = rows_in_text() if in_text else read_parts(target)
    package.replace_file(target, validation_package(parts))  # the rows that are predicted
    package.replace_file(target, validation_package(parts, predictions_of(target)))
    return target


def _front(book: Workbook, parts: Mapping[str, package.Cells]) -> None:
    sheet = book.create_sheet("start")
    beside = Alignment(horizontal="left", vertical="center", indent=1, wrap_text=True)
    title(sheet, "xlperf validation", "Published measurements, kernel measurements and tolerances", "B1")
    column_widths(sheet, 2, 26, 12, 70, 2)
    lines = texts("validation")
    for row, words in enumerate(lines, start=4):
        put(sheet[f"B{row}"], words)
        sheet.merge_cells(f"B{row}:D{row}")
        sheet.row_dimensions[row].height = 30
    top = 5 + len(lines)
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


def _groups(cells: package.Cells) -> list[tuple[str, int, list[str]]]:
    header = cells[0]
    group, source = header.index("group"), header.index("source_id")
    names: dict[str, tuple[int, set[str]]] = {}
    for row in cells[1:]:
        count, sources = names.get(str(row[group]), (0, set()))
        names[str(row[group])] = count + 1, sources | {str(row[source])}
    return [(name, count, sorted(sources)) for name, (count, sources) in sorted(names.items())]


def _meanings(part: Part) -> Mapping[str, str]:
    from xlperf.measurements.published import published_columns

    own = part.sheet not in published_columns()
    rows = resources.rows("workbook/validation_columns.csv" if own else "measurements/published_columns.csv")
    return {row["column"]: row["meaning"] for row in rows if row["sheet" if own else "table"] == part.sheet}


def _sheet(book: Workbook, part: Part, cells: package.Cells) -> Worksheet:
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


if __name__ == "__main__":
    sys.exit(main())
