"""Notebooks: plans as DataFrames or dicts and values of options in; DataFrames that show and plot themselves out.

Columns are named as on the sheets, with or without their unit, ``sequence length`` or ``sequence_length``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd
from pandas.plotting import PlotAccessor

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError, OptionError, nearest, printable, raise_faults
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.cells import plan_kind
from xlperf.catalog.check import left_out, name_faults, taken_names, unread_in
from xlperf.catalog.parse import table_from_columns
from xlperf.catalog.schema import FLAGS, Part, alike, column, displayed, rounded, shown, split_header, titled
from xlperf.catalog.table import Table
from xlperf.engine.tables import evaluate, explain
from xlperf.explore.chips import RATE
from xlperf.explore.forms import Shown
from xlperf.explore.objectives import pareto_rows
from xlperf.explore.vary import vary_line
from xlperf.page.answer import MOST_ROWS, band_words, card, table, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = (
    "<style scoped>td, th {text-align: left; padding: 0.1em 0.6em; white-space: nowrap} "
    "th {white-space: normal; vertical-align: bottom} td.number, th.number {text-align: right}</style>"
)


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
    """Rows of a result, in the units of their headers, and the answer in words; selections are plain DataFrames."""

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
        """Plots: ``plot("roofline")``, ``"waterfall"``, ``"frontier"``, ``"bands"``, ``"bars"``, and a DataFrame's."""
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
        rows = _card_lines(content.card) or [frame_of_parts(content.shown).to_string(index=False, na_rep="")]
        whole = "\n".join(filter(None, [content.words, *rows, *content.notes]))
        return "\n".join(map(printable, whole.split("\n")))

    def _repr_html_(self) -> str:
        content = self.content
        if self._is_edited:
            return str(pd.DataFrame(self).to_html(max_rows=MOST_ROWS))
        words = "<br>".join(map(text, content.words.split("\n")))
        shown = card(content.card) if content.card else table(content.shown)
        titles = {name: titled(block[0][0].table, name) for name, block in content.tables.items()}
        more = "".join(f"<p>{text(titles[name])}</p>{table(block)}" for name, block in content.tables.items())
        notes = "<br>".join(map(text, content.notes))
        return f"<div>{_STYLE}<p><b>{words}</b></p>{shown}{more}<small>{notes}</small></div>"


def _card_lines(results: Sequence[Shown]) -> list[str]:
    """Results below each other as text, with their bands."""
    across = [max(map(len, words)) for words in zip(*((one.header, one.words) for one in results), strict=True)]
    return [f"{one.header:<{across[0]}}  {one.words:<{across[1]}}  {band_words(one)}".rstrip() for one in results]


def frame_of_parts(block: Sequence[Part], index: Any = None) -> pd.DataFrame:
    """Columns as a DataFrame, in the units of their headers; flags are True, False or NA."""
    columns: dict[str, object] = {}
    for one, values in block:
        if one.kind in FLAGS:
            flags = [None if value != value else value == 1.0 for value in values.tolist()]
            columns[one.header] = pd.Series(flags, dtype="boolean").array
        else:
            columns[one.header] = shown(one, values)
    return pd.DataFrame(columns, index=index)


KINDS = ("roofline", "waterfall", "frontier", "bands", "bars")
_PEAK = "peak_flop_rate_"
_COLOURS = {"compute": "tab:red", "memory": "tab:blue", "network": "tab:green", "overhead": "tab:gray"}
_AXES = (
    ("tokens_per_second_per_user", "tokens_per_second_per_accelerator"),
    ("cost_per_million_tokens", "step_time"),
    ("unit_cost", RATE),
)
"""Columns along and up of a frontier, by the results that have them."""
_BARS = {"exposed_time": "operator", "probability": "cause"}  # columns drawn as bars, and columns of their labels
_MOST_BARS = 15


class Plots(PlotAccessor):
    """Plots of a result by kind; other kinds are the plots of a DataFrame."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self._result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plot of a kind, as ``plot("roofline")``; without one the first kind that suits the result."""
        kind = str(args[0] if args else kwargs.get("kind", self._suitable))
        if kind in KINDS:
            kwargs.pop("kind", None)
            return getattr(self, kind)(*args[1:], **kwargs)
        if not hasattr(PlotAccessor, kind):
            raise InputError(Fault("plot", f'unknown kind "{printable(kind)}"; kinds: {", ".join(KINDS)}'))
        of_frame: Any = super().__call__
        return of_frame(*args, **kwargs)

    @property
    def _suitable(self) -> str:
        """Kind of plot that shows most of a result: a curve or a frontier, the parts of one plan, bands, or lines."""
        block = self._block
        if "curve_speed_1" in block or (RATE in block and "unit_cost" in block and len(self._result) > 1):
            return "frontier"
        if self._result.content.plans is not None and len(self._result) == 1:
            return "waterfall"
        if any(name in block for name in (*_BARS, "unit_cost")):
            return "bars"
        return "bands" if any(f"{name}_low" in block for name in block) else "line"

    def roofline(self, row: int = 0, ax: Axes | None = None) -> Axes:
        """Rate of each operator of a plan over its arithmetic intensity; areas of points are shares of the time."""
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
            axes.scatter(intensity[some], rate[some] / _TERA, s=area, color=_COLOURS.get(name), alpha=0.6, label=name)
        for label, along, roof in _roofs(plan, catalog, intensity[drawn]):
            axes.plot(along, roof / _TERA, color="black", linewidth=1.0)
            axes.annotate(label, (along[-1], roof[-1] / _TERA), ha="right", va="bottom")
        axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/B)", ylabel="rate (TFLOP/s)")
        _log_ticks(axes)
        axes.set_title(_title(plan))
        axes.legend(title="limited by")
        return axes

    def waterfall(self, row: int = 0, ax: Axes | None = None) -> Axes:
        """Parts of a training step or a decode step: a bar for each part, and the step."""
        plan, catalog = self._plan(row)
        results = known.take([row]) if (known := self._result.content.results) is not None else evaluate(plan, catalog)
        times = [(one, float(values[0])) for one, values in _named(results, "time_") if float(values[0]) > 0.0]
        if not times:
            raise InputError(Fault("plot", "waterfall: the plan has no times, it is illegal"))
        axes = _axes(ax)
        starts = [0.0, *np.cumsum(values := [value for _, value in times])]
        step = "step" if plan.kind == "training" else "decode step"
        names = [*(one.words.removeprefix("time ") for one, _ in times), step]
        lengths, lefts = [*values, starts[-1]], [*starts[:-1], 0.0]
        axes.barh(names, lengths, left=lefts)[-1].set_color("black")
        for name, start, value, words in zip(names, lefts, lengths, alike(lengths), strict=True):
            axes.annotate(f" {words}", (start + value, name), va="center")
        axes.invert_yaxis()
        axes.margins(x=0.2)
        return _labelled(axes, xlabel=f"time ({times[0][0].unit})", title=_title(plan))

    def frontier(self, x: str | None = None, y: str | None = None, ax: Axes | None = None) -> Axes:
        """Rows over two columns, the rows that no other beats joined by a line; of ``serve`` the curve of a copy."""
        block = self._block
        curve = [
            [block[f"curve_{name}_{point}"] for point in range(1, 9)]
            for name in ("speed", "throughput")
            if "curve_speed_1" in block and x is None and y is None
        ]
        if curve:
            along, up = (column("inference_results", name) for name in _AXES[0])
            values = [np.array([points[0] for _, points in one]) for one in curve]
        else:
            pair = next((pair for pair in _AXES if all(name in block for name in pair)), ("", ""))
            (along, first), (up, second) = self._column(x, pair[0]), self._column(y, pair[1])
            values = [shown(along, first), shown(up, second)]
        signs = [-1.0 if one.is_larger_better or one.name == RATE else 1.0 for one in (along, up)]
        best = pareto_rows(signs[0] * values[0], signs[1] * values[1])
        axes = _axes(ax)
        axes.scatter(*values, alpha=0.5)
        axes.plot(values[0][best], values[1][best], marker="o")
        return _labelled(axes, xlabel=along.header, ylabel=up.header)

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
        axes.errorbar(value, places, xerr=[value - low, high - value], fmt="o", capsize=4)
        axes.set_yticks(places, self._names())  # names beside the bands: below them long ones overlap
        return _labelled(axes, xlabel=f"{declared.header}, 80 % band", ylim=(len(middle) - 0.5, -0.5))

    def bars(self, column: str | None = None, ax: Axes | None = None) -> Axes:
        """A column as bars, the rows in which it is largest; without one that of the result, of a chip its cost."""
        block = self._block
        parts = [part for name, part in block.items() if name.startswith("cost_") and part[0].is_result]
        if column is None and "unit_cost" in block and len(self._result) == 1:
            declared = block["unit_cost"][0]
            drawn = [(one.words.removeprefix("cost "), float(shown(one, values)[0])) for one, values in parts]
        else:
            declared, values = self._column(column, next((name for name in _BARS if name in block), ""))
            labels = block[_BARS[declared.name]][1] if declared.name in _BARS else self._result.index
            drawn = list(zip(map(str, labels.tolist()), shown(declared, values).tolist(), strict=True))
            drawn = sorted(drawn, key=lambda bar: -np.nan_to_num(bar[1]))[:_MOST_BARS]
        axes = _axes(ax)
        axes.barh(range(len(drawn)), [value for _, value in drawn])
        axes.set_yticks(range(len(drawn)), [label for label, _ in drawn])
        axes.invert_yaxis()
        return _labelled(axes, xlabel=declared.header)

    @property
    def _block(self) -> dict[str, Part]:
        return {part[0].name: part for part in self._result.content.whole}

    def _names(self) -> list[str]:
        """A label for each row: its name, else the entries that differ between rows, else its index."""
        block = self._block
        names = [str(name) for name in block["name"][1].tolist()] if "name" in block else []
        if all(names) and len(set(names)) == len(self._result):
            return names
        inputs = [part for part in block.values() if not part[0].is_result]
        entries = ([f"{one.words} {cell}" for cell in displayed(one, values)[1]] for one, values in inputs)
        varied = [cells for cells in entries if len(set(cells)) > 1]
        labels = [str(at) for at in self._result.index.tolist()]
        for most in range(min(2, len(varied)) or 1, len(varied) + 1):
            labels = ["\n".join(row) for row in zip(*varied[:most], strict=True)]
            if len(set(labels)) == len(labels):
                break
        return labels

    def _column(self, given: str | None, name: str) -> Part:
        wanted = split_header(given)[0] if given is not None else name
        if wanted not in self._block:
            hint = nearest(wanted, self._block) if wanted else "give x and y, columns of the result"
            raise InputError(Fault("plot", f'frontier: no column "{printable(wanted)}"; {hint}'))
        return self._block[wanted]

    def _plan(self, row: int) -> tuple[Table, Catalog]:
        plans, catalog = self._result.content.plans, self._result.content.catalog
        if plans is None or catalog is None:
            problem = "this result has no plan of one catalog; evaluate, explain, serve, train and search have"
            raise InputError(Fault("plot", problem))
        if not 0 <= row < len(plans):
            raise InputError(Fault("plot", f"row must be from 0 to {len(plans) - 1}, got {row}"))
        return plans.take([row]), catalog


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


_TERA = UNITS["TFLOP/s"].factor  # Unit of the axis of rates. [FLOP/s]


def _log_ticks(axes: Axes) -> None:
    """Plain numbers at 1, 2 and 5 of each power of ten: the usual labels of a short axis overlap."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:,g}", minor_formatter=NullFormatter())


def _labelled(axes: Axes, **words: Any) -> Axes:
    """Axes with names and limits, and numbers with their thousands parted."""
    from matplotlib.ticker import ScalarFormatter

    axes.set(**words)
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_formatter(), ScalarFormatter):
            axis.set_major_formatter("{x:,.10g}")
    return axes


def _title(plan: Table) -> str:
    count, machine = plan.stated("num_accelerators"), plan.text("accelerator")[0]
    title = printable(f"{plan.text('model')[0]} on {count:,.0f} {machine}")
    return title.replace("$", r"\$")  # matplotlib reads formulas between dollars


def _axes(given: Axes | None) -> Axes:
    if given is not None:
        return given
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError:
        problem = "is not installed, plots need it: pip install 'xlperf[notebook]'"
        raise InputError(Fault("matplotlib", problem)) from None
    axes: Axes = plt.subplots(layout="constrained")[1]
    return axes


Plans: TypeAlias = pd.DataFrame | Mapping[str, object] | Iterable[Mapping[str, object]]
"""A DataFrame, a mapping (one plan) or mappings; plans with a ``prompt length`` serve, all others train."""
GivenCatalog: TypeAlias = Catalog | str | os.PathLike[str] | None
"""A Catalog, or the path of a file as of ``--catalog``; None for the catalog of xlperf."""
Texts: TypeAlias = str | Sequence[str]  # one text, or several as of an option that may be repeated
Vary: TypeAlias = Mapping[str, object] | Texts
"""Values by column, ``{"tensor parallel": [1, 2], "networks.link bandwidth": "x0.5..x2"}``, or texts as of --vary."""
DELAY = 1.0  # time after which a notebook draws a bar [s]


def frame_of(plans: Plans) -> pd.DataFrame:
    """Plans as a DataFrame."""
    if isinstance(plans, pd.DataFrame):
        return plans
    if isinstance(plans, pd.Series):  # a row of a DataFrame
        return plans.to_frame().T
    rows = [plans] if isinstance(plans, Mapping) else list(plans) if isinstance(plans, Iterable) else None
    other = plans if rows is None else next((row for row in rows if not isinstance(row, Mapping)), None)
    if rows is None or other is not None:
        raise InputError(Fault("plans", f"must be a DataFrame, a dict or a list of dicts, got {type(other).__name__}"))
    return pd.DataFrame(rows, dtype=object)


def table_of(frame: pd.DataFrame) -> Table:
    """Plans as a table; InputError names each cell that cannot be read."""
    columns: dict[str, np.ndarray] = {}
    for position, name in enumerate(map(str, frame.columns)):
        if name in columns:
            raise InputError(Fault("plans", f'column "{name}" stands twice; one is enough'))
        values = frame.iloc[:, position]
        if pd.api.types.is_bool_dtype(values.dtype) and not values.hasnans:
            columns[name] = values.to_numpy(dtype=bool)
        elif pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
            columns[name] = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            columns[name] = values.astype(object).where(values.notna(), None).to_numpy(dtype=object)

    table = table_from_columns(plan_kind(tuple(columns)), columns, partial(_place, frame.index))
    if table.own:
        warnings.warn(f"columns that are not read: {', '.join(table.own)}", stacklevel=4)
    return table


def _place(index: pd.Index, row: int, column: str) -> str:
    if row < 0:
        return f'plans["{column}"]'
    label = repr(index[[row]].tolist()[0])
    return f'plans.loc[{label}, "{column}"]' if column else f"plans.loc[{label}]"


def one_plan(plan: Plans, function: str) -> Table:
    """The one plan that a function takes."""
    table = table_of(frame_of(plan))
    if len(table) != 1:
        raise InputError(Fault("plans", f"{function} takes one plan, got {len(table)}; choose a row"))
    return table


def catalog_of(given: GivenCatalog) -> tuple[Catalog, list[str]]:
    """The catalog that is given, and notes on sheets and rows of it that are not used."""
    if isinstance(given, Catalog):
        return given, left_out(given)
    if given is None or isinstance(given, (str, os.PathLike)):
        unread = unread_in(None if given is None else os.fspath(given))
        known = load_catalog(given)
        return known, [*map(str, unread), *left_out(known)]
    raise InputError(Fault("catalog", f"must be a Catalog or the path of a workbook, got {type(given).__name__}"))


def catalog_for(given: GivenCatalog, table: Table) -> tuple[Catalog, list[str]]:
    """The catalog of plans, and notes, on names that it spells otherwise too; InputError has every unknown name."""
    known, notes = catalog_of(given)
    faults = name_faults([table], known)
    raise_faults(faults)
    return known, [*notes, *taken_names([table], known)]


def text_of(value: object) -> str:
    """A value as the text of an option.

    >>> [text_of(value) for value in (8.0, np.float64(0.5), True, "x0.5..x2")]
    ['8', '0.5', 'yes', 'x0.5..x2']
    """
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return f"{value:.15g}" if isinstance(value, (float, np.floating)) else str(value)


def texts_of(option: str, given: Texts | Mapping[str, object]) -> list[str]:
    """The texts of an option that may be repeated; a mapping gives a text for each entry.

    >>> texts_of("--measured", {"step time": 38.0})
    ['step time=38']
    """
    if isinstance(given, Mapping):
        return [f"{name}={text_of(value)}" for name, value in given.items()]
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable) or not all(isinstance(text, (str, os.PathLike)) for text in texts):
        raise OptionError(f"{option} takes a text or a list of texts, got {given!r}")
    return list(map(str, texts))


def lines_of(vary: Vary) -> list[tuple[str, list[str]]]:
    """Columns and the texts of their values.

    >>> lines_of({"tensor parallel": [1, 2], "precision": "bf16,fp8"})
    [('tensor parallel', ['1', '2']), ('precision', ['bf16', 'fp8'])]
    """
    if not isinstance(vary, Mapping):
        return [vary_line(text) for text in texts_of("--vary", vary)]
    lines = []
    for name, values in vary.items():
        if isinstance(values, Iterable) and not isinstance(values, str):
            texts = list(map(text_of, values))
        else:
            texts = text_of(values).split(",")
        lines.append((str(name), texts))
    return lines


def whole_number(option: str, value: object, least: int = 1) -> int:
    """A whole number as of an option; InputError for any other value."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(Fault(option, f"must be a whole number above {least - 1}, got {value!r}"))
    return int(value)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar in a notebook, if tqdm is installed; yields a function that adds the number of items done."""
    bar: Any = None
    if "ipykernel" in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a text stands in for a widget
            try:
                from tqdm.auto import tqdm

                bar = tqdm(total=length or None, desc=label, leave=False, delay=DELAY)
            except ModuleNotFoundError:
                pass

    def advance(done: int) -> None:
        if bar is not None:
            bar.update(done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()
