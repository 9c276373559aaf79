"""The command ``guide``: pages for the first hour with xlperf."""

from __future__ import annotations

from difflib import get_close_matches

import click

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import Command, examples
from xlperf.cli.output import say

_TOPICS = ("planner", "engineer", "architect")


@click.command(
    cls=Command,
    short_help="Read the guide: the first hour of a planner, an engineer, an architect.",
    epilog=examples("xlperf guide", "xlperf guide planner"),
)
@click.argument("topic", required=False)
def guide(topic: str | None) -> None:
    """Print a page of the guide; without TOPIC, the title of each page."""
    if topic is None:
        wide = max(map(len, _TOPICS))
        say(*(f"xlperf guide {name.ljust(wide)}  {_page(name)[0].removeprefix('# ')}" for name in _TOPICS))
        return
    name = topic.casefold()
    if name not in _TOPICS:
        near = get_close_matches(name, _TOPICS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; choose from {', '.join(_TOPICS)}"
        raise InputError(Fault("guide", f"no page {topic}{hint}"))
    say(*_page(name))


def _page(topic: str) -> list[str]:
    return resources.table(f"guide/{topic}.md").read_text(encoding="utf-8").splitlines()
