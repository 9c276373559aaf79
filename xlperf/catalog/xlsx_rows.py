"""Rows added to a user's workbook or CSV table, and workbooks as text.

A row is added by editing the part of the package that holds the sheet, so that charts, formats and macros stay; it
takes the formats of the last row, and the Excel table, its filter and drop-downs grow over it.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, unescape

from xlperf.base.errors import Fault, InputError, printable
from xlperf.base.files import replaced
from xlperf.base.units import factor
from xlperf.catalog.cells import cell_text, is_blank, parse_header
from xlperf.catalog.csv_files import SIZE_LIMIT, all_of, decoded, harmless, opened
from xlperf.catalog.read import Block, find_block, missing_sheet
from xlperf.catalog.schema import split_header, table_schema
from xlperf.catalog.table import column_letters, name_taken
from xlperf.catalog.xlsx import Cells, Formulas, Workbook, column_number

Value = float | int | str
_ROW = r'<(?P<p>\w+:)?row\b(?P<a>[^>]*?\br="{}"[^>]*?)(?:/>|>(?P<b>.*?)</(?P=p)?row>)'
_CELL = re.compile(r'<(\w+:)?c\b[^>]*?\br="([A-Z]+)\d+"[^>]*?(?:/>|>.*?</(?:\w+:)?c>)', re.DOTALL)
_STYLE = re.compile(r'\bs="(\d+)"')
_AREA = re.compile(r"\$?([A-Z]{1,3})\$?(\d+):\$?([A-Z]{1,3})\$?(\d+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def add_row(path: str | os.PathLike[str], kind: str, row: Mapping[str, Value]) -> tuple[str, list[str]]:
    """Add a row, in the units of the schema, to a catalog sheet; its cell, and columns that have no header there."""
    with Workbook(path) as book:
        sheet = book.sheet(kind)
        block = find_block(book, sheet, kind) if sheet is not None else None
        if sheet is None or block is None:
            problem = missing_sheet(book, kind) if sheet is None else f"has no header of {kind}"
            raise InputError(Fault(book.name, problem))
        cells, left_out = _values(kind, block, row)
        last = max([block.locate.header_row, *block.locate.rows])
        if block.table is not None and block.table.totals:
            raise InputError(Fault(f"{book.name} [{sheet}]", "its table has a totals row; take that away first"))
        empty = block.table is not None and last < block.table.last_row  # a blank row of the table waits for it
        below = book.cells(sheet).get(last + 1, {})
        taken = [column for column in block.locate.columns if not is_blank(below.get(column))]
        if taken:
            place = f"{book.name} [{sheet}!{column_letters(taken[0])}{last + 1}]"
            raise InputError(Fault(place, "stands where the new row would; leave a row free below the table"))
        part = book.part(sheet)
        tables = [target for word, target in book.package.relations(part).values() if word == "table"]
        main = book.main
    parts: dict[str, str] = {}
    with zipfile.ZipFile(path) as package:
        names = {name.lstrip("/").casefold(): name for name in package.namelist()}
        for name in (part, *tables, main):
            parts[name] = package.read(names[name.casefold()]).decode("utf-8-sig")
        parts[part] = _with_row(parts[part], last, cells)
        if not empty:
            parts[part] = _grown(parts[part], last, block)
            for table in tables:
                parts[table] = _grown_table(parts[table], last, block)
        parts[main] = _calculated_anew(parts[main])
        _write(path, package, {name.casefold(): text for name, text in parts.items()})
    place = f"{Path(path).name} [{sheet}!{column_letters(block.locate.columns[0])}{last + 1}]"
    return place, left_out


def add_csv_row(path: Path, kind: str, row: Mapping[str, float | int | str]) -> int:
    """Add a row, in the units of the schema, to a catalog table as CSV, made if missing; the line of the row."""
    declared = table_schema(kind)
    lines: list[list[str]] = []
    if path.exists():
        with opened(path, SIZE_LIMIT) as (stream, name):
            lines = list(csv.reader(io.StringIO(decoded(all_of(stream, name), name))))
    headers = [split_header(cell) for cell in lines[0]] if lines else []
    if lines and (not headers or headers[0][0] != declared.key.name):
        raise InputError(Fault(path.name, f'is no table of {kind}: its first header must be "{declared.key.name}"'))
    for name, symbol in headers:
        if name in row and symbol is not None and symbol != declared.by_name[name].unit:
            problem = f"has {name.replace('_', ' ')} in {symbol}; write it in {declared.by_name[name].unit}"
            raise InputError(Fault(path.name, problem))
    names = [name for name, _ in headers]
    at = names.index("aliases") if "aliases" in names else -1
    for line in lines[1:]:
        words = line[at] if 0 < at < len(line) else ""
        if line and (problem := name_taken(str(row[declared.key.name]), line[0], words)):
            raise InputError(Fault(path.name, problem))
    added = [column for column in declared.columns if column.name in row and column.name not in names]
    top = [*(lines[0] if lines else []), *(column.header for column in added)]
    names += [column.name for column in added]
    values = [row.get(name, "") for name in names]
    written = [harmless(value) if isinstance(value, str) else repr(value) for value in values]
    with replaced(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([top, *lines[1:], written])
    return len(lines[1:]) + 2


def _values(kind: str, block: Block, row: Mapping[str, Value]) -> tuple[dict[int, Value], list[str]]:
    """Values of a row by column of the sheet, in the units of its headers."""
    key = table_schema(kind).key.name
    schema = table_schema(kind).by_name
    fields = parse_header(kind, block.header).fields
    known = {field.column.name: field for field in fields}
    for number, cells in enumerate(block.rows):
        places = [known[name].position if name in known else len(cells) for name in (key, "aliases")]
        own, words = (str(cells[at] or "") if at < len(cells) else "" for at in places)
        if problem := name_taken(str(row[key]), own, words):
            raise InputError(Fault(block.locate(number, places["spelling" in problem]), problem))
    by_name: dict[int, Value] = {}
    for column, value in row.items():
        if column not in known:
            continue
        field = known[column]
        scale = factor(schema[column].unit or "-") / field.factor if schema[column].kind == "number" else 1.0
        converted = float(f"{value * scale:.15g}") if scale != 1.0 and not isinstance(value, str) else value
        by_name[block.locate.columns[field.position]] = converted
    return by_name, [column for column in row if column not in known]


def _with_row(sheet: str, last: int, cells: Mapping[int, Value]) -> str:
    """A sheet with one more row below row ``last``, in its prepared format or else the format of ``last``."""
    above, below = (re.search(_ROW.format(row), sheet, re.DOTALL) for row in (last, last + 1))
    prefix = (above["p"] if above else None) or ""
    prepared = below if below and below["b"] else above
    written = _CELL.finditer((prepared and prepared["b"]) or "")
    styles = {cell[2]: style[1] for cell in written if (style := _STYLE.search(cell[0]))}
    columns = sorted({*(column_number(letters) for letters in styles), *cells})
    made = {column: _cell(prefix, column, last + 1, styles, cells.get(column)) for column in columns}
    attributes = re.sub(r'\s*\b(r|spans)="[^"]*"', "", above["a"] if above else "").rstrip("/ ")
    if below:  # formats, or cells beside the table
        kept = {column_number(result[2]): result[0] for result in _CELL.finditer(below["b"] or "")}
        made = {**made, **{column: text for column, text in kept.items() if column not in cells}}
    body = "".join(made[column] for column in sorted(made))
    row = f'<{prefix}row r="{last + 1}"{attributes}>{body}</{prefix}row>'
    if below:
        return sheet[: below.start()] + row + sheet[below.end() :]
    if above:
        return sheet[: above.end()] + row + sheet[above.end() :]
    return re.sub(r"</(\w+:)?sheetData>", lambda result: row + result[0], sheet, count=1)


def _cell(prefix: str, column: int, row: int, styles: Mapping[str, str], value: Value | None) -> str:
    letters = column_letters(column)
    style = f' s="{styles[letters]}"' if letters in styles else ""
    start = f'<{prefix}c r="{letters}{row}"{style}'
    if value is None:
        return f"{start}/>"
    if isinstance(value, str):
        text = escape(_CONTROL.sub("", value))
        inside = f'<{prefix}is><{prefix}t xml:space="preserve">{text}</{prefix}t></{prefix}is>'
        return f'{start} t="inlineStr">{inside}</{prefix}c>'
    return f"{start}><{prefix}v>{value!r}</{prefix}v></{prefix}c>"


def _grown(sheet: str, last: int, block: Block) -> str:
    """A sheet whose formats, drop-downs and filter cover the new row if they reached the last one."""
    first = block.locate.header_row

    def area(match: re.Match[str]) -> str:
        _, top, _, bottom = match.groups()
        inside = int(bottom) == last and int(top) >= first
        return match[0][: match[0].rindex(bottom)] + str(last + 1) if inside else match[0]

    def grown(match: re.Match[str]) -> str:
        areas = [f"{one}:{one}" if ":" not in one else one for one in match[2].split()]
        new = [_AREA.sub(area, one) for one in areas]
        shown = (b if a != b else c for a, b, c in zip(areas, new, match[2].split(), strict=False))
        return match[1] + " ".join(shown) + match[3]

    sheet = re.sub(r'(\bsqref=")([^"]*)(")', grown, sheet)
    sheet = re.sub(r'(<(?:\w+:)?autoFilter\b[^>]*\bref=")([^"]*)(")', grown, sheet)
    sheet = re.sub(r"(<(?:\w+:)?sqref>)([^<]*)(<)", grown, sheet)

    def dimension(match: re.Match[str]) -> str:
        corners = _AREA.fullmatch(match[2])
        if corners is None or int(corners[4]) > last:
            return match[0]
        return f"{match[1]}{corners[1]}{corners[2]}:{corners[3]}{last + 1}{match[3]}"

    return re.sub(r'(<(?:\w+:)?dimension\b[^>]*\bref=")([^"]*)(")', dimension, sheet, count=1)


def _grown_table(table: str, last: int, block: Block) -> str:
    """The part of an Excel table, extended over the new row if it belongs to the block."""
    match = re.search(r'\bdisplayName="([^"]*)"', table)
    if block.table is None or match is None or unescape(match[1], {"&quot;": '"'}) != block.table.name:
        return table
    left, right = column_letters(block.table.first_column), column_letters(block.table.last_column)
    old, new = (f'ref="{left}{block.table.first_row}:{right}{row}"' for row in (block.table.last_row, last + 1))
    return table.replace(old, new)


def _calculated_anew(book: str) -> str:
    """Workbook part that makes programs recalculate all formulas on opening, since their table has changed."""
    if match := re.search(r"<(\w+:)?calcPr\b[^>]*?/?>", book):
        bare = re.sub(r'\s*fullCalcOnLoad="[^"]*"', "", match[0])
        return book.replace(match[0], re.sub(r"\s*(/?>)$", r' fullCalcOnLoad="1"\1', bare), 1)
    return re.sub(
        r"</(\w+:)?(definedNames|sheets)>(?!.*</(?:\w+:)?definedNames>)",
        lambda end: f'{end[0]}<{end[1] or ""}calcPr fullCalcOnLoad="1"/>',
        book,
        count=1,
        flags=re.DOTALL,
    )


def _write(path: str | os.PathLike[str], package: zipfile.ZipFile, parts: Mapping[str, str]) -> None:
    """Write a package with some of its parts anew, and the bytes of all others as they were."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as written:
        for info in package.infolist():
            text = parts.get(info.filename.lstrip("/").casefold())
            written.writestr(info, package.read(info) if text is None else text.encode("utf-8"))
    with replaced(path) as temporary:
        temporary.write_bytes(stream.getvalue())


def shown_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Sheets of a workbook as lines of text, cells separated by tabs, formulas as formulas, whoever saved it."""
    sheets: list[tuple[str, Cells, dict[tuple[int, int], str]]] = []
    with Workbook(path) as book:
        for sheet in book.sheets:
            formulas = Formulas()
            cells = book.cells(sheet, formulas)
            tables = sorted(f"{table.name} {table.reference}" for table in book.tables(sheet))
            heading = "\t".join([f"# {_escaped(sheet)}", *(f"table {_escaped(table)}" for table in tables)])
            sheets.append((heading, cells, _formula_texts(formulas)))
    for heading, cells, texts in sheets:
        yield heading
        yield from _row_lines(cells, texts)


def _row_lines(cells: Cells, formulas: dict[tuple[int, int], str]) -> Iterator[str]:
    for row in sorted(cells):
        shown = {column: formulas.get((row, column)) or cell_text(value) for column, value in cells[row].items()}
        texts = {column: _escaped(text) for column, text in shown.items()}
        filled = [column for column, text in texts.items() if text]
        if filled:
            yield "\t".join(texts.get(column, "") for column in range(1, max(filled) + 1))


def _escaped(text: str) -> str:
    """A text as one cell of one line: backslashes, tabs and newlines are written out, and other control characters."""
    return printable(text.replace("\\", "\\\\").replace("\t", "\\t").replace("\r", "").replace("\n", "\\n"))


def _formula_texts(formulas: Formulas) -> dict[tuple[int, int], str]:
    """Formulas as a person sees them; shared formulas are moved to their own cells."""
    texts = {key: f"={text}" for key, text in formulas.text.items()}
    texts.update({key: f"{{={text}}}" for key, text in formulas.arrays.items()})
    masters = {index: key for key, index in formulas.shared.items() if key in formulas.text}
    followers = {key: masters[index] for key, index in formulas.shared.items() if key not in texts and index in masters}
    if followers:
        from openpyxl.formula.translate import Translator

        for key, master in followers.items():
            moved = Translator(texts[master], origin=_address(master)).translate_formula(_address(key))
            texts[key] = str(moved)
    return texts


def _address(key: tuple[int, int]) -> str:
    return f"{column_letters(key[1])}{key[0]}"
