"""Groups of the sheets, and the rows of the sheet ``start`` that follow from the length of their list there."""

from __future__ import annotations

from dataclasses import dataclass

from xlperf.base import resources

INDEX_TOP = 4
"""Row of the first heading of the list. [-]"""


@dataclass(frozen=True)
class SheetGroup:
    """Sheets that belong together: the colour of their tabs, and where the sheet ``start`` lists them."""

    words: str
    colour: str
    place: str
    sheets: tuple[str, ...]
    questions: tuple[str, ...]


def sheet_groups() -> list[SheetGroup]:
    """The groups in the order of the tabs.

    >>> sheet_groups()[0].sheets[:3]
    ('Serve', 'Train', 'Build a chip')
    """
    return [
        SheetGroup(
            row["group"], row["colour"], row["place"], tuple(row["sheets"].split("|")), tuple(row["words"].split("|"))
        )
        for row in resources.rows("workbook/sheet_groups.csv")
    ]


def index_tops() -> dict[str, int]:
    """First row of each part of the list, and, as ``end``, the first row below all parts."""
    lengths = {"top": 0, "left": 0, "right": 0}
    for group in sheet_groups():
        lengths[group.place] += len(group.sheets) + 1
    below = INDEX_TOP + lengths["top"]
    return {"top": INDEX_TOP, "left": below, "right": below, "end": below + max(lengths["left"], lengths["right"])}


_END = index_tops()["end"]
CATALOG_CELL, SCENARIO_CELL = f"C{_END + 7}", f"C{_END + 8}"
SCENARIO = f"start!$C${_END + 8}"
"""Cell of the switch between the cases of prices and bands, on the sheet start and from others."""
STEPS_TOP, CARD_TOP, LEGEND_TOP, CHOICES_TOP = _END, _END + 13, _END + 36, _END + 44
"""Rows of the parts of the sheet start below the list. [-]"""
