"""The questions as data: rows of ``questions.csv`` beside this module.

A question is a form (``schema/<form>.csv``, first values in ``workbook/forms.csv``) with its results
(``<form>_results.csv``) and tables beside them (``<form>_<table>.csv``). Of the results, the view ``answer`` is the
card of a terminal, ``tile`` the large numbers and ``note`` the texts of its sheet; of a table, ``front`` is what its
sheet shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from xlperf.base import resources


@dataclass(frozen=True)
class Question:
    """A question and its views.

    ``sheet``: its front sheet. ``words``: the title there. ``sliders``: entries that a slider of a page may move: the
    first with a number. ``tables``: titles of the tables beside the answer; sheets show the first. ``chart``:
    ``line``, ``bars``, ``stacked`` or ``lying`` bars and columns of that table, the abscissa first. ``chart_words``:
    its title, "" by its columns. ``reads``: catalog sheets of this question alone.
    """

    form: str
    sheet: str
    words: str
    sliders: tuple[tuple[str, ...], ...]
    tables: Mapping[str, str]
    chart: tuple[str, ...]
    chart_words: str
    reads: tuple[str, ...]

    def table(self, name: str) -> str:
        """Schema of a table beside the answer.

        >>> questions()["sessions"].table("tiers")
        'sessions_tiers'
        """
        return f"{self.form}_{name}"


@cache
def questions() -> dict[str, Question]:
    """The questions by form.

    >>> questions()["serve"].sliders
    (('users', 'request_rate'), ('speed_per_user',))
    """
    known = {}
    for row in resources.rows("catalog/questions.csv"):
        chart, _, chart_words = row["chart"].partition(" = ")
        tables = [part.split(" = ") for part in row["tables: name = words"].split("; ") if part]
        known[row["form"]] = Question(
            row["form"], row["sheet"], row["question"],
            tuple(tuple(names.split("|")) for names in row["sliders"].split()),
            dict(tables), tuple(chart.split()), chart_words, tuple(row["reads"].split()),
        )  # fmt: skip
    return known
