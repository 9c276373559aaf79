"""Commands on hardware: ``cost`` (dies to accelerator-hours), ``device``, ``optimise`` (its shares) and ``time``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.catalog.parts import parts, viewed_columns
from xlperf.catalog.schema import table_schema
from xlperf.cli.command import Chosen, Sheets, catalog_for, catalog_of, command, note_names, read_one, without_auto
from xlperf.cli.output import deliver, is_workbook, progress, say, text_table, write_sheets, wrote

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.explore.allocate import Allocation
    from xlperf.explore.candidates import Bounds


BLOCK = 16_384
_SIZE = re.compile(r"\s*([-+.\d]+(?:[eE][-+]?\d+)?)\s*(?![eE][-+]?\d+\s*$)([A-Za-z]\S*)\s*")


@command()
def device(devices: str, output: str | None, compare: bool, catalog: str | None) -> int:
    """Derive accelerators from a logic node, budgets and shares."""
    import numpy as np

    from xlperf.catalog.read import read_designs
    from xlperf.engine.devices import evaluate_devices

    table = read_designs(devices, kinds=("devices",))
    known = catalog_of(catalog, devices)
    if compare:
        from xlperf.explore.allocate import TOLERANCE, reverse_check

        comparison = reverse_check(table, known)
        deliver(output, comparison.kind, parts(comparison), "device")
        far = ~(np.abs(comparison["difference"]) <= TOLERANCE)
        return 1 if far.any() else 0
    block = len(table) if output is None or is_workbook(output) else BLOCK
    pieces = []
    with progress(len(table), f"{len(table):,} devices") as done:
        for start in range(0, len(table), block):
            rows = table.take(slice(start, start + block))
            pieces.append((table.kind, parts(rows, evaluate_devices(rows, known))))
            done(len(rows))
    note_names([table], known)
    if output is None:
        say(*text_table(pieces[0][1]))
        return 0
    write_sheets(output, pieces)
    wrote(output, len(table), "device")
    return 0


@command()
def optimise(
    plans: str, chosen: Chosen, objective: str | None, seed: int, generations: int, output: str | None,
    catalog: Sheets,
) -> None:  # fmt: skip
    """Find the shares of a device that make time, cost or energy of a plan smallest."""
    from xlperf.explore.allocate import OBJECTIVES, optimal_allocation

    plan = read_one(plans, chosen)
    known = catalog_for(catalog, plans, [plan])
    goal = objective or next(iter(OBJECTIVES[plan.kind]))
    with progress(generations, f"{generations} generations") as done:
        optimum = optimal_allocation(plan, known, goal, seed, generations=generations, progress=done)
    say(*_summary(optimum, goal, plan.kind))
    if output is not None:
        device = ("devices", parts(optimum.device, optimum.derived))
        write_sheets(output, [device, (plan.kind, parts(optimum.plan, optimum.outcome))])
        say(f"{output}: the device and its plan", err=True)


def _summary(optimum: Allocation, goal: str, kind: str) -> list[str]:
    """The result in lines: objective, shares, device, plan."""
    from xlperf.catalog.schema import results_of, shown_columns, unit_of
    from xlperf.explore.allocate import OBJECTIVES

    column = results_of(kind).by_name[OBJECTIVES[kind][goal]]
    scale = unit_of(column).factor
    before = f"{optimum.start / scale:.4g}" if optimum.start == optimum.start else "none"
    count = f"{optimum.num_evaluations:,} plans evaluated"
    lines = [f"{column.header}: {optimum.value / scale:.4g} (as given: {before}); {count}"]
    lines += [f"  {name.replace('_', ' ')}: {optimum.device.filled(name)[0]:.3f}" for name in viewed_columns("shares")]
    for name in shown_columns("devices_results", "table"):
        result = results_of("devices").by_name[name]
        lines.append(f"  {result.header}: {optimum.derived[name][0] / unit_of(result).factor:.4g}")
    lines.append(f"  limited by: {optimum.derived['limited_by'][0]}")
    chosen = {name: optimum.plan[name][0] for name in viewed_columns("mapping") if name in optimum.plan}
    words = (f"{name.replace('_', ' ')} {v if isinstance(v, str) else format(v, 'g')}" for name, v in chosen.items())
    return [*lines, f"  best plan: {', '.join(words)}"]


def _option(column: str) -> str:
    name = column.replace("_", "-")
    return {"operation": "xlperf explain --operation"}.get(name, f"-{name}" if len(name) == 1 else f"--{name}")


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each column of the table ``operations`` but the operation and the accelerator."""
    for column in reversed(table_schema("operations").columns[2:]):
        metavar = column.name.replace("_", "-").upper() if column.kind in ("reference", "choice", "text") else "VALUES"
        words = (
            f"{column.meaning}; in {column.unit}, or with a unit: '64 MiB'" if column.unit == "MB" else column.meaning
        )
        words += f".  [default: {column.default}]" if column.default else "."
        command = click.option(_option(column.name), metavar=metavar, help=words)(command)
    return command


@command(columns=_options)
def time(operation: str, accelerator: str, output: str | None, catalog: str | None, **given: str | None) -> None:
    """Time one collective or kernel by itself, as plans do."""
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.engine.operations import evaluate_operations
    from xlperf.explore.space import grid
    from xlperf.explore.vary import read_values

    known = catalog_of(catalog, None)
    stated = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    values: dict[str, np.ndarray] = {}
    for name, text in {"accelerator": accelerator, **stated}.items():
        values |= read_values("operations", [_line(name, text)], _option(name))
    base = Table("operations", {"operation": np.array([operation], dtype=object)}, lambda _row, column: _option(column))
    table = grid(base, values)
    results = evaluate_operations(table, known)
    note_names([table], known)
    for row, reason in enumerate(results.text("reason").tolist()):
        if reason:
            say(f"{operation} on {table.text('accelerator')[row]}: {reason}", err=True)
    shown = [
        part
        for part in parts(table, results)
        if part[0].name != "reason" and any(value != "" and value == value for value in part[1].tolist())
    ]
    deliver(output, "operations", parts(table, results), "operation", shown)
    if any(results.text("reason").tolist()):
        raise click.exceptions.Exit(1)


def _line(name: str, text: str) -> tuple[str, list[str]]:
    """A header and the values of an option; sizes with a unit in bytes."""
    from xlperf.base.units import UNITS

    words = text.split(",")
    matches = [_SIZE.fullmatch(word) for word in words]
    if name != "size" or not any(matches):
        return name, words
    sizes = []
    for word, part in zip(words, matches, strict=True):
        unit = UNITS.get(part[2]) if part else UNITS["MB"]
        if unit is None or unit.dimension != "B":
            raise InputError(Fault("--size", f'cannot be in "{part[2] if part else word}"; write bytes, as 64 MiB'))
        try:
            sizes.append(repr(float(part[1] if part else word) * unit.factor))
        except ValueError:
            raise InputError(Fault("--size", f'must be a number of bytes, as 64 MiB, got "{word.strip()}"')) from None
    return f"{name} (B)", sizes


_PLANS = ("training", "inference")
_WORDS = {"chiplets": "design", "servers": "server", "training": "plan", "inference": "plan"}


@command()
def cost(
    designs: str, output: str | None, case: str, placed: bool, tornado: str | None, sheet: str | None,
    owner: str | None, bridge: bool, bounds: Bounds, catalog: Sheets,
) -> None:  # fmt: skip
    """Cost of chiplet designs, or of servers per accelerator-hour."""
    from xlperf.catalog.read import read_designs
    from xlperf.engine.devices import evaluate_designs
    from xlperf.engine.ownership import evaluate_servers

    if tornado is not None and (case != "base" or placed):
        raise InputError(Fault("--tornado", "goes with neither --case nor --placed"))
    table = read_designs(designs, sheet)
    _refuse_options(table.kind, {"--placed": placed}, ("chiplets",))
    _refuse_options(table.kind, {"--owner": owner is not None, "--bridge": bridge}, _PLANS)
    _refuse_options(table.kind, {"--tornado": tornado is not None}, ("chiplets", "servers"))
    known = catalog_of(catalog, designs)
    noun = _WORDS[table.kind]
    if tornado is not None:
        from xlperf.explore.worth import cost_sensitivity

        deliver(output, "tornado", parts(cost_sensitivity(table, known, tornado)), noun, number=len(table))
        return
    if table.kind == "servers":
        results = evaluate_servers(table, case, known)
    elif table.kind in _PLANS:
        from xlperf.engine.ownership import cost_bridge, evaluate_ownership

        table = without_auto(table, known, bounds)
        names = known.tables["servers"].text("server").tolist()
        if owner is not None and not any(owner.strip().casefold() in name.casefold() for name in names):
            raise InputError(Fault("--owner", f'no server has "{owner}" in its name; {nearest(owner, names)}'))
        if bridge:
            deliver(output, "bridge", parts(cost_bridge(table, known, owner or "", case)), noun, number=len(table))
            return
        results = evaluate_ownership(table, known, owner or "", case)
    else:
        with progress(len(table), f"{len(table):,} designs") as done:
            results = evaluate_designs(table, known, case, placed, done)
    note_names([table], known)
    deliver(output, table.kind, parts(_without(table, results), results), noun)


def _refuse_options(kind: str, given: dict[str, bool], kinds: tuple[str, ...]) -> None:
    """Refuse an option without effect on these rows."""
    for name, is_given in given.items():
        if is_given and kind not in kinds:
            meant = " and ".join(dict.fromkeys(f"{_WORDS[own]}s" for own in kinds))
            raise InputError(Fault(name, f"is for {meant}, these are {_WORDS[kind]}s"))


def _without(table: Table, results: Table) -> Table:
    """A table without the columns that its results repeat."""
    columns = {name: values for name, values in table.columns.items() if name not in results}
    return type(table)(table.kind, columns, table.place)
