"""A workbook as text, one line per row, so that ``git diff`` and ``grep`` can read it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from xlperf.base.errors import printable
from xlperf.catalog.sheets import Cells, Formulas, Workbook, column_letters
from xlperf.catalog.values import DateNumber, ErrorValue, Unsaved


def show(path: str | os.PathLike[str]) -> str:
    """Sheets of a workbook as text.

    A line names each sheet and its Excel tables; below it every row that holds anything, cells separated by tabs,
    formulas as formulas. The same workbook content gives the same text, whichever program saved it.

    Parameters
    ----------
    path : path-like
        Workbook.

    Returns
    -------
    str
        Lines that end in a newline each.

    Raises
    ------
    InputError
        In one line, when the file cannot be read.
    """
    return "".join(f"{line}\n" for line in shown_lines(path))


def shown_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Lines of :func:`show`, one at a time, as a cell far to the right makes a long one; the file is read before."""
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
        yield from _rows(cells, texts)


def _rows(cells: Cells, formulas: dict[tuple[int, int], str]) -> Iterator[str]:
    for row in sorted(cells):
        texts = {
            column: _escaped(formulas[row, column]) if (row, column) in formulas else _text(value)
            for column, value in cells[row].items()
        }
        filled = [column for column, text in texts.items() if text]
        if filled:
            yield "\t".join(texts.get(column, "") for column in range(1, max(filled) + 1))


def _text(value: object) -> str:
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, DateNumber):
        return value.text
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, ErrorValue):
        return _escaped(value.text)
    assert isinstance(value, Unsaved)
    return _escaped(f"={value.formula}")


def _escaped(text: str) -> str:
    """A text as one cell of one line: backslashes, tabs and newlines are written out, and other control characters."""
    return printable(text.replace("\\", "\\\\").replace("\t", "\\t").replace("\r", "").replace("\n", "\\n"))


def _formula_texts(formulas: Formulas) -> dict[tuple[int, int], str]:
    """Formulas as a person sees them; those that share a text are shown moved to their own cells."""
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
