"""Pages of the guide from data, and printed output in the others: ``python tests/support/guide_pages.py``.

``functions.md`` follows from the registry of worksheet functions, ``columns.md`` from the schema of the sheets,
``equations.md`` from the docstrings of the formulas. In every other page a block ``console`` shows commands and the
first lines that they print, a block ``python`` code and its output, and a block with a title is a file.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import contract

from xlperf.addin.functions import Argument, Function, functions
from xlperf.base import resources
from xlperf.catalog.schema import EVERY_TABLE, FORMS, PLAN_TABLES, Column, schema

GUIDE = resources.table("guide")
ROOMS = ("hardware", "network", "model", "plan", "training", "serving", "cost")
_BLOCK = re.compile(r'^```(console|python|(?:csv|json) title="([\w.]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_MORE = "..."
"""Last line of an output whose end a page leaves out."""
Run = Callable[[list[str]], str]
"""A command, from its words without ``xlperf`` to its standard output."""


def functions_page() -> str:
    """All worksheet functions with arguments and examples."""
    known = functions()
    answers = [one for one in known.values() if one.answer not in ("value", "equation")]
    formulas = [one for one in known.values() if one.answer == "equation"]
    results = [one for one in known.values() if one.answer == "value"]
    return _page(
        "Functions: what a cell can ask",
        "A name in braces in an example is a range of cells: `{training}` and `{inference}` are plans, `{networks}` is "
        "a sheet with its header. The sheet *functions* of the workbook has the same examples with real ranges. "
        "Arguments in `[ ]` may be left out.",
        "## Plans, hardware and questions",
        *(entry for one in answers for entry in _function(one)),
        "## Equations of cost",
        *(entry for one in formulas for entry in _function(one)),
        "## Results of a plan",
        "Each takes `(plan, [catalog], [header])` and returns one cell per plan.",
        _list(f"`{one.name}`: {one.doc}" for one in results),
    )


def _function(function: Function) -> Iterator[str]:
    yield f"### {function.name}"
    yield f"`{function.call}`"
    yield function.doc
    yield f"Example: `={function.name}({function.arguments_of_example})`"
    yield _list(_argument(argument) for argument in function.arguments)


def _argument(argument: Argument) -> str:
    optional = " (may be left out)" if argument.optional else ""
    return f"`{argument.name}`{optional}: {argument.doc}"


def columns_page() -> str:
    """All columns of all sheets with unit, bounds, default and meaning."""
    titles = {row["sheet"]: row["title"] for row in resources.rows("workbook/data_sheets.csv")}
    entries = []
    order = [*PLAN_TABLES, *(f"{kind}_results" for kind in PLAN_TABLES), *EVERY_TABLE, *FORMS]
    for name in dict.fromkeys((*order, *schema())):
        table = schema()[name]
        words = name.replace("_", " ")
        entries.append(f"## {words}: {titles[name]}" if name in titles else f"## {words}")
        entries.append(_list(map(_column, table.columns)))
    return _page(
        "Columns: every header of every sheet",
        "The unit in a header may be another of the same dimension: a column `memory bandwidth (GB/s)` is read as well "
        "as `memory bandwidth (TB/s)`. A header without a unit means the unit below. *auto*: a search chooses the "
        "value if the cell says `auto`.",
        *entries,
    )


def _column(column: Column) -> str:
    facts = []
    if column.kind == "number":
        facts.append(column.bounds_text if column.bounds else "a number")
    elif column.entries:
        facts.append(f"one of {', '.join(column.entries)}")
    elif column.kind == "reference":
        facts.append(f"a name of the sheet {column.reference}")
    elif column.kind == "result-flag":
        facts.append("yes or no")
    elif column.kind != "result":
        facts.append("text")
    if column.required:
        facts.append("required")
    if column.instead:
        facts.append(f"required without {column.instead.replace('_', ' ')}")
    if column.default:
        facts.append(f"default {column.default}")
    if column.may_be_auto and not column.entries:
        facts.append("auto")
    details = f" ({'; '.join(facts)})" if facts else ""
    return f"**{column.header}**{details}: {column.meaning if column.meaning.endswith('.') else column.meaning + '.'}"


def equations_page() -> str:
    """All formulas on arrays with equation, parameters and reference, by room and module."""
    entries = []
    formulas = sorted(contract.formulas().items(), key=lambda item: ROOMS.index(item[0].split(".")[0]))
    for module, group in groupby(formulas, key=lambda item: item[0].rpartition(".")[0]):
        room, _, name = module.partition(".")
        summary = (importlib.import_module(f"xlperf.equations.{module}").__doc__ or "").strip().splitlines()[0]
        entries += [f"## {room}: {name.replace('_', ' ').replace('.', ', ')}", summary]
        for full, function in group:
            entries += _equation(full.rpartition(".")[2], contract.documentation(function))
    return _page(
        "Equations: every formula with its reference",
        "A formula is a plain function on arrays, `xlperf.equations.ROOM.MODULE.NAME`. Units are in `[ ]`; `[-]` is a "
        "pure number. *By definition* needs no source; *heuristic, this work* has none.",
        *entries,
    )


def _equation(name: str, documentation: str) -> Iterator[str]:
    yield f"### {name}"
    text = re.split(r"^\w+\n-+$", documentation, maxsplit=1, flags=re.MULTILINE)[0]
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        if paragraph.startswith(">>>"):
            yield _example(paragraph)
            continue
        words = re.sub(r" ?\[\d\]_", "", " ".join(paragraph.split()))
        yield (
            f"$$ {words.removeprefix('.. math::').strip()} $$"
            if words.startswith(".. math::")
            else words.replace("``", "`")
        )
    parameters = contract.section(documentation, "Parameters")
    returned = contract.section(documentation, "Returns")
    yield _list(
        (
            *(f"`{entry.name}`: {entry.text}" for entry in parameters),
            *(f"returns {'' if _unnamed(entry) else f'`{entry.name}`: '}{entry.text}" for entry in returned),
        )
    )
    reference = re.search(r"^References\n-+\n(.*?)(?=\n\n\S|\Z)", documentation, re.MULTILINE | re.DOTALL)
    if reference:
        sources = re.split(r"^\.\. \[\d+\] ", reference[1], flags=re.MULTILINE)[1:]
        yield "Reference: " + " ".join(" ".join(source.split()) for source in sources)


def _example(doctest: str) -> str:
    """A doctest in a line: what it computes, its statements, and what the last one gives."""
    lines = doctest.splitlines()
    statements = [line[4:].partition("  # ") for line in lines if line.startswith((">>>", "..."))]
    results = [line for line in lines if not line.startswith((">>>", "..."))]
    words = "".join(f", {comment}" for _, _, comment in statements if comment)
    return f"Example{words}: `{'; '.join(code for code, *_ in statements)}` gives `{' '.join(results)}`."


def _unnamed(entry: contract.Entry) -> bool:
    return entry.name in ("Array", "Numeric", "numeric", "")


def _list(entries: Any) -> str:
    return "\n".join(f"- {' '.join(entry.split())}" for entry in entries)


def _page(title: str, *paragraphs: str) -> str:
    made = "Made from the data of xlperf by `python tests/support/guide_pages.py`: edit the data, not this page."
    return "\n\n".join((f"# {title}", made, *filter(None, paragraphs))) + "\n"


MADE: Mapping[str, Callable[[], str]] = {
    "functions": functions_page,
    "columns": columns_page,
    "equations": equations_page,
}
"""Pages that are made from data, by name."""


def with_outputs(text: str, run: Run) -> str:
    """A page with what its commands and its Python print now, as many lines of it as the page shows.

    Files of the page are written into the working folder.
    """
    session: dict[str, Any] = {}

    def renewed(block: re.Match[str]) -> str:
        kind, file, body = block.groups()
        if file:
            Path(file).write_text(body, encoding="utf-8")
        else:
            body = _python(body, session) if kind == "python" else _console(body, run)
        return f"```{kind}\n{body}```"

    return _BLOCK.sub(renewed, text)


def _console(block: str, run: Run) -> str:
    first, *entries = re.split(r"^\$ ", block, flags=re.MULTILINE)
    if first or not entries:
        raise ValueError(f"a console block starts with $: {block}")
    return "".join(_entry(entry, run) for entry in entries)


def _entry(entry: str, run: Run) -> str:
    command, _, shown = entry.partition("\n")
    name, *words = shlex.split(command)
    if name != "xlperf":
        raise ValueError(f"not a command of xlperf: {command}")
    return f"$ {command}\n{_as_long(run(words), shown)}"


def _as_long(output: str, shown: str) -> str:
    """The lines of an output that are shown; all of it if none of them is an ellipsis.

    An ellipsis leaves lines out, up to the line that begins as the next line shown: with its label, which two spaces
    or a colon end.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    parts = [list(group) for more, group in groupby(shown.splitlines(), key=_MORE.__eq__) if not more]
    if _MORE not in shown.splitlines():
        return "".join(f"{line}\n" for line in lines)
    excerpt = lines[: len(parts[0])]
    for part in parts[1:]:
        start = next(row for row, line in enumerate(lines) if _label(line) == _label(part[0]))
        excerpt += [_MORE, *lines[start : start + len(part)]]
    if shown.splitlines()[-1] == _MORE:
        excerpt.append(_MORE)
    return "".join(f"{line}\n" for line in excerpt)


def _label(line: str) -> str:
    return re.split(r"  |:", line.strip(), maxsplit=1)[0]


def _python(block: str, session: dict[str, Any]) -> str:
    """A block of Python; a comment ``#: `` below a statement is a line that it prints."""
    code = [line for line in block.splitlines() if not line.startswith("#: ")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(code), session)  # the guide's own code
    shown = [f"#: {line.rstrip()}" for line in printed.getvalue().splitlines()]
    return "".join(f"{line}\n" for line in (*code, *shown))


def written_pages() -> list[str]:
    """Names of the pages that are written by hand."""
    return sorted({path.stem for path in GUIDE.glob("*.md")} - set(MADE))


def _in_process(words: list[str]) -> str:
    command = [sys.executable, "-m", "xlperf", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr}")
    return done.stdout


def main(names: list[str]) -> None:
    """Make the pages anew: those named, or all."""
    for name, made in MADE.items():
        if not names or name in names:
            (GUIDE / f"{name}.md").write_text(made(), encoding="utf-8")
    for name in written_pages():
        if not names or name in names:
            path = GUIDE / f"{name}.md"
            before = path.read_text(encoding="utf-8")
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                path.write_text(with_outputs(before, _in_process), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(GUIDE.parents[1]))
    main(sys.argv[1:])
