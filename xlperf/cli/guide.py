"""The command ``guide``: its pages, or the parts of a page that have some words."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import accumulate, groupby

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.cli.command import command
from xlperf.cli.output import say

_TOPICS = (
    "start",
    "planner",
    "engineer",
    "architect",
    "sheets",
    "columns",
    "functions",
    "glossary",
    "equations",
    "accuracy",
    "questions",
    "extend",
    "changes",
)
_SHORT = 16  # lines of a section that is printed whole if some of it is asked for


@command(
    "Read the guide: first hours, sheets, columns, functions, equations, accuracy.",
    "xlperf guide",
    "xlperf guide start",
    "xlperf guide columns 'micro batch size'",
)
def guide(topic: str | None, words: str | None) -> None:
    """Print a page of the guide; without TOPIC, the title of each page; with WORDS, the parts that have them."""
    if topic is None:
        wide = max(map(len, _TOPICS))
        say(*(f"xlperf guide {name.ljust(wide)}  {_page(name)[0].removeprefix('# ')}" for name in _TOPICS))
        return
    name = topic.casefold()
    if name not in _TOPICS:
        near = get_close_matches(name, _TOPICS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(_TOPICS)}"
        raise InputError(Fault("guide", f"no page {topic}{hint}"))
    lines = _page(name) if words is None else _parts(_page(name), words)
    if not lines:
        raise InputError(Fault("guide", f"the page {name} has no {words}"))
    say(*lines)


def _page(topic: str) -> list[str]:
    return resources.table(f"guide/{topic}.md").read_text(encoding="utf-8").splitlines()


def _parts(page: list[str], words: str) -> list[str]:
    """Short sections that have the words; of long sections the heading and the lines that have them."""
    numbers = accumulate(line.startswith("#") for line in page)
    sections = [
        [line for _, line in group] for _, group in groupby(zip(numbers, page, strict=True), lambda pair: pair[0])
    ]
    parts = []
    for heading, *body in sections:
        lines = [line for line in body if words.casefold() in line.casefold()]
        whole = len(body) <= _SHORT and (lines or words.casefold() in heading.casefold())
        parts += [heading, *body] if whole else [heading, *lines, ""] if lines else []
    return parts
