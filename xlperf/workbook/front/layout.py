"""The look of the front sheets: a form on the left, its answer on the right, tiles, headings and charts over cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from openpyxl.formatting.rule import Rule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.styles.differential import DifferentialStyle
from openpyxl.utils import column_index_from_string, get_column_letter
from openpyxl.worksheet.datavalidation import DataValidation
from openpyxl.worksheet.properties import PageSetupProperties

from xlperf.base import resources
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import Column, questions, results_of, software_title, table_schema
from xlperf.interop.software import searched_engines
from xlperf.workbook import axes, charts
from xlperf.workbook.axes import line
from xlperf.workbook.charts import Cells, Points, Shares
from xlperf.workbook.data_sheets import SCENARIO, SCENARIO_CELL, VERDICT, column_validation
from xlperf.workbook.front.formulas import Live, looked_up, worded
from xlperf.workbook.style import BAD_FILL, BAD_INK, FONT, MUTED, NAVY, RULE, number_format

CARD, TINT = "F4F6F8", "E8F1F8"
BLUE, SKY, GREEN, AMBER, ORANGE, GREY = "0072B2", "56B4E9", "009E73", "E69F00", "D55E00", "C3CBD3"
SHEETS = (*(question.sheet for question in questions().values()), "Compare")
NUMBERS = (*(f"calc {form}" for form in questions()), "calc compare")
"""Sheets that hold the numbers of the front sheets."""
_TABS = ("start", "Serve", "Train", "Build a chip", "Compare")
"""Sheets that a front sheet leads to, itself in the place of the last; the list on ``start`` leads to all."""
DASH = "\N{EN DASH}"
MONEY = '[>=1000000]"$"0.00,," M";[>=1000]"$"0," k";"$"0'
_LONG_ENTRY = 20
"""Letters from which on an entry also takes the column of the notes. [-]"""
_AS_TYPED = "[<1000]General;#,##0"
"""Number format of entries with a unit: as they are typed, thousands parted."""
_INPUT_FILL, _INPUT_RULE = "FFF9DF", "E5D9A6"
_WIDTHS = {"A": 1, "B": 27, "C": 19, "D": 14.5, "E": 1.5, "L": 1.5, "S": 0.5} | dict.fromkeys("FGHIJKMNOPQR", 8.75)
_WITH_MONEY = ("Serve", "Train")
"""Front sheets with money and power below the answer."""
_HEIGHTS = {1: 4.0, 2: 26.0, 3: 15.0, 4: 6.0, 5: 30.0}
"""Heights of rows above the entries, which all have one height: with it the sheet is as high as a window of 900 pixels
shows. The first row of the form is taller, and holds the sentence of three lines with the second. [pt]"""
_EVEN = 16.25


class _Look(NamedTuple):
    """Font, alignment and fill of the text of a cell."""

    font: Font
    place: Alignment
    fill: PatternFill | None


def _look(row: Mapping[str, str]) -> _Look:
    """A look of looks.csv; a shrunk text fits its cell."""
    font = Font(name=FONT, size=float(row["size"]), bold=bool(row["bold"]), color=row["colour"])
    place = Alignment(
        horizontal=row["place"],
        vertical=row["upright"] or "center",
        wrap_text=bool(row["wrapped"]),
        indent=int(row["indent"]),
        shrink_to_fit=bool(row["shrunk"]) or None,
    )
    return _Look(font, place, PatternFill("solid", start_color=row["fill"]) if row["fill"] else None)


_LOOKS = {row["look"]: _look(row) for row in resources.rows("workbook/looks.csv")}


def last_row(title: str) -> int:
    """Row of the foot of a front sheet, its last row: below its form and the answer. [-]"""
    forms = {question.sheet: form for form, question in questions().items()}
    long = title in _WITH_MONEY
    return max(41 if long else 33, 7 + len(form_rows(forms[title])) if title in forms else 0)


@dataclass(frozen=True)
class Entry:
    """A row of a form: a column of its kind, its first value, the note beside it, and words to choose from."""

    column: str
    value: str
    beside: str = ""
    choices: str = ""


def form_rows(kind: str) -> list[Entry | str]:
    """Rows of the form of a kind: entries, headings, blank rows ("").

    >>> form_rows("serve")[:2]
    ['MODEL', Entry(column='model', value='DeepSeek-V3', beside='', choices='')]
    """
    engines = ",".join(searched_engines())
    return [
        Entry(row["column"], row["value"], row["beside"], row["choices"].replace("{engines}", engines))
        if row["column"]
        else row["value"]
        for row in resources.rows("workbook/forms.csv")
        if row["form"] == kind
    ]


def front_words(form: str) -> dict[str, list[dict[str, str]]]:
    """Words beside the answer of a form, by place: rows of front_words.csv."""
    places: dict[str, list[dict[str, str]]] = {}
    for row in resources.rows("workbook/front_words.csv"):
        if row["form"] == form:
            places.setdefault(row["place"], []).append(row)
    return places


def stated(words: str, cells: Mapping[str, str]) -> str:
    """A formula from a template of words, or from a template of a formula, which starts with ``=``."""
    return words[1:].format_map(cells) if words.startswith("=") else worded(words, cells)


def given(cell: str) -> str:
    """Reference to an entry of a form; a blank one stays blank."""
    return f'=IF({cell}="","",{cell})'


def unless_refused(formula: str, instead: str = "") -> str:
    """A formula for a cell that claims nothing where the sentence says that there is no answer.

    >>> unless_refused("B1*2")
    '=IF(LEFT($F$5,3)="No ","",IFERROR(B1*2,""))'
    """
    return f'=IF({REFUSED},"{instead}",IFERROR({formula},"{instead}"))'


def shortened(cell: str) -> str:
    """Formula of the sentence in a cell, cut where it is longer than its place; in place of an error, which a fault of
    a data sheet makes of every cell that reads it, where the fault is named.
    """
    sentence = f'IF(LEN({cell})>{_MOST_LETTERS},LEFT({cell},{_MOST_LETTERS - 3})&"...",{cell})'
    fault = '"No answer: a data sheet has a fault ("&checks!$B$3&"); xlperf check FILE names its cell"'
    return f"=IFERROR({sentence},{fault})"


ENGINES = {engine: software_title(engine) for engine in searched_engines()}
"""Titles of serving engines."""


def engine_named(cell: str, titles: Mapping[str, str] = MappingProxyType(ENGINES)) -> str:
    """Formula of the title of the engine in a cell; a name without one as it is.

    In LibreOffice a text of an add-in's function equals no other; one that LEFT makes of it does.
    """
    known = "".join(f'IF(LEFT({cell},20)="{name}","{title}",' for name, title in titles.items())
    return f"{known}{cell}{')' * len(titles)}"


def entry_format(column: Column) -> str:
    """Number format of an entry, which shows what was typed: shares in percent and years have formats of their own."""
    code = number_format(column)
    return code if column.unit == "-" and (code == "0" or "%" in code) else _AS_TYPED


BADGES = (
    ("MEASURED", GREEN), ("INTERPOLATED", "9A6A00"), ("EXTRAPOLATED", ORANGE), ("A FORECAST", ORANGE),
    ("BANDS OVERLAP", "9A6A00"), ("CLEAR", GREEN),
)  # fmt: skip
"""Badges and their colours; any other, as a dash in the place of an answer, is grey."""
REFUSED = 'LEFT($F$5,3)="No "'
"""Whether the sentence says that there is no answer: nothing else on the sheet may claim one."""
_MOST_LETTERS = 300
"""Letters of the sentence that fit in its cell; the page of all numbers shows a longer one whole. [-]"""


class Axis(NamedTuple):
    """Title of an axis, number format and size of its labels, grid lines."""

    words: str = ""
    number: str = "General"
    grid: bool = False
    hidden: bool = False
    size: float = 9


@dataclass
class Page:
    """A sheet with words and charts, the hidden sheet that holds its numbers, and the evaluator of both.

    ``entries``: cells of its form by column; ``answers``: cells of its results.
    """

    sheet: Any
    data: Any
    live: Live
    entries: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The sheet of the numbers, as a reference begins."""
        return f"'{self.data.title}'!"

    def put(self, at: str, value: Any, look: str, number: str = "", last: str = "") -> Any:
        """Write a value or formula in a named style, merged up to ``last``."""
        font, place, fill = _LOOKS[look]
        for row in self.sheet[f"{at}:{last or at}"]:
            for cell in row:
                cell.font, cell.alignment = font, place
                if fill is not None:
                    cell.fill = fill
        if last:
            self.sheet.merge_cells(f"{at}:{last}")
        if value is not None:
            self.live.put(self.sheet[at], value)
        if number:
            self.sheet[at].number_format = number
        return self.sheet[at]

    def calc(self, at: str, value: Any) -> None:
        """Write a value or formula among the numbers; ValueError for a cell that has one already."""
        if self.data[at].value is not None and value is not None:
            raise ValueError(f"{self.data.title}!{at} is written twice: {self.data[at].value!r}, {value!r}")
        self.live.put(self.data[at], value)

    def row(self, letters: Iterable[str], row: int, values: Iterable[Any]) -> None:
        """Write a row of the numbers."""
        for letter, value in zip(letters, values, strict=True):
            self.calc(f"{letter}{row}", value)

    def heads(self, letters: Iterable[str], row: int, words: Iterable[str]) -> None:
        """Write the heads of the columns of a table."""
        for letter, head in zip(letters, words, strict=True):
            self.put(f"{letter}{row}", head, "head")

    def line(self, row: int, cells: Iterable[tuple[str, Any, str]], last: str = "R", first: str = "cell left") -> None:
        """Write a row of a table with a rule below: columns, values or formulas, and number formats."""
        letters: list[str] = []
        for letter, value, number in cells:
            self.put(f"{letter}{row}", value, "cell" if letters else first, number)
            letters.append(letter)
        self.rule(f"{letters[0]}{row}:{last}{row}")

    def rule(self, area: str, side: str = "bottom", weight: Any = "hair", colour: str = RULE) -> None:
        """Rule above or below the cells of a row."""
        drawn: Any = {side: Side(style=weight, color=colour)}
        for cell in self.sheet[area][0]:
            cell.border = Border(**drawn)

    def fill(self, question: str) -> None:
        """The grid of a front sheet, its question, and the way to the others."""
        sheet, view = self.sheet, self.sheet.sheet_view
        view.showGridLines, view.showRowColHeaders, view.zoomScale = False, False, 100
        for letter, width in _WIDTHS.items():
            sheet.column_dimensions[letter].width = width
        for row in range(1, last_row(sheet.title) + 1):
            sheet.row_dimensions[row].height = _HEIGHTS.get(row, _EVEN)
        self.put("B2", question, "title")
        words = "Fill in the yellow cells; leave auto where xlperf shall choose: its choice stands beside it."
        self.put("B3", words, "subtitle")
        tabs = _TABS if sheet.title in _TABS else (*_TABS[:-1], sheet.title)
        for letter, name in zip("HJMOQ", tabs, strict=True):
            beside = chr(ord(letter) + 1)
            look = "tab here" if name == sheet.title else "tab"
            words, cell = ("All sheets", "B1") if name == "start" else (name, "C6")
            self.put(f"{letter}2", f'=HYPERLINK("#\'{name}\'!{cell}","{words}")', look, last=f"{beside}2")
            self.rule(f"{letter}2:{beside}2", "bottom", "medium", NAVY)
        view.selection[0].activeCell = view.selection[0].sqref = "C6"
        sheet.print_area = f"A1:S{last_row(sheet.title)}"
        sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", 9
        sheet.page_setup.fitToWidth = sheet.page_setup.fitToHeight = 1
        sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)
        margins = sheet.page_margins
        margins.left = margins.right = margins.top = margins.bottom = 0.4
        sheet.print_options.horizontalCentered = True

    def form(self, kind: str) -> tuple[str, dict[str, str]]:
        """The form of a kind from row 5 on.

        Returns the range that a function takes for its form, and the cell of each column, both with the name of the
        sheet.
        """
        for row in range(5, last_row(self.sheet.title) + 1):
            for letter in "BCD":
                self.put(f"{letter}{row}", None, "label")
        cells = {}
        place = f"'{self.sheet.title}'!"
        rows = form_rows(kind)
        for row, own in enumerate(rows, start=5):
            if isinstance(own, str):
                self.put(f"B{row}", own or None, "group")
                continue
            column = table_schema(kind).by_name[own.column]
            self.put(f"B{row}", column.header, "label")
            number = number_of(own.value)
            is_number = column.kind == "number"
            last = f"D{row}" if not own.beside and len(own.value) > _LONG_ENTRY else ""
            value = number if is_number and number == number else own.value
            look = "input" if column.kind == "text" and own.beside else "input shrunk"
            self.put(f"C{row}", value, look, entry_format(column) if is_number else "", last)
            self.rule(f"C{row}:{last or f'C{row}'}", "bottom", "thin", _INPUT_RULE)
            cells[own.column] = f"{place}$C${row}"
            words = f'"{own.choices}"'
            self.validate(
                f"C{row}",
                DataValidation("list", formula1=words, allow_blank=True, showErrorMessage=False)
                if own.choices
                else column_validation(column, f"C{row}"),
            )
        self.entries = cells
        return f"{place}$B$5:$C${4 + len(rows)}", cells

    def validate(self, area: str, validation: DataValidation | None) -> None:
        """Give cells a drop-down or bounds."""
        if validation is not None:
            validation.add(area)
            self.sheet.add_data_validation(validation)

    def results(self, kind: str, area: str) -> dict[str, str]:
        """Every result of a form in columns A and B, from row 3 of the numbers; the cell of each."""
        by_name = {}
        self.calc("A1", f"{kind}: every result, and what charts are drawn from")
        for row, column in enumerate(results_of(kind).columns, start=3):
            self.calc(f"A{row}", column.header)
            asked = f'XLPERF_{kind.upper()}({area},"{column.name.replace("_", " ")}",catalog)'
            self.calc(f"B{row}", f'=IFERROR({asked},"")' if column.name == "reason" else f"={asked}")
            by_name[column.name] = f"{self.source}$B${row}"
        self.answers = by_name
        return by_name

    def again(
        self,
        columns: Sequence[Column],
        cells: Mapping[str, str],
        top: int,
        changed: Sequence[Mapping[str, Any]],
        left: int = 1,
    ) -> Callable[..., str]:
        """The form once more in rows below a row of headers, some entries changed: a question of each row.

        ``top``: first row. ``left``: number of the first column. Returns a function that calls for a result in words,
        of one row or of all rows.
        """
        letters = [get_column_letter(left + number) for number in range(len(columns))]
        for letter, column in zip(letters, columns, strict=True):
            self.calc(f"{letter}{top - 1}", column.header)
            for row, own in enumerate(changed, start=top):
                value = "" if column.name not in cells else given(cells[column.name])
                self.calc(f"{letter}{row}", own.get(column.name, value) or None)
        first, last, kind = letters[0], letters[-1], columns[0].table.upper()

        def asked(words: str, row: int | None = None) -> str:
            rows = (f"${top}", f"${top + len(changed) - 1}") if row is None else (row, row)
            area, heads = f"${first}{rows[0]}:${last}{rows[1]}", f"${first}${top - 1}:${last}${top - 1}"
            return f'XLPERF_{kind}({area},"{words}",catalog,{heads})'

        return asked

    def opening(self, form: str) -> None:
        """The sentence of a form, the notes beside its entries and its six tiles."""
        self.answer(shortened(self.answers["answer"]))
        self.beside(form, self.answers)
        cells = self.entries | self.answers
        rows = front_words(form)["tile"]
        self.tiles(
            [(row["label"], worded(row["value"], cells), row["number"], stated(row["words"], cells)) for row in rows]
        )

    def beside(self, kind: str, results: Mapping[str, str]) -> None:
        """Notes beside the entries: the chosen value, else a unit."""
        named = {name: engine_named(cell) if name == "software" else cell for name, cell in results.items()}
        for row, own in enumerate(form_rows(kind), start=5):
            if isinstance(own, Entry) and own.beside:
                words = own.beside
                if "|" in words:
                    words = f"={looked_up(words, self.entries[own.column], self.entries, self.live.columns)}"
                elif "{" in words:
                    words = unless_refused(worded(words, named))
                self.put(f"D{row}", words, "chosen")

    def answer(self, formula: str) -> None:
        """The sentence that answers, red if there is none or if a claim is impossible; written before all that asks
        whether there is an answer.
        """
        self.put("F5", formula, "answer", last="R6")
        bad = f'OR({REFUSED},ISNUMBER(SEARCH(" is impossible",$F$5)))'
        self.in_colour("F5:R6", bad, BAD_INK, BAD_FILL)

    def ruled(self, area: str, formula: str) -> None:
        """Rules below the rows of a table that have a content: where a formula, written for the first cell, is true."""
        look = DifferentialStyle(border=Border(bottom=Side(style="hair", color=f"FF{RULE}")))
        self.sheet.conditional_formatting.add(area, Rule(type="expression", dxf=look, formula=[formula]))

    def in_colour(self, area: str, formula: str, colour: str, fill: str = "") -> None:
        """Show cells bold in a colour if a formula, written for the first of them, is true."""
        look = DifferentialStyle(
            font=Font(bold=True, color=f"FF{colour}"), fill=PatternFill("solid", bgColor=f"FF{fill}") if fill else None
        )
        rule = Rule(type="expression", dxf=look, formula=[formula.lstrip("=")])
        self.sheet.conditional_formatting.add(area, rule)

    def tiles(self, own: Sequence[tuple[str, str, str, str]]) -> None:
        """Six answers in large type: label, formula, number format, note."""
        for number, (letter, (label, value, code, note)) in enumerate(zip("FHJMOQ", own, strict=True)):
            last = chr(ord(letter) + 1)
            self.put(f"{letter}8", label, "tile label", last=f"{last}8")
            look = "tile first" if number == 0 else "tile"
            self.put(f"{letter}9", unless_refused(value, DASH), look, code, f"{last}10")
            self.put(f"{letter}11", unless_refused(note or '""'), "tile note", last=f"{last}11")
            self.rule(f"{letter}8:{last}8", "top", "medium", BLUE if number == 0 else NAVY)

    def foot(self, numbers: str) -> None:
        """Below the form: the way to its numbers, on the sheet ``numbers``, and one verdict of all checks."""
        first, verdict, last = (last_row(self.sheet.title) - above for above in (2, 1, 0))
        words = "all numbers of this answer" if self.entries else "all numbers of the plans"
        self.put(f"B{first}", f'=HYPERLINK("#\'{numbers}\'!A1","{words}")', "link")
        words = f'"scenario: "&{SCENARIO}&IF({SCENARIO}="base",", change it"," prices and bands")'
        self.put(f"B{last}", f'=HYPERLINK("#start!{SCENARIO_CELL}",{words})', "link")
        self.in_colour(f"B{last}:D{last}", f'{SCENARIO}<>"base"', ORANGE)
        self.put(f"B{verdict}", f"={VERDICT}", "verdict", last=f"D{verdict}")
        self.in_colour(f"B{verdict}:D{verdict}", f'RIGHT($B${verdict},2)<>"ok"', BAD_INK, BAD_FILL)

    def heading(self, at: str, words: str, last: str) -> None:
        """A heading with a rule below."""
        self.put(at, words, "heading")
        self.rule(f"{at}:{last}{at[1:]}", "bottom", "thin")

    def how_sure(self, badge: str, lines: Sequence[str]) -> None:
        """The badge in its colour and lines of text, below a heading in row 29: the second beside the badge, the first
        below both, as it may be long.
        """
        self.heading("F29", "How sure", "K")
        self.put("F30", unless_refused(f'IF({badge}&""="","{DASH}",{badge}&"")', DASH), "badge", last="G30")
        for words, colour in BADGES:
            self.in_colour("F30:G30", f'$F$30="{words}"', "FFFFFF", colour)
        evidence, beside, *others = (*lines, '""')[: max(len(lines), 2)]
        self.put("F31", unless_refused(evidence), "text", last="K32")
        self.put("H30", unless_refused(beside), "text", last="K30")
        for number, formula in enumerate(others, start=33):
            self.put(f"F{number}", unless_refused(formula), "text", last=f"K{number}")

    def texts(self, words: str, formulas: Sequence[str], long: bool = False) -> None:
        """Texts below a heading in row 29 at the right, the first on two lines; if ``long``, all of them, and the last
        down to the foot.
        """
        self.heading("M29", words, "R")
        row = 30
        for number, formula in enumerate(formulas, start=1):
            last = row + 1 if number == 1 or long else row
            last = max(last, last_row(self.sheet.title)) if long and number == len(formulas) else last
            self.put(f"M{row}", unless_refused(formula), "text top" if long else "text", last=f"R{last}")
            row = last + 1

    def legend(self, first: str, last: str, words: str, colour: str) -> None:
        """A name of a series in its colour above a chart: programs order the names of a legend unlike their bars."""
        self.put(first, words, "tile note", last=last).font = Font(name=FONT, size=8, color=f"FF{colour}")

    def place(self, chart: Any, area: str, x: Axis, y: Axis, plot: Shares, legend: Shares | str = "") -> None:
        """Draw the axes of a chart and put it over cells."""
        for axis, own in ((chart.x_axis, x), (chart.y_axis, y)):
            look: dict[str, Any] = {"size": own.size, "ink": MUTED, "rule": (RULE, 0.75), "low": False}
            axes.draw_axis(axis, own.words, own.number, own.grid, **look)
            axis.delete = own.hidden
        charts.place_over(chart, self.sheet, area, plot, legend)

    def cells(self, column: str, first: int, last: int) -> Cells:
        """Cells of the numbers for a chart."""
        return Cells(self.data, column_index_from_string(column), first, last, self.live.values)

    def bars(
        self,
        names: str,
        rows: tuple[int, int],
        columns: str,
        colours: Sequence[str],
        number: str,
        *,
        lying: bool = True,
        gap: int = 40,
        stacked: bool = False,
        formats: bool = True,
        zeros: bool = False,
    ) -> Any:
        """Bars of columns of the numbers, over each other or stacked; the header row names the series.

        ``formats`` gives the cells the number format of the labels; 0 has a label with ``zeros``.
        """
        kind, grouping = "bar" if lying else "col", "stacked" if stacked else "clustered"
        chart = charts.bar_chart("", kind, None, grouping, 100, gap)
        first, last = rows
        for letters, colour in zip(columns.split(), colours, strict=True):
            labels, values = (self.cells(column, first + 1, last) for column in (names, letters))
            look = axes.area(colour, line("FFFFFF", 0.75) if colour else line())
            chart.series.append(charts.bar_series(self.cells(letters, first, first), labels, values, look))
            for row in range(first + 1, last + 1) if formats else ():
                self.data[f"{letters}{row}"].number_format = number if zeros else f"{number};;"
        if lying:
            chart.x_axis.scaling.orientation = "maxMin"
        chart.y_axis.scaling.min = 0
        return chart

    def points(
        self, x: str, y: str, rows: tuple[int, int], colour: str, marker: str = "none", dash: str = "", size: int = 12
    ) -> Points:
        """Points of columns of the numbers, the header in the first row: markers, or without one a line."""
        first, last = rows
        along, up = (self.cells(column, first + 1, last) for column in (x, y))
        width = 0.0 if marker != "none" else 1.25 if dash else 2.25
        header = self.cells(y, first, first)
        return Points(header, along, up, colour, marker, size, edge=1.0, width=width, dash=dash or None)


def scatter(own: Sequence[Points]) -> Any:
    """Lines and points over numbers from 0; the values of large points are shown."""
    chart = charts.scatter_chart(own)
    for series, entry in zip(chart.series, own, strict=True):
        if entry.marker != "none" and entry.size == 12:
            charts.label_values(series, "r", entry.colour, True)
    chart.x_axis.scaling.min = chart.y_axis.scaling.min = 0
    return chart
