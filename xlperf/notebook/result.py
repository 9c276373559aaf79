"""Results of notebooks: DataFrames that show their answer and main columns, and plot themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from xlperf.base.errors import printable
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import FLAGS, Part, shown
from xlperf.catalog.table import Table
from xlperf.explore.answers import Shown
from xlperf.page.tables import MOST_ROWS, card, table, text

if TYPE_CHECKING:
    from xlperf.notebook.plots import Plots

_STYLE = "<style scoped>td, th {text-align: left} td.number, th.number {text-align: right}</style>"


@dataclass
class Content:
    """A result before it becomes a DataFrame."""

    whole: list[Part]
    shown: list[Part]  # columns that a notebook shows
    words: str = ""
    notes: Sequence[str] = ()
    tables: Mapping[str, list[Part]] = field(default_factory=dict)
    card: Sequence[Shown] = ()  # shown instead of the columns
    found: bool = True
    plans: Table | None = None
    results: Table | None = None  # of the plans
    catalog: Catalog | None = None
    labels: tuple[pd.Index, pd.Index] | None = None  # of the DataFrame when it was made


class Result(pd.DataFrame):
    """Rows of a result, in the units of their headers, and the answer in words.

    A selection of rows or columns is a plain DataFrame.
    """

    _metadata: ClassVar[list[str]] = ["content"]
    content: Content

    @classmethod
    def of(cls, content: Content, inputs: bool = True, index: Any = None) -> Result:
        """The rows of a content, beside their inputs or without them."""
        whole = [part for part in content.whole if inputs or part[0].is_result]
        made = cls(frame_of_parts(whole, index))
        made.content = content
        content.labels = made.columns, made.index
        return made

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def answer(self) -> str:
        """The answer in words."""
        return self.content.words

    @property
    def notes(self) -> list[str]:
        """Remarks: trust, assumptions, advice, names that were read as other names."""
        return list(self.content.notes)

    @property
    def found(self) -> bool:
        """Whether the answer is yes: False if the command would end with exit code 1."""
        return self.content.found

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Tables beside the result, by name."""
        return {name: frame_of_parts(block) for name, block in self.content.tables.items()}

    @property
    def plot(self) -> Plots:
        """Plots: ``plot("roofline")``, ``"waterfall"``, ``"frontier"``, ``"bands"``, and the kinds of a DataFrame."""
        from xlperf.notebook.plots import Plots

        return Plots(self)

    @property
    def _is_edited(self) -> bool:
        """Whether rows or columns were added, removed or moved in place: then the frame shows itself."""
        labels = self.content.labels
        return labels is None or not (self.columns.equals(labels[0]) and self.index.equals(labels[1]))

    def __repr__(self) -> str:
        content = self.content
        if self._is_edited:
            return super().__repr__()
        rows = pd.DataFrame(content.card)[[*Shown._fields[1:]]] if content.card else frame_of_parts(content.shown)
        whole = "\n".join(filter(None, [content.words, rows.to_string(index=False, na_rep=""), *content.notes]))
        return "\n".join(map(printable, whole.split("\n")))

    def _repr_html_(self) -> str:
        content = self.content
        if self._is_edited:
            return str(pd.DataFrame(self).to_html(max_rows=MOST_ROWS))
        words = "<br>".join(map(text, content.words.split("\n")))
        shown = card(content.card) if content.card else table(content.shown)
        more = "".join(f"<p>{text(name)}</p>{table(block)}" for name, block in content.tables.items())
        notes = "<br>".join(map(text, content.notes))
        return f"<div>{_STYLE}<p><b>{words}</b></p>{shown}{more}<small>{notes}</small></div>"


def frame_of_parts(block: Sequence[Part], index: Any = None) -> pd.DataFrame:
    """Columns as a DataFrame, in the units of their headers; flags are True, False or NA."""
    columns: dict[str, object] = {}
    for column, values in block:
        if column.kind in FLAGS:
            flags = [None if value != value else value == 1.0 for value in values.tolist()]
            columns[column.header] = pd.Series(flags, dtype="boolean").array
        else:
            columns[column.header] = shown(column, values)
    return pd.DataFrame(columns, index=index)
