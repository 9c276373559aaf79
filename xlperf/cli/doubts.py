"""Options of choices under uncertainty: robust order of plans, uncertain inputs, limits kept with a probability."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.options import vary_line

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.explore.found import Search
    from xlperf.explore.robust import Robust


class Doubts(NamedTuple):
    """How plans are ordered under uncertainty: by which measure, with which uncertain inputs, in how many draws."""

    measure: str | None
    uncertain: tuple[str, ...]
    draws: int
    seed: int

    def ordered(self, found: Search, catalog: Catalog, top: int | None, processes: int) -> Robust:
        """The plans of a search in robust order where that is asked for."""
        from xlperf.explore.robust import Robust, robust
        from xlperf.explore.vary import read_variation

        if self.measure is None or not found.found:
            return Robust(found, [], found.words)
        asked = read_variation(found.plans.kind, [vary_line(text) for text in self.uncertain], "--uncertain")
        if asked.auto or asked.values:
            name = (*asked.auto, *asked.values)[0].replace("_", " ")
            raise InputError(Fault("--uncertain", f"{name}: write a range, as x0.8..x1.2"))
        one = robust(found, catalog, self.measure, asked.varied, self.draws, self.seed, top, processes)
        return one._replace(words=f"{one.words}; {found.words}")


def doubts_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a robust choice, as its argument ``doubts``."""

    @wraps(command)
    def called(robust: str | None, uncertain: tuple[str, ...], draws: int, seed: int, **given: Any) -> Any:
        if uncertain and robust is None:
            raise click.UsageError("--uncertain goes with --robust average, p90 or regret")
        return command(doubts=Doubts(robust, uncertain, draws, seed), **given)

    called = click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the draws of --robust.")(called)
    called = click.option(
        "--draws", type=click.IntRange(min=10), default=1_000, show_default=True, help="Draws of each plan of --robust."
    )(called)
    called = click.option(
        "--uncertain",
        multiple=True,
        metavar="COLUMN=RANGE",
        help="Uncertain number of the plans or of a catalog sheet, as of xlperf uncertainty, drawn for --robust beside "
        "the bands of the calibration. May be repeated.",
    )(called)
    return click.option(
        "--robust",
        type=click.Choice(["average", "p90", "regret"]),
        help="Order the 5,000 best plans by what they are in draws of uncertain inputs and of the calibration's bands: "
        "on average, in nine draws of ten, or by least regret.",
    )(called)


def probability_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--probability``."""
    return click.option(
        "--probability",
        type=click.FloatRange(0.5, 1.0, max_open=True),
        default=0.5,
        help="With which probability the bounds are kept, by the bands of the calibration: 0.9. Default: by the "
        "prediction.",
    )(command)
