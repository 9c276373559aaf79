"""Formulas of the front sheets with their values, for programs without the add-in.

A small evaluator of the functions in these sheets; a session answers worksheet functions of xlperf, as from a cell.
LibreOffice computes the same numbers (a test compares every cell).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from openpyxl.utils import get_column_letter, range_boundaries

from xlperf.addin.cells import CellError
from xlperf.addin.functions import PREFIX
from xlperf.addin.worker import Session
from xlperf.base.arrays import added
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.workbook.data_sheets import column_reference
from xlperf.workbook.package import Formulas

_TOKENS = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"]|"")*")|(?P<table>[a-z_]+\[(?:\[[^\]]+\]|[^\[\]]+)\])|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)
    |(?P<ref>(?:'[^']+'!|\w+!)?\$?[A-Z]{1,2}\$?\d+(?::\$?[A-Z]{1,2}\$?\d+)?)(?![\w(])
    |(?P<call>[A-Z_]+(?=\())|(?P<name>[A-Za-z_]\w*)|(?P<mark><>|<=|>=|[-+*/&=<>(),^]))""",
    re.VERBOSE,
)
_MISSING = CellError("#N/A", "")
_WRONG = CellError("#VALUE!", "")


class _Failed(Exception):
    def __init__(self, error: CellError) -> None:
        self.error = error


@dataclass
class Live:
    """Cells of front sheets as written, formulas with their values.

    - ``formulas``: of the workbook.
    - ``catalog``: content of the cell named ``catalog``; without one no values are computed.
    - ``columns``: cells of the columns of tables that formulas name, by their reference.
    - ``known``: whether formulas have values without a catalog too.
    """

    formulas: Formulas
    catalog: Catalog | None
    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    session: Session = field(default_factory=Session)
    known: bool = False

    def put(self, cell: Any, value: Any) -> None:
        """Set a cell; a text that starts with ``=`` becomes a formula with its value."""
        if not (isinstance(value, str) and value.startswith("=")):
            cell.value = value
            self.values[cell.parent.title, cell.coordinate] = value
            return
        cell.value, cell.data_type = value, "f"
        if self.catalog is None and not self.known:
            return
        result = self.value_of(value[1:], cell.parent.title)
        self.values[cell.parent.title, cell.coordinate] = result
        self.formulas.values.setdefault(cell.parent.title, {})[cell.coordinate] = 0.0 if result is None else result

    def styled(self, cell: Any, formula: str, style: str = "xlperf computed", number: str = "") -> Any:
        """Set a cell to a formula in one of the styles of the workbook; its value."""
        self.formulas.put(cell, formula, None, style, number)
        self.put(cell, formula)
        return self.values.get((cell.parent.title, cell.coordinate))

    def text(self, cell: Any, words: str | None) -> None:
        """Set a cell to a text, which stays one whatever it starts with."""
        cell.value, cell.data_type = words, "s" if words else "n"
        self.values[cell.parent.title, cell.coordinate] = words

    def value_of(self, formula: str, sheet: str) -> Any:
        """Value of a formula on a sheet.

        >>> Live(Formulas(), None).value_of('IF(2>1,"a"&TEXT(1234.5,"#,##0"),0)', "s")
        'a1,234'
        """
        try:
            return _one(_Parser(self, formula, sheet).parsed())
        except _Failed as failed:
            return failed.error

    def area(self, reference: str, sheet: str) -> list[list[Any]]:
        """Values of a range."""
        name, _, cells = reference.rpartition("!")
        edges: Any = range_boundaries(cells)
        left, top, right, bottom = edges
        place = name.strip("'") or sheet
        return [
            [self.values.get((place, f"{get_column_letter(column)}{row}")) for column in range(left, right + 1)]
            for row in range(top, bottom + 1)
        ]

    def called(self, name: str, arguments: Sequence[Any]) -> Any:
        """Block or value of a worksheet function of xlperf, with the catalog of the workbook."""
        assert self.catalog is not None
        self.session.install(self.catalog)
        return self.session.call(name, [None if one is _CATALOG else one for one in arguments])


_PLACE = re.compile(r"\{(\w+)([^:}]*)(?::([^}]*))?\}")


def worded(words: str, cells: Mapping[str, str]) -> str:
    """A formula that joins words and cells, scaled or in a number format if stated.

    >>> worded("{a}: {b/1000:0.0} s", {"a": "A1", "b": "B1"})
    'A1&": "&TEXT(B1/1000,"0.0")&" s"'
    """
    parts, end = [], 0
    for result in _PLACE.finditer(words):
        parts += [f'"{words[end : result.start()]}"'] if result.start() > end else []
        cell = f"{cells[result[1]]}{result[2]}"
        parts.append(f'TEXT({cell},"{result[3]}")' if result[3] else cell)
        end = result.end()
    return "&".join([*parts, f'"{words[end:]}"'] if words[end:] else parts)


_ROW = re.compile(r"\{(\w+)\.(\w+) (\w+)(?: (\w+))?([*]\d+)?:([^}]*)\}")


def looked_up(words: str, own: str, entries: Mapping[str, str], known: Mapping[str, Any]) -> str:
    """Formula of the value that a sheet has for a blank entry: ``{prices.energy_price accelerator:0.000}`` is the
    column of the row that another entry names. Behind ``|``: words where the sheet has none; a stated entry has none.

    ``own``: cell of the entry. ``known``: columns of tables that the workbook has.
    """
    said, _, without = words.partition("|")
    parts = _ROW.split(said)
    kind, name, key, part, scale, code = parts[1:7]
    sought = entries[key]
    value = _of_domain(name, sought, part, known) if part else _of_row(kind, name, sought, known)
    if kind == "prices" and "payment" in entries:
        owned = _of_row("servers", name, sought, known) if name in table_schema("servers").by_name else value
        value = f'IF({entries["payment"]}="own",{owned},{value})'
    shown = f'"{parts[0]}"&TEXT(({value}){scale or ""},"{code}")&"{parts[7]}"'
    return f'IF(ISNUMBER({own}),"",IFERROR({shown},"{without}"))'


def _of_row(kind: str, name: str, sought: str, known: Mapping[str, Any]) -> str:
    schema = table_schema(kind)
    column, key = schema.by_name[name], schema.by_name["accelerator"] if kind == "servers" else schema.key
    cells, keys = column_reference(column), column_reference(key)
    if cells not in known or keys not in known:
        return "NA()"
    cell = f"INDEX({cells},MATCH({sought},{keys},0))"
    return f"IF({cell}=0,{column.default or 'NA()'},{cell})"


def _of_domain(name: str, fleet: str, domain: str, known: Mapping[str, Any]) -> str:
    """Value of a column of failures, of the row of a fleet and a domain."""
    cells, *keys = (column_reference(table_schema("failures").by_name[own]) for own in (name, "fleet", "domain"))
    total = f'SUMIFS({cells},{keys[0]},{fleet},{keys[1]},"{domain}")'
    return f"IF({total}=0,NA(),{total})" if cells in known else "NA()"


_LEVELS = (("=", "<>", "<", ">", "<=", ">="), ("&",), ("+", "-"), ("*", "/"), ("^",))
"""Operations by precedence, those that bind least first."""
_CATALOG = object()


class _Parser:
    """Recursive descent over one formula."""

    def __init__(self, live: Live, formula: str, sheet: str) -> None:
        self.live, self.sheet = live, sheet
        self.tokens = list(_scanned(formula))
        self.at = 0

    def parsed(self) -> Any:
        result = self.binary()
        assert self.at == len(self.tokens), f"cannot read the formula behind {self.tokens[: self.at]}"
        return result

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] == "mark" else ""

    def taken(self) -> tuple[str, str]:
        self.at += 1
        return self.tokens[self.at - 1]

    def binary(self, level: int = 0) -> Any:
        """Operations of a level of precedence, whose operands are of the next level."""
        if level == len(_LEVELS):
            return self.operand()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            mark = self.taken()[1]
            left = _OPERATIONS[mark](_one(left), _one(self.binary(level + 1)))
        return left

    def operand(self) -> Any:
        kind, text = self.taken()
        if kind == "text":
            return text[1:-1].replace('""', '"')
        if kind == "number":
            return float(text)
        if kind == "ref":
            area = self.live.area(text.replace("$", ""), self.sheet)
            return area if ":" in text else area[0][0]
        if kind == "table":
            return [[cell] for cell in self.live.columns[text]]
        if kind == "name":
            assert text == "catalog", text
            return _CATALOG
        if kind == "call":
            return self.call(text)
        if text == "-":
            return -_number(_one(self.operand()))
        assert text == "(", text
        result = self.binary()
        assert self.taken()[1] == ")"
        return result

    def call(self, name: str) -> Any:
        starts = self.spans()
        if name == "IF":
            yes = bool(self.part(starts[0]))
            return self.part(starts[1] if yes else starts[2])
        if name == "IFERROR":
            try:
                return _one(self.part(starts[0]))
            except _Failed:
                return self.part(starts[1])
        arguments = [None if first == last else self.part((first, last)) for first, last in starts]
        return self.live.called(name, arguments) if name.startswith(PREFIX) else _FUNCTIONS[name](*arguments)

    def spans(self) -> list[tuple[int, int]]:
        """Tokens of each argument of a call; the parser goes behind it."""
        self.at += 1
        deep, first, result = 1, self.at, []
        while deep:
            kind, text = self.taken()
            if kind == "mark":
                deep += (text == "(") - (text == ")")
                if deep == 0 or (deep == 1 and text == ","):
                    result.append((first, self.at - 1))
                    first = self.at
        return result

    def part(self, span: tuple[int, int]) -> Any:
        own = _Parser(self.live, "", self.sheet)
        own.tokens = self.tokens[slice(*span)]
        return own.parsed()


def _scanned(formula: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(formula):
        match = _TOKENS.match(formula, at)
        assert match is not None and match.lastgroup, f"cannot read {formula[at:]}"
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _one(value: Any) -> Any:
    """A single value; an error ends the formula."""
    while isinstance(value, list):
        value = value[0]
    if isinstance(value, CellError):
        raise _Failed(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise _Failed(_WRONG) from None
    return float(value or 0.0)


def _words(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _divided(left: Any, right: Any) -> float:
    if _number(right) == 0.0:
        raise _Failed(CellError("#DIV/0!", ""))
    return _number(left) / _number(right)


def _of_numbers(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    return operation(_number(left), _number(right))


def _same(left: Any, right: Any) -> bool:
    blank = {None: "" if isinstance(left or right, str) or "" in (left, right) else 0.0}
    left, right = blank.get(left, left), blank.get(right, right)
    return left.casefold() == right.casefold() if isinstance(left, str) and isinstance(right, str) else left == right


_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "^": operator.pow, "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda a, b: _words(a) + _words(b),
    "/": _divided,
    "=": _same,
    "<>": lambda a, b: not _same(a, b),
    **{mark: partial(_of_numbers, operation) for mark, operation in _OF_NUMBERS.items()},
}


def _shown(number: Any, code: Any) -> str:
    """A number as TEXT writes it: decimals, thousands, per cent."""
    code, value = str(code), _number(_one(number))
    decimals = len(re.sub(r"[^0]", "", code.partition(".")[2]))
    thousands = "," if "," in code else ""
    if "%" in code:
        value *= 100.0
    words = f"{value:{thousands}.{decimals}f}"
    return f"{words}{' ' * (' %' in code)}%" if "%" in code else words


def _flat(values: Sequence[Any]) -> list[Any]:
    results: list[Any] = []
    for value in values:
        results += _flat(value) if isinstance(value, list) else [value]
    return results


def _numbers(*values: Any) -> list[float]:
    flat = _flat(values)
    for value in flat:
        _one(value)
    return [float(value) for value in flat if isinstance(value, float | int)]


def _found(value: Any, area: list[list[Any]], _: Any = 0) -> float:
    flat = _flat(area)
    for place, own in enumerate(flat):
        if not isinstance(own, CellError) and own is not None and _same(own, _one(value)):
            return place + 1.0
    raise _Failed(_MISSING)


def _ranked(values: list[float], place: int) -> float:
    if not 1 <= place <= len(values):
        raise _Failed(CellError("#NUM!", ""))
    return sorted(values)[place - 1]


def _indexed(area: Any, row: Any, column: Any = 1.0) -> Any:
    rows = area if isinstance(area, list) else [[area]]
    if len(rows) == 1 and len(rows[0]) == 1:
        _one(rows[0][0])
    across = column is not None and len(rows) > 1
    try:
        return rows[int(_number(row)) - 1][int(_number(column)) - 1] if across else _flat(rows)[int(_number(row)) - 1]
    except IndexError:
        raise _Failed(CellError("#REF!", "")) from None


def _counted(arguments: Sequence[Any]) -> float:
    """Rows whose numbers keep every criterion, such as ``<=5``; a cell without a number keeps none."""
    kept: list[bool] = []
    for area, criterion in zip(arguments[::2], arguments[1::2], strict=True):
        match = re.fullmatch(r"(<=|>=|<|>)(.+)", _words(_one(criterion)))
        assert match is not None, criterion
        compare, bound = _OPERATIONS[match[1]], float(match[2])
        own = [isinstance(one, float | int) and bool(compare(one, bound)) for one in _flat(area)]
        kept = [one and other for one, other in zip(kept or [True] * len(own), own, strict=True)]
    return float(sum(kept))


def _kept(area: list[list[Any]], criteria: Sequence[Any]) -> list[Any]:
    """Cells of the rows that equal every criterion."""
    pairs = [(_flat(own), _one(value)) for own, value in zip(criteria[::2], criteria[1::2], strict=True)]
    return [cell for row, cell in enumerate(_flat(area)) if all(_same(own[row], value) for own, value in pairs)]


def _absent() -> Any:
    raise _Failed(_MISSING)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "TEXT": _shown,
    "MAX": lambda *v: max(_numbers(*v), default=0.0),
    "MIN": lambda *v: min(_numbers(*v), default=0.0),
    "SMALL": lambda area, k: _ranked(_numbers(area), int(_number(k))),
    "INT": lambda value: float(math.floor(_number(_one(value)))),
    "N": lambda value: value if isinstance(value, float | int) else 0.0,
    "ROWS": lambda area: float(len(area)),
    "COUNTA": lambda *v: float(sum(value is not None for value in _flat(v))),
    "SUM": lambda *v: added(_numbers(*v)),
    "SUMIFS": lambda area, *v: added(_numbers(*_kept(area, v))),
    "COUNT": lambda *v: float(sum(isinstance(one, float | int) for one in _flat(v))),
    "MATCH": _found,
    "INDEX": _indexed,
    "CHAR": lambda code: chr(int(code)),
    "ROW": lambda: 0.0,
    "NA": lambda *_: _absent(),
    "ISNUMBER": lambda value: isinstance(value, float | int) and not isinstance(value, bool),
    "NOT": lambda value: not value,
    "ABS": lambda value: abs(_number(_one(value))),
    "LEN": lambda words: float(len(_words(_one(words)))),
    "LEFT": lambda words, count=1.0: _words(_one(words))[: int(count)],
    "RIGHT": lambda words, count=1.0: _words(_one(words))[-int(count) :],
    "AND": lambda *v: all(map(bool, v)),
    "OR": lambda *v: any(map(bool, v)),
    "HYPERLINK": lambda _, words: words,
    "COUNTIFS": lambda *v: _counted(v),
    "COUNTIF": lambda area, value: float(sum(_same(own, value) for own in _flat(area) if own is not None)),
}
