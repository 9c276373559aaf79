"""Studies chiplets and cost-performance: cost of silicon split into dies, and cost of a token by machine and plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import UNITS
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.devices import evaluate_designs
from xlperf.equations.cost.tco import ALL_IN
from xlperf.equations.hardware.derived_device import PEAKS
from xlperf.explore.objectives import TOLD_APART, pareto_rows
from xlperf.studies import outcome
from xlperf.studies.technology import for_each

_RATE = "tokens_per_second_per_accelerator"
_COST_STEPS = ("die_area", "die_yield", "good_die_cost", "module_cost", "unit_cost", "sale_price")
_Case = tuple[str, float, str, float]  # node, silicon area, package, dies


def chiplets(inputs: outcome.Inputs) -> outcome.Outcome:
    """One die or many: yield, cost of a unit and cost of a token at the same silicon."""
    designs, cases = _designs(inputs)
    results = evaluate_designs(designs, inputs.catalog)
    names = [str(name) for name in designs["chiplet"]]
    compute = designs["module_area"] * designs["num_dies"] / UNITS["mm2"].factor
    wider = _priced_devices(inputs, names, compute, outcome.shown(results, "sale_price"))
    plans: list[tuple[Table, Table]] = []
    for kind in ("training", "inference"):
        if kind in inputs.plans:
            table = for_each(inputs.plans[kind], names)
            plans.append((table, evaluate(table, wider)))
    sheet = _designs_sheet(names, cases, results, compute, plans)
    cost = outcome.shown(results, "unit_cost") / compute
    sheets = [sheet, _cost_map(inputs, cases, cost), _volumes(inputs, designs, cases)]
    tokens = [outcome.shown(results_of_plans, ALL_IN[table.kind])[: len(names)] for table, results_of_plans in plans]
    savings = _savings(cases, cost, outcome.shown(results, "die_yield"))
    findings = _chiplet_findings(cases, cost, savings, tokens)
    return outcome.Outcome(list(findings), sheets, wider, plans, _advised(cases, cost, savings))


def _designs(inputs: outcome.Inputs) -> tuple[Table, list[_Case]]:
    """Designs of equal silicon within the exposure field; links reduce compute."""
    packages, nodes = inputs.catalog.tables["packages"], inputs.catalog.tables["process_nodes"]
    square_mm = UNITS["mm2"].factor
    terms = {
        name: inputs.number(name)
        for name in ("memory_stacks", "stack_capacity", "memory_price", "board_cost", "margin_share", "volume")
    }
    rows: list[dict[str, object]] = []
    cases: list[_Case] = []
    for case in product(
        inputs.words("nodes"), inputs.numbers("silicon_areas"), inputs.words("packages"), inputs.numbers("dies")
    ):
        node, area, package, dies = case
        row = outcome.row_named(packages, package, "package", inputs.place)
        at = outcome.row_named(nodes, node, "process node", inputs.place)
        macros = np.ceil(inputs.number("link_bandwidth") * UNITS["GB/s"].factor / packages["link_bandwidth"][row])
        links = float(macros * packages["link_area"][row]) / square_mm if dies > 1 else 0.0
        die = area / dies
        field = float(nodes.filled("reticle_width")[at] * nodes.filled("reticle_height")[at]) / square_mm
        if die > field or die <= links or not np.isfinite(links):
            continue
        cases.append(case)
        rows.append(
            terms
            | {
                "chiplet": f"{node}, {area:.0f} mm2, {dies:.0f} on {package}",
                "package": package,
                "node": node,
                "num_dies": dies,
                "module_area": die - links,
                "link_area_share": links / (die - links),
                "kind": "assumption",
            }
        )
    if not rows:
        raise InputError(Fault(inputs.place, "no design has a die within one exposure field and larger than its links"))
    return table_from_rows("chiplets", list(rows[0]), [list(row.values()) for row in rows]), cases


def _priced_devices(inputs: outcome.Inputs, names: Sequence[str], compute: np.ndarray, price: np.ndarray) -> Catalog:
    """The catalog with a device (peak by its compute area) and a price for each design."""
    catalog = inputs.catalog
    plans = inputs.table("inference" if "inference" in inputs.plans else "training")
    row = int(catalog.rows("accelerators", plans["accelerator"][:1], plans, "accelerator")[0])
    reference = catalog.tables["accelerators"].take([row] * len(names))
    columns = {name: values.copy() for name, values in reference.columns.items()}
    for column in (*(f"peak_flop_rate_{kind}" for kind in PEAKS), "num_multiprocessors", "l2_bandwidth"):
        if column in columns:
            columns[column] = columns[column] * (compute / inputs.number("reference_area"))
    columns["num_multiprocessors"] = np.maximum(np.round(columns["num_multiprocessors"]), 1.0)
    columns["accelerator"] = np.array(names, dtype=object)
    prices = catalog.tables["prices"]
    reference_name = str(catalog.tables["accelerators"]["accelerator"][row])
    price_rows = np.flatnonzero([str(name).casefold() == reference_name.casefold() for name in prices["price"]])
    if not len(price_rows):
        raise InputError(Fault(inputs.place, f"the reference accelerator {reference_name} has no row in prices"))
    terms = {name: values.copy() for name, values in prices.take([int(price_rows[0])] * len(names)).columns.items()}
    terms["price"] = np.array(names, dtype=object)
    terms["capex"] = price * inputs.number("system_factor")
    if "rental_price" in terms:
        terms["rental_price"] = np.full(len(names), np.nan)
    return outcome.with_rows(catalog, [Table("accelerators", columns), Table("prices", terms)])


def _designs_sheet(
    names: Sequence[str],
    cases: Sequence[_Case],
    results: Table,
    compute: np.ndarray,
    plans: Sequence[tuple[Table, Table]],
) -> outcome.StudySheet:
    columns: outcome.Columns = [
        ("design", names),
        *zip(("node", "silicon_area", "package", "dies"), zip(*cases, strict=True), strict=True),
    ]
    columns += [("compute_area", compute), *outcome.result_columns(results, _COST_STEPS)]
    for table, results_of_plans in plans:
        time = "step_time" if table.kind == "training" else "tpot"
        columns += outcome.result_columns(results_of_plans, (time, ALL_IN[table.kind]), slice(len(names)))
    return outcome.sheet_of("designs", columns)


def _cost_map(inputs: outcome.Inputs, cases: Sequence[_Case], cost: np.ndarray) -> outcome.StudySheet:
    """Cost of a unit for each area of compute: silicon by number of dies."""
    dies = inputs.numbers("dies")
    keys, row = outcome.positions(f"{node}, {area:.0f} mm2, {package}" for node, area, package, _ in cases)
    values = np.full((len(keys), len(dies)), np.nan)
    values[row, [dies.index(case[3]) for case in cases]] = cost
    names = [_dies(count) for count in dies]
    of_nodes = (
        (node, [place for place, key in enumerate(keys) if key.startswith(f"{node},")])
        for node in inputs.words("nodes")
    )
    charts = [
        chart
        for node, places in of_nodes
        if places
        for chart in outcome.charts_of("map", names, (places[0], places[-1] + 1), node=node)
    ]
    return outcome.pivot_of("map", "silicon", keys, names, values, charts)


def _dies(count: float) -> str:
    return f"{count:.0f}_{'die' if count == 1 else 'dies'}"


def _volumes(inputs: outcome.Inputs, designs: Table, cases: Sequence[_Case]) -> outcome.StudySheet:
    """Cost of a unit over the volume, with the one-time costs in it."""
    node, area = inputs.words("nodes")[-1], inputs.numbers("silicon_areas")[-2:][0]
    package, volumes = inputs.words("packages")[0], inputs.numbers("volumes")
    chosen = [i for i, case in enumerate(cases) if case[:3] == (node, area, package)]
    names = [_dies(cases[i][3]) for i in chosen]
    table = designs.take(chosen)
    costs = []
    for volume in volumes:
        columns = {**table.columns, "volume": np.full(len(chosen), volume)}
        costs.append(outcome.shown(evaluate_designs(Table("chiplets", columns), inputs.catalog), "unit_cost"))
    return outcome.pivot_of("volume", "volume", volumes, names, np.array(costs), node=node, area=area, package=package)


def _groups(cases: Sequence[_Case], cost: np.ndarray) -> list[tuple[tuple[str, float, str], list[int], int | None]]:
    """Designs of one node, area and package: the rows with a cost, and the row of one die."""
    groups = []
    for key in dict.fromkeys(case[:3] for case in cases):
        rows = [i for i, case in enumerate(cases) if case[:3] == key and np.isfinite(cost[i])]
        groups.append((key, rows, next((i for i in rows if cases[i][3] == 1), None)))
    return groups


def _cheaper_tokens(cases: Sequence[_Case], cost: np.ndarray, area: float, tokens: Sequence[np.ndarray]) -> str:
    """Saving per token from the best number of dies over one die: ``5 to 20 %``."""
    gains = [
        100 * (1 - np.nanmin(token[rows]) / token[single])
        for key, rows, single in _groups(cases, cost)
        for token in tokens
        if key[1] == area and single is not None and token[single] > 0.0
    ]
    return outcome.span(gains) if gains else ""


class _Saving(NamedTuple):
    """Saving of compute cost from dividing one die."""

    saved: float  # [%]
    dies: float  # Of the cheapest design
    one_yield: float  # Yield of the single die [%]


_Savings = Mapping[tuple[str, float], Sequence[_Saving]]  # by node and silicon area, one for each package


def _savings(cases: Sequence[_Case], cost: np.ndarray, die_yield: np.ndarray) -> _Savings:
    """Saving of the cheapest number of dies over one die, by node and area, a value per package."""
    savings: dict[tuple[str, float], list[_Saving]] = {}
    for key, rows, single in _groups(cases, cost):
        if single is not None:
            best = min(rows, key=lambda i: float(cost[i]))
            saving = _Saving(100 * float(1 - cost[best] / cost[single]), cases[best][3], 100 * float(die_yield[single]))
            savings.setdefault(key[:2], []).append(saving)
    return savings


_WORTHWHILE = 5.0  # saving of the cost of compute from which on dividing a die is advised [%]


def _advised(cases: Sequence[_Case], cost: np.ndarray, savings: _Savings) -> dict[str, str]:
    """Facts for the advice: largest area for one die, saving from dividing beyond it, cheapest package."""
    most = _most_saved(savings)
    facts: dict[str, str] = {}
    one_die = [area for area, saved in most.items() if saved < _WORTHWHILE]
    if one_die:
        facts |= {"one_die_area": f"{one_die[-1]:,.0f}", "small_saving": f"{most[one_die[-1]]:.0f}"}
    if most and max(most) not in one_die:
        largest = {node: saving for (node, area), saving in savings.items() if area == max(most)}
        first = max(largest, key=lambda node: max(package.saved for package in largest[node]))
        saved, dies, _ = map(outcome.span, zip(*largest[first], strict=True))
        facts |= {"large_area": f"{max(most):,.0f}", "large_node": first, "large_saving": saved, "large_dies": dies}
    # packages that several dies of one node and area are cheapest on
    wins: Counter[str] = Counter()
    for key in dict.fromkeys((case[0], case[1], case[3]) for case in cases if case[3] > 1):
        rows = [i for i, case in enumerate(cases) if (case[0], case[1], case[3]) == key and np.isfinite(cost[i])]
        if len(rows) > 1:
            wins[cases[min(rows, key=lambda i: float(cost[i]))][2]] += 1
    if wins:
        package, count = wins.most_common(1)[0]
        facts |= {"package": package, "package_wins": f"{count} of {wins.total()}"}
    return facts


def _most_saved(savings: _Savings) -> dict[float, float]:
    """Largest saving at each area, in rising order. [%]"""
    areas = sorted({area for _, area in savings})
    return {
        area: max(package.saved for (_, size), saving in savings.items() if size == area for package in saving)
        for area in areas
    }


def _chiplet_findings(
    cases: Sequence[_Case], cost: np.ndarray, savings: _Savings, tokens: Sequence[np.ndarray]
) -> Iterator[outcome.Finding]:
    """Saving from dividing the largest and the smallest legal die; the cheapest number of dies."""
    counts: dict[str, dict[float, list[float]]] = {}
    for (node, area, _), rows, _ in _groups(cases, cost):
        if rows:
            cheapest = cases[min(rows, key=lambda i: float(cost[i]))][3]
            counts.setdefault(node, {}).setdefault(area, []).append(cheapest)
    if savings:
        most = _most_saved(savings)
        small, *_, large = [*most, max(most)]
        clauses = []
        for node in dict.fromkeys(node for node, area in savings if area == large):
            saved, dies, _ = map(outcome.span, zip(*savings[node, large], strict=True))
            one_yield = savings[node, large][0].one_yield
            clauses.append(f"by {saved} % at {node} with {dies} dies (yield of one die {one_yield:.0f} %)")
        token = _cheaper_tokens(cases, cost, large, tokens)
        yield outcome.in_short(
            f"dividing {large:.0f} mm2 makes compute cheaper {', '.join(clauses)}"
            f"{f', and a token by {token} %' if token else ''}",
            f"at {small:.0f} mm2 it makes compute {most[small]:.0f} % cheaper at the most",
        )
    for node, dies_at in counts.items():
        parts = [f"{outcome.span(dies)} at {area:.0f} mm2" for area, dies in dies_at.items()]
        yield outcome.finding("dies", node=node, counts=", ".join(parts))


def frontiers(inputs: outcome.Inputs) -> outcome.Outcome:
    """Cost and speed of a token: the frontier over machines and plans, for serving and for training."""
    sheets: list[outcome.StudySheet] = []
    findings: list[outcome.Finding] = []
    drawn: list[tuple[Table, Table]] = []
    for kind, time in (("inference", "tpot"), ("training", "step_time")):
        if kind in inputs.plans:
            plans = inputs.plans[kind]
            results = evaluate(plans, inputs.catalog)
            edge = _edge(plans, results, time, ALL_IN[kind])
            new_sheets, new_findings = (
                _serving(inputs, plans, results, edge) if kind == "inference" else _training(plans, results)
            )
            sheets += new_sheets
            findings += new_findings
            shown_rows = edge if len(edge) else np.array([0])
            drawn.append((plans.take(shown_rows), results.take(shown_rows)))
    return outcome.Outcome(findings, sheets, inputs.catalog, drawn)


def _fitting(results: Table, name: str) -> np.ndarray:
    """A result in the unit of its header, NaN for plans that do not fit in memory."""
    return np.where(results.number("fits") == 1, outcome.shown(results, name), np.nan)


def _edge(plans: Table, results: Table, time: str, cost: str) -> np.ndarray:
    """The frontier of each machine, machines in the order of the plans."""
    names, machine = outcome.positions(plans.text("accelerator"))
    quick, cheap = _fitting(results, time), _fitting(results, cost)
    frontiers_of_machines = [
        pareto_rows(np.where(machine == i, quick, np.nan), np.where(machine == i, cheap, np.nan))
        for i in range(len(names))
    ]
    return np.concatenate([np.zeros(0, dtype=np.int64), *frontiers_of_machines])


def _serving(
    inputs: outcome.Inputs, plans: Table, results: Table, edge: np.ndarray
) -> tuple[list[outcome.StudySheet], list[outcome.Finding]]:
    names, machine = outcome.positions(plans.text("accelerator"))
    time, cost = _fitting(results, "tpot"), _fitting(results, ALL_IN["inference"])
    targets = inputs.numbers("time_per_token_targets")
    places = range(len(names))
    within = np.array([[np.where((machine == i) & (time <= t), cost, np.nan) for i in places] for t in targets])
    cheapest = np.fmin.reduce(within, axis=-1)
    targeted = outcome.pivot_of("serving", "target", targets, names, cheapest)
    edge_sheet = outcome.sheet_of(
        "serving frontier",
        [
            ("plan", plans.text("name")[edge]),
            ("accelerator", plans.text("accelerator")[edge]),
            ("time_per_token", time[edge]),
            ("cost", cost[edge]),
            ("tokens_per_second_per_user", 1 / (time[edge] * UNITS["ms"].factor)),
            ("throughput", results[_RATE][edge]),
        ],
    )
    return [targeted, edge_sheet], list(_serving_findings(targets, names, cheapest, _extrapolated(plans, results)))


def _serving_findings(
    targets: Sequence[float], names: Sequence[str], cheapest: np.ndarray, extrapolated: Mapping[str, str]
) -> Iterator[outcome.Finding]:
    """The cheapest machines by target, neighbouring targets merged; costs too near to tell apart win together."""
    won: list[tuple[tuple[str, ...], list[int]]] = []
    for place, costs in enumerate(cheapest):
        near = np.isfinite(costs) & (costs <= np.fmin.reduce(costs) * (1.0 + TOLD_APART))
        winner = tuple(str(names[index]) for index in np.flatnonzero(near).tolist())
        if won and won[-1][0] == winner:
            won[-1][1].append(place)
        else:
            won.append((winner, [place]))
    winners = dict.fromkeys(name for alike, _ in won for name in alike)
    parts = [f"{' or '.join(alike)} at {_targets(targets, places)}" for alike, places in won if alike]
    ends = [float(np.nanmin(cheapest[places[at]])) for (alike, places), at in ((won[0], 0), (won[-1], -1)) if alike]
    if len(ends) == 2:
        doubts = [f"{name} ({extrapolated[name]})" for name in winners if extrapolated.get(name)]
        sure = len(winners) - len(doubts)
        yield outcome.in_short(
            f"cheapest by time per token: {', '.join(parts)}; from {' to '.join(map(outcome.figures, ends))} USD per "
            "million output tokens",
            f"{sure} of {len(winners)} winners stand on measured kernels alone"
            + (f"; extrapolated kernels: {', '.join(doubts)}" if doubts else ""),
            tone="warning" if doubts else "good",
        )
    for alike, places in won:
        if not alike:
            words = "No machine keeps this time per token with any plan tried."
            yield outcome.Finding(_targets(targets, places), words, "warning")
            continue
        index = [list(names).index(name) for name in alike]
        first, last = (float(np.nanmin(cheapest[places[at], index])) for at in (0, -1))
        cost = " down to ".join(dict.fromkeys((outcome.figures(first), outcome.figures(last))))
        priced = zip(cheapest[places[0]], names, strict=True)
        others = sorted((c, n) for c, n in priced if np.isfinite(c) and n not in alike)
        words = f"{' or '.join(alike)}, {cost} USD per million output tokens"
        words += f" (within {100.0 * TOLD_APART:g} %, which predictions do not tell apart)" if len(alike) > 1 else ""
        words += f"; next {others[0][1]} at {outcome.figures(others[0][0])}" if others else ""
        yield outcome.Finding(_targets(targets, places), f"{words}.", "good" if len(alike) == 1 else "plain")


def _targets(targets: Sequence[float], places: Sequence[int]) -> str:
    return f"{' to '.join(dict.fromkeys(f'{targets[place]:g}' for place in (places[0], places[-1])))} ms"


def _extrapolated(plans: Table, results: Table) -> dict[str, str]:
    """Extrapolated kernel families by machine."""
    families: dict[str, str] = {}
    for name, reason in zip(plans.text("accelerator").tolist(), results.text("reason").tolist(), strict=True):
        if "extrapolated: " in reason and not families.get(name):
            families[name] = reason.partition("extrapolated: ")[2].partition(";")[0]
    return families


def _training(plans: Table, results: Table) -> tuple[list[outcome.StudySheet], list[outcome.Finding]]:
    names, machine = outcome.positions(plans.text("accelerator"))
    cost, rate = _fitting(results, ALL_IN["training"]), _fitting(results, _RATE)
    grid = np.where((machine == np.arange(len(names))[:, None]) & np.isfinite(rate), rate, -np.inf)
    best = np.argmax(grid, axis=1)[np.isfinite(grid.max(axis=1))]
    machines = plans.text("accelerator")[best]
    sheet = outcome.sheet_of(
        "training machines",
        [
            ("accelerator", machines),
            ("best_plan", plans.text("name")[best]),
            *outcome.result_columns(results, ("step_time", _RATE, "mfu", ALL_IN["training"], "energy_per_token"), best),
            ("million_tokens_per_dollar", 1 / np.where(cost[best] > 0, cost[best], np.nan)),
        ],
    )
    priced = sorted((price, str(name)) for price, name in zip(cost[best], machines, strict=True) if price == price)
    if not priced:
        return [sheet], []
    words = (
        f"Cheapest on {priced[0][1]}, {outcome.figures(priced[0][0])} USD per million tokens, and most expensive on "
        f"{priced[-1][1]}, {outcome.figures(priced[-1][0])}; the fastest for each accelerator is "
        f"{machines[np.argmax(rate[best])]}."
    )
    return [sheet], [outcome.Finding("Training", words, "good")]
