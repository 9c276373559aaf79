"""Tables as a page to send: findings in words, and each table below its charts."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

import numpy as np

from xlperf import __version__
from xlperf.base import resources
from xlperf.base.files import replaced
from xlperf.catalog.schema import Part, cells
from xlperf.page.answer import MOST_ROWS, Bar, bars, table, text


def write_tables(
    output: str, title: str, lines: Sequence[str], tables: Sequence[tuple[str, list[Part]]],
    charts: Sequence[str] | None = None,
) -> None:  # fmt: skip
    """Write tables as a page below a title and some sentences; the file is replaced when the page is complete.

    ``charts``: drawings above each table; a chart of its first result if there are none.
    """
    drawn = [_chart(block) for _, block in tables] if charts is None else charts
    template = resources.table("page/answer.html").read_text(encoding="utf-8")
    head = Template(template.partition("<body>")[0]).substitute(title=text(f"xlperf {__version__}: {title}"))
    body = [f"<h1>{text(title)}</h1>", *(f"<p>{text(line)}</p>" for line in lines)]
    for (name, block), above in zip(tables, drawn, strict=True):
        drawings = f'<div class="charts">{above}</div>' if above else ""
        body += [f"<h2>{text(name.capitalize())}</h2>", drawings, f'<div class="wide">{table(block)}</div>']
    with replaced(output) as temporary:
        page = "\n".join([f"{head}<body>", *filter(None, body), "</body>\n</html>\n"])
        temporary.write_text(page, encoding="utf-8", newline="\n")


def _chart(block: Sequence[Part]) -> str:
    """Bars of the first result, each with the names and the entries that differ between the rows; "" if none does."""
    numbers = [part for part in block if part[0].is_result and not part[0].is_text]
    results = [part for part in numbers if np.nanmax(part[1], initial=0.0) > 0.0]
    inputs = {column.words: cells(column, values[:MOST_ROWS]) for column, values in block if not column.is_result}
    named = {name: words for name, words in inputs.items() if len(set(words)) > 1}
    if not (results and named) or len(block[0][1]) < 2:
        return ""
    one, values = results[0]
    labels = [", ".join(filter(None, row)) for row in zip(*named.values(), strict=True)]
    drawn = np.nan_to_num(values[:MOST_ROWS]).tolist()
    return bars(f"{one.header} by {', '.join(named)}", list(map(Bar, labels, drawn, cells(one, values[:MOST_ROWS]))))
