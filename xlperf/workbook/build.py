"""``python -m xlperf.workbook.build``: the shipped workbooks, built from their rows.

The rows are the source of truth: CSV files under ``workbooks/rows`` in a checkout, else the sheets of the workbook.
The build makes everything else (styles, formulas, drop-downs, comments, checks, values beside the formulas) from the
schema: the same rows give the same bytes.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openpyxl import Workbook

from xlperf.addin.cells import block_of, read_block, solved
from xlperf.addin.handles import content_of, handle_of
from xlperf.addin.worker import Engine
from xlperf.base import resources
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.read import read_catalog_tables, read_plan_tables
from xlperf.catalog.schema import CATALOG_TABLES, OPTIONAL_TABLES, PLAN_TABLES, TECHNOLOGY_TABLES, table_schema
from xlperf.catalog.table import Table
from xlperf.workbook import rows
from xlperf.workbook.checks import checks_sheet
from xlperf.workbook.data_sheets import ASKED, LIVE_RESULTS, PLANNED, Rows, data_sheet, sheet_columns, table_of
from xlperf.workbook.front.plan_card import NUMBERS, plan_cards
from xlperf.workbook.front.sheets import example_tables, live_cells, numbers_look, question_sheets
from xlperf.workbook.front.start import CARD_RESULTS, CARDS, card, catalog_kinds, front_sheet, functions_sheet
from xlperf.workbook.package import Formulas, data_rows, packed, replace_file, save_workbook
from xlperf.workbook.report.result_charts import cost_charts
from xlperf.workbook.style import add_styles, link, page_setup, title
from xlperf.workbook.tco import tco_sheet

KINDS = (*PLAN_TABLES, *CATALOG_TABLES)
ORIGIN = "xlperf.xlsx"
_OPTIONS = ("--validation", "--template", "--studies", "--checked", "--rows")


def read_tables(path: str | Path) -> dict[str, Table]:
    """Data sheets of a workbook by kind.

    Raises InputError with every fault of every sheet.
    """
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
    for kind in (*KINDS, *OPTIONAL_TABLES):
        given = tables.get(kind, ())
        table = given if isinstance(given, Table) else table_of(kind, given)
        if kind in KINDS or len(table):
            full[kind] = table
    results = live_results(full) if values else {}
    formulas = Formulas()
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
    front_sheet(book, full, card_results(full) if values else {}, catalog_handle(full), formulas, examples)
    for kind in full:
        data_sheet(book, full[kind], results.get(kind, {}), formulas, full)
    tco_sheet(book, full, results, formulas)
    checks_sheet(book, full, results, formulas)
    functions_sheet(book)
    live = live_cells(full, _catalog(full) if values else None, formulas, results)
    if all(len(full.get(kind, ())) for kind in ("models", "accelerators", *TECHNOLOGY_TABLES)):
        question_sheets(book, full, live)
    plan_cards(book, book.create_sheet(NUMBERS), live)
    numbers_look(book[NUMBERS])
    cost_charts(book, live)
    book.properties.creator = "xlperf"
    book.properties.title = "xlperf"
    return packed(book, formulas)


def live_results(tables: Mapping[str, Table]) -> dict[str, dict[str, list[Any]]]:
    """Cells of the live results of plans, designs and servers, by kind and name.

    A cell for each row: a number in the schema's unit, text, flag or CellError.
    """
    catalog = _catalog(tables)
    by_name = {}
    for kind, names in LIVE_RESULTS.items():
        if kind in tables and len(tables[kind]):
            columns = table_schema(kind).columns
            block: list[list[Any]] = [[column.header for column in columns], *data_rows(tables[kind], columns)]
            by_name[kind] = _cells(block, names, catalog, kind)
    if "servers" in by_name:
        numbers = [tables["servers"].number(name).tolist() for name in ASKED]
        for row, given in enumerate(zip(*numbers, strict=True)):
            if all(value != value for value in given):
                for name in (own for own in LIVE_RESULTS["servers"] if own.endswith(PLANNED)):
                    by_name["servers"][name][row] = ""
    return by_name


def card_results(tables: Mapping[str, Table]) -> dict[str, dict[str, Any]]:
    """Cells of the results of the cards on the front sheet, by kind and name."""
    catalog = _catalog(tables)
    names = {str(name).casefold() for name in tables["models"].text("model")}
    return {
        kind: {name: cells[0] for name, cells in _cells(card(kind), CARD_RESULTS[kind], catalog, kind).items()}
        for kind in CARDS
        if str(dict(CARDS[kind])["model"]).casefold() in names
    }


def catalog_handle(tables: Mapping[str, Table]) -> str:
    """Text of the catalog cell for these tables."""
    blocks = []
    for kind in catalog_kinds(tables):
        columns = [column for column in sheet_columns(kind) if not column.is_result]
        blocks.append(block_of([[column.header for column in columns], *data_rows(tables[kind], columns)]))
    return handle_of(content_of(blocks))


def _catalog(tables: Mapping[str, Table]) -> Catalog:
    return Catalog.from_tables([tables[kind] for kind in catalog_kinds(tables)], ORIGIN)


def _cells(block: list[list[Any]], names: tuple[str, ...], catalog: Catalog, kind: str) -> dict[str, list[Any]]:
    outcome = solved(read_block(block, None, kind), lambda rows, names: Engine().evaluate(rows, catalog, names))
    return {name: outcome.words() if name == "reason" else outcome.column(name) for name in names}


def write_workbook(path: str | Path, tables: Mapping[str, Table | Rows], values: bool = True) -> None:
    """Write :func:`workbook_package` of some tables to a file, which is replaced whole."""
    replace_file(path, workbook_package(tables, values))


def new_workbook(path: str | Path, content: str = "all") -> None:
    """Write a workbook for a user to start from.

    ``content``: ``all``: the shipped workbook; ``examples``: one plan of each kind and the rows that it refers to
    (``templates/study.xlsx``); ``empty``: no rows but the calibration.
    """
    if content == "empty":
        calibration = read_tables(resources.workbook())["calibration"]
        replace_file(path, workbook_package({"calibration": calibration}, values=False, examples=False))
        return
    source = resources.template("study.xlsx") if content == "examples" else resources.workbook()
    replace_file(path, source.read_bytes())


def build_examples() -> Path:
    """Write ``templates/study.xlsx``: one plan of each kind of the shipped workbook and the rows that it refers to."""
    target = resources.template("study.xlsx")
    write_workbook(target, example_tables(read_tables(resources.workbook())))
    return target


def build(path: str | Path | None = None, replaced: Mapping[str, Table | Rows] | None = None) -> Path:
    """Build a workbook from its rows: the shipped one by default.

    ``replaced``: tables that take the place of the workbook's own, such as a new calibration.
    """
    target = Path(path) if path is not None else resources.workbook()
    folder = rows.rows_folder(target.name)
    in_text = target.resolve() == resources.workbook().resolve() and folder.is_dir()
    tables = {**(rows.read_tables(folder) if in_text else read_tables(target)), **(replaced or {})}
    write_workbook(target, tables)
    if in_text and replaced:
        rows.write_tables(folder, {kind: read_tables(target)[kind] for kind in replaced})
    return target


def write_rows(path: str | Path | None = None) -> list[Path]:
    """Take the edits of a workbook back into the CSV files of ``workbooks/rows``.

    ``path``: an edited copy of xlperf.xlsx or validation.xlsx; default: both shipped workbooks.
    """
    from xlperf.workbook.validation import PARTS, is_validation, read_parts

    sources = [Path(path)] if path is not None else [resources.workbook(), resources.workbook("validation.xlsx")]
    paths: list[Path] = []
    for source in sources:
        if is_validation(source):
            folder, parts = rows.rows_folder("validation.xlsx"), read_parts(source)
            for part in PARTS:
                rows.write_cells(folder / f"{part.sheet}.csv", parts[part.sheet])
            paths += [folder / f"{part.sheet}.csv" for part in PARTS]
        else:
            paths += rows.write_tables(rows.rows_folder("xlperf.xlsx"), read_tables(source))
    return paths


def build_template(path: str | Path | None = None) -> Path:
    """Write ``templates/report.xlsx``: the sheets of a report with titles, styles and print set-up, without data.

    A template edited by hand (fonts, colours, a logo in the header, paper size) keeps working: reports are written into
    its sheets.
    """
    book = Workbook()
    book.remove(book.worksheets[0])
    add_styles(book)
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
    save_workbook(book, target)
    return target


def build_checked(path: str | Path | None = None) -> list[Path]:
    """Check the calibration on models left out of its fit: new bands and errors in its sheet, and the measured runs.

    ``path``: workbook with the calibration; default: the shipped one. Returns the workbook, and the table of measured
    runs that badges and the width of bands go by.
    """
    from xlperf.calibrate.accuracy import measured_csv
    from xlperf.calibrate.bands import with_checks
    from xlperf.calibrate.fit import read_measured
    from xlperf.calibrate.fit_machines import errors_left_out

    measured = read_measured()
    published = (measured.training, measured.inference)
    catalog = _catalog(read_tables(path if path is not None else resources.workbook()))
    date = datetime.date.today().isoformat()
    calibration, errors = with_checks(catalog.tables["calibration"], published, catalog, date)
    errors = [*errors, *errors_left_out(measured.machines, catalog, measured.kernels)]
    table = resources.table("catalog/measured.csv")
    table.write_text(measured_csv(published, catalog, errors), encoding="utf-8")
    return [build(path, {"calibration": calibration}), table]


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild ``xlperf.xlsx`` and ``templates/study.xlsx``, or the files that an option names.

    ``--validation``: validation.xlsx. ``--template``: the template of reports. ``--studies``: workbooks of studies.
    ``--checked``: cross-validated bands of the calibration. ``--rows``: the CSV files, from an edited workbook.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = {word for word in given if word.startswith("-")}
    paths = [word for word in given if word not in options]
    if len(paths) > 1 or len(options) > 1 or options - set(_OPTIONS):
        sys.stderr.write(f"usage: python -m xlperf.workbook.build [{' | '.join(_OPTIONS)}] [FILE]\n")
        return 2
    try:
        if "--validation" in options:
            from xlperf.workbook.validation import build_validation

            targets = [build_validation(*paths)]
        elif "--checked" in options:
            targets = build_checked(*paths)
        elif "--rows" in options:
            targets = write_rows(*paths)
        elif "--studies" in options:
            from xlperf.workbook.report.studies import build_studies

            targets = build_studies(*paths)
        else:
            path = paths[0] if paths else None
            targets = [build_template(path)] if options else [build(path), *([] if path else [build_examples()])]
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("".join(f"{target}\n" for target in targets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
