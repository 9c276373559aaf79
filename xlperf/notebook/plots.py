"""Plots of results with matplotlib: the roofline, the parts of a step, the frontier, and 80 % bands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas.plotting import PlotAccessor

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, nearest, printable
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import Column, Part, column, rounded, shown, split_header
from xlperf.catalog.table import Table
from xlperf.engine.tables import evaluate, explain
from xlperf.explore.chip_table import RATE
from xlperf.explore.frontier import pareto_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from xlperf.notebook.result import Result

KINDS = ("roofline", "waterfall", "frontier", "bands")
_PEAK = "peak_flop_rate_"
_COLOURS = {"compute": "tab:red", "memory": "tab:blue", "network": "tab:green", "overhead": "tab:gray"}
_AXES = (
    ("tokens_per_second_per_user", "tokens_per_second_per_accelerator"),
    ("cost_per_million_tokens", "step_time"),
    ("unit_cost", RATE),
)
"""Columns along and up of a frontier, by the results that have them."""


class Plots(PlotAccessor):
    """Plots of a result by kind; other kinds are the plots of a DataFrame."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self._result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plot of a kind, as ``plot("roofline")``."""
        kind = str(args[0] if args else kwargs.get("kind", "line"))
        if kind in KINDS:
            kwargs.pop("kind", None)
            return getattr(self, kind)(*args[1:], **kwargs)
        if not hasattr(PlotAccessor, kind):
            raise InputError(Fault("plot", f'unknown kind "{printable(kind)}"; kinds: {", ".join(KINDS)}'))
        of_frame: Any = super().__call__
        return of_frame(*args, **kwargs)

    def roofline(self, row: int = 0, ax: Axes | None = None) -> Axes:
        """Rate of each operator of a plan over its arithmetic intensity, below the roof of the accelerator.

        The area of a point is its share of the exposed time, its color the resource that limits it.
        """
        plan, catalog = self._plan(row)
        operators = explain(plan, catalog)
        rate = operators.number("flop") / operators.number("time")
        intensity, bound = operators.number("arithmetic_intensity"), operators.text("bound")
        drawn = np.isfinite(rate) & (rate > 0.0) & np.isfinite(intensity) & (intensity > 0.0)
        if not drawn.any():
            raise InputError(Fault("plot", "roofline: the plan has no operators, it is illegal"))
        axes = _axes(ax)
        limits = np.array([word.split(" ")[0] for word in bound.tolist()], dtype=object)
        for name in dict.fromkeys(limits[drawn].tolist()):
            some = drawn & (limits == name)
            area = 20.0 + 600.0 * operators.number("share")[some]
            axes.scatter(intensity[some], rate[some], s=area, color=_COLOURS.get(name), alpha=0.6, label=name)
        for label, along, roof in _roofs(plan, catalog, intensity[drawn]):
            axes.plot(along, roof, color="black", linewidth=1.0)
            axes.annotate(label, (along[-1], roof[-1]), ha="right", va="bottom")
        axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/B)", ylabel="rate (FLOP/s)")
        axes.set_title(_title(plan))
        axes.legend(title="limited by")
        return axes

    def waterfall(self, row: int = 0, ax: Axes | None = None) -> Axes:
        """Parts of a training step or a decode step: a bar for each part, and the step."""
        plan, catalog = self._plan(row)
        known = self._result.content.results
        results = known.take([row]) if known is not None else evaluate(plan, catalog)
        times = [(one, float(values[0])) for one, values in _named(results, "time_") if float(values[0]) > 0.0]
        if not times:
            raise InputError(Fault("plot", "waterfall: the plan has no times, it is illegal"))
        axes = _axes(ax)
        values = np.array([value for _, value in times])
        starts = np.concatenate([[0.0], np.cumsum(values)])
        step = "step" if plan.kind == "training" else "decode step"
        names = [*(one.words.removeprefix("time ") for one, _ in times), step]
        bars = axes.barh(names, [*values, starts[-1]], left=[*starts[:-1], 0.0])
        bars[-1].set_color("black")
        for name, start, value in zip(names, [*starts[:-1], 0.0], [*values, starts[-1]], strict=True):
            axes.annotate(f" {rounded(float(value))}", (start + value, name), va="center")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set(xlabel=f"time ({times[0][0].unit})", title=_title(plan))
        return axes

    def frontier(self, x: str | None = None, y: str | None = None, ax: Axes | None = None) -> Axes:
        """Rows over two columns, the rows that no other beats joined by a line; of ``serve`` the curve of a copy."""
        block = self._block
        curve = [[block[f"curve_{name}_{point}"] for point in range(1, 9)] for name in ("speed", "throughput")
                 if "curve_speed_1" in block and x is None and y is None]  # fmt: skip
        if curve:
            along, up = (column("inference_results", name) for name in _AXES[0])
            values = [np.array([points[0] for _, points in one]) for one in curve]
        else:
            pair = next((pair for pair in _AXES if all(name in block for name in pair)), ("", ""))
            (along, first), (up, second) = self._column(x, pair[0]), self._column(y, pair[1])
            values = [shown(along, first), shown(up, second)]
        signs = [-1.0 if _is_larger_better(one) else 1.0 for one in (along, up)]
        best = pareto_rows(signs[0] * values[0], signs[1] * values[1])
        axes = _axes(ax)
        axes.scatter(*values, alpha=0.5)
        axes.plot(values[0][best], values[1][best], marker="o")
        axes.set(xlabel=along.header, ylabel=up.header)
        return axes

    def bands(self, column: str | None = None, ax: Axes | None = None) -> Axes:
        """A result of each row with its 80 % band."""
        block = self._block
        banded = [name for name in block if f"{name}_low" in block and f"{name}_high" in block]
        wanted = split_header(column)[0] if column is not None else (*banded, "")[0]
        if wanted not in banded:
            hint = f"columns with one: {', '.join(banded)}" if banded else "no column of this result has one"
            raise InputError(Fault("plot", f'bands: "{printable(wanted)}" has no band; {hint}'))
        declared, middle = block[wanted]
        value, low, high = (shown(declared, block[f"{wanted}{end}"][1]) for end in ("", "_low", "_high"))
        axes = _axes(ax)
        places = np.arange(len(middle))
        axes.errorbar(places, value, [value - low, high - value], fmt="o", capsize=4)
        names = block["name"][1].tolist() if "name" in block else [""] * len(middle)
        index = self._result.index.tolist()
        axes.set_xticks(places, [str(name) or str(at) for name, at in zip(names, index, strict=True)])
        axes.set(ylabel=f"{declared.header}, 80 % band")
        return axes

    @property
    def _block(self) -> dict[str, Part]:
        return {part[0].name: part for part in self._result.content.whole}

    def _column(self, given: str | None, name: str) -> Part:
        wanted = split_header(given)[0] if given is not None else name
        if wanted not in self._block:
            hint = nearest(wanted, self._block) if wanted else "give x and y, columns of the result"
            raise InputError(Fault("plot", f'frontier: no column "{printable(wanted)}"; {hint}'))
        return self._block[wanted]

    def _plan(self, row: int) -> tuple[Table, Catalog]:
        """The plan of a row, and its catalog."""
        plans, catalog = self._result.content.plans, self._result.content.catalog
        if plans is None or catalog is None:
            problem = "this result has no plan of one catalog; evaluate, explain, serve, train and search have"
            raise InputError(Fault("plot", problem))
        if not 0 <= row < len(plans):
            raise InputError(Fault("plot", f"row must be from 0 to {len(plans) - 1}, got {row}"))
        return plans.take([row]), catalog


def _is_larger_better(one: Column) -> bool:
    return one.is_larger_better or one.name == RATE


def _named(table: Table, start: str) -> Iterator[Part]:
    for name, values in table.columns.items():
        if name.startswith(start):
            declared = table.schema.by_name[name]
            yield declared, shown(declared, values)


def _roofs(plan: Table, catalog: Catalog, intensity: Array) -> Iterator[tuple[str, Array, Array]]:
    """Roofs of the accelerator for BF16 and for the precision of a plan: label, intensities, rates."""
    row = catalog.rows("accelerators", plan.text("accelerator"), plan, "accelerator")
    machine = catalog.tables["accelerators"].take(row)
    bandwidth, precision = float(machine.number("memory_bandwidth")[0]), str(plan.filled("precision")[0])
    for declared, values in _named(machine, _PEAK):
        peak, kind = float(machine.number(declared.name)[0]), declared.name.removeprefix(_PEAK)
        if peak > 0.0 and bandwidth > 0.0 and (kind == "bf16" or kind in precision):
            ridge = peak / bandwidth
            along = np.array([min(intensity.min(), ridge) / 2.0, ridge, max(intensity.max(), ridge) * 2.0])
            yield f"{kind} {rounded(float(values[0]))} {declared.unit}", along, np.minimum(along * bandwidth, peak)


def _title(plan: Table) -> str:
    count = float(plan.number("num_accelerators")[0])
    title = f"{plan.text('model')[0]} on {count:,.0f} {plan.text('accelerator')[0]}"
    return printable(title).replace("$", r"\$")  # matplotlib reads formulas between dollars


def _axes(given: Axes | None) -> Axes:
    """The axes to draw on, new ones by default."""
    if given is not None:
        return given
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        problem = "is not installed, plots need it: pip install 'xlperf[notebook]'"
        raise InputError(Fault("matplotlib", problem)) from None
    axes: Axes = plt.subplots(layout="constrained")[1]
    return axes
