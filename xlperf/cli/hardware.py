"""Commands on hardware, ``cost`` (dies to accelerator-hours), ``device``, ``optimise`` (its shares), ``time``; and on
rows from files: ``model``, ``accelerator``, ``plan``, and ``launch``, which exports a plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.units import factor, percent
from xlperf.catalog.schema import parts, rounded, table_schema, viewed_columns
from xlperf.cli.command import Chosen, Sheets, catalog_for, catalog_of, command, note_names, read_one, without_auto
from xlperf.cli.output import (
    aligned,
    deliver,
    is_workbook,
    progress,
    say,
    terminal_width,
    text_table,
    working,
    write_sheets,
    wrote,
)
from xlperf.cli.plans import launched_plan

if TYPE_CHECKING:
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.explore.allocate import Allocation
    from xlperf.explore.candidates import Bounds
    from xlperf.interop.hugging_face import ModelRow

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
    plans: str, chosen: Chosen, objective: str | None, seed: int, generations: int, output: str | None, catalog: Sheets
) -> None:
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


def _operation_option(column: str) -> str:
    name = column.replace("_", "-")
    return {"operation": "xlperf explain --operation"}.get(name, f"-{name}" if len(name) == 1 else f"--{name}")


def _operation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each column of the table ``operations`` but the operation and the accelerator."""
    for column in reversed(table_schema("operations").columns[2:]):
        metavar = column.name.replace("_", "-").upper() if column.kind in ("reference", "choice", "text") else "VALUES"
        words = (
            f"{column.meaning}; in {column.unit}, or with a unit: '64 MiB'" if column.unit == "MB" else column.meaning
        )
        words += f".  [default: {column.default}]" if column.default else "."
        command = click.option(_operation_option(column.name), metavar=metavar, help=words)(command)
    return command


@command(columns=_operation_options)
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
        values |= read_values("operations", [_operation_values(name, text)], _operation_option(name))
    base = Table(
        "operations", {"operation": np.array([operation], dtype=object)}, lambda _row, column: _operation_option(column)
    )
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


def _operation_values(name: str, text: str) -> tuple[str, list[str]]:
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
    designs: str,
    output: str | None,
    case: str,
    placed: bool,
    tornado: str | None,
    sheet: str | None,
    owner: str | None,
    bridge: bool,
    bounds: Bounds,
    catalog: Sheets,
) -> None:
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
        from xlperf.explore.allocate import cost_sensitivity

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
    whole, view = parts(_without(table, results), results), "ownership" if table.kind in _PLANS else table.kind
    shown = [part for part in whole if part[0].name in viewed_columns(view)]
    deliver(output, table.kind, whole, noun, shown if terminal_width() else whole)


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


Row = Mapping[str, object]
_TOLERANCE = 0.005


@command()
def add(kind: str) -> None:
    """A model or an accelerator of your own: a row made from a file."""
    raise click.UsageError(f"{kind} comes first: xlperf add {kind} FILE")


@command()
def model(file: str, parameters: float | None, name: str | None, output: str | None, as_json: bool) -> int:
    """A model of your own: a row of models from a Hugging Face configuration, a launch file or a log."""
    from xlperf.interop.hugging_face import model_row
    from xlperf.interop.hugging_face_files import read_config
    from xlperf.interop.logs import beginning
    from xlperf.interop.stated_models import stated_model

    path, choices = Path(file).resolve(), dict[str, str]()
    text = "{" if path.is_dir() or path.suffix.casefold() == ".json" else beginning(path)
    if not text.lstrip().startswith("{"):
        settings, choices, counted, where = stated_model(text, path.name)
        own, source = path.stem, f"arguments of {path.name}"
    else:
        settings, counted, where = read_config(file)
        own = str(settings.get("_name_or_path") or "").rstrip("/").rpartition("/")[2] or _name_of(path)
        source = f"Hugging Face config.json, {path.name if path.is_dir() else file}"
    chosen = name or own
    stated = parameters * factor("G") if parameters is not None else counted
    converted = model_row(settings, chosen, source, None if stated is None else True, choices)
    lines, agrees = _checked(converted, stated, where if parameters is None else "--parameters")
    if not agrees and converted.assumed and not converted.refused:
        converted = model_row(settings, chosen, source, False, choices)
        lines.append(f"no plan is computed with this model: {converted.refused}")
    row = dict(converted.row)
    if stated is not None:
        row["stated_parameters"] = float(f"{stated / factor('G'):.6g}")
    listed = [str(row[name]) for name in ("attention_pattern", "ffn_pattern") if name in row]
    if listed and not converted.refused:
        lines.append(f"layers by kind: {'; feed-forward blocks: '.join(listed)}")
    if converted.filled:
        words = ", ".join(f"{key} {value}" for key, value in converted.filled.items())
        lines.append(f"not in the file, defaults of its class: {words}")
    lines += [f"left out: {words}" for words in converted.left_out]
    _deliver("models", _table("models", row), row, output, as_json, lines)
    return 0 if agrees and not converted.unread else 1


def _name_of(path: Path) -> str:
    """Name of a model by its file, by the folder of its config.json, or by its folder in the cache of Hugging Face's
    hub, which holds snapshots.

    >>> _name_of(Path("/a/Qwen3-8B_config.json")), _name_of(Path("/hub/models--org--M-7B/snapshots/0f3e/config.json"))
    ('Qwen3-8B', 'M-7B')
    """
    stem = "" if path.is_dir() else re.sub("([._-]?config|^params)$", "", path.stem).removesuffix("adapter")
    cached = next((part for part in path.parts if part.startswith("models--")), "")
    return (cached or stem or (path if path.is_dir() else path.parent).name).rpartition("--")[2]


def _checked(converted: ModelRow, stated: float | None, where: str) -> tuple[list[str], bool]:
    """Computed and stated parameters in lines, and whether plans can be computed."""
    from xlperf.catalog.catalog import Catalog
    from xlperf.engine.catalog_arrays import catalog_models
    from xlperf.equations.model.operators import mtp_parameters, parameter_count

    if converted.refused:
        return [f"no plan is computed with this model: {converted.refused}"], False
    billion = factor("G")
    table = _table("models", converted.row)
    models, reasons = catalog_models(Catalog.from_tables([table], ""))
    if reasons[0]:
        return [f"no plan is computed with this model: it {reasons[0]}"], False
    total, active = float(parameter_count(models)[0]), float(parameter_count(models, experts_per_token=True)[0])
    words = f"parameters by the shape: {total / billion:.5g} billion"
    lines = [words + (f", {_active(table, active)}" if active < total else "")]
    if stated is None:
        return [*lines, "not checked: give --parameters, or the folder with the weights or their index"], True
    extra = float(mtp_parameters(models)[0])
    computed = min((total, total + extra), key=lambda count: abs(count / stated - 1.0))
    if computed != total:
        lines.append(f"with the multi-token prediction modules: {computed / billion:.5g} billion")
    error = computed / stated - 1.0
    agrees = abs(error) <= _TOLERANCE
    verdict = "agrees" if agrees else "DIFFERS by more than 0.5 %: a part is missing, or the shape is another"
    return [
        *lines,
        f"stated ({where}): {stated / billion:.5g} billion, {percent(error, 2, signed=True)}: {verdict}",
    ], agrees


def _active(table: Table, active: float) -> str:
    """Active parameters per token in words: with the embeddings, without the input embedding, without any."""
    billion = factor("G")
    matrix = float(table["vocab_size"][0] * table["hidden_size"][0])
    words = f"{active / billion:.4g} active per token with embeddings"
    if not table.filled("tied_embeddings")[0]:
        words += f", {(active - matrix) / billion:.4g} without the input embedding"
        matrix *= 2.0
    return f"{words}, {(active - matrix) / billion:.4g} without input and output embeddings"


@command()
def accelerator(card: str, like: str | None, name: str | None, output: str | None, as_json: bool) -> int:
    """An accelerator of your own: a row of accelerators from a datasheet's card."""
    import numpy as np

    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.check import far_values
    from xlperf.catalog.table import Table
    from xlperf.interop.datasheet import accelerator_row, read_card

    converted = accelerator_row(read_card(card), name or Path(card).stem, f"datasheet, {Path(card).name}")
    row: dict[str, object] = {**converted.row, **({"accelerator": name} if name else {})}
    known = load_catalog()
    accelerators = known.tables["accelerators"]
    if like is not None:
        names = np.array([like], dtype=object)
        asked = Table("training", {"accelerator": names}, lambda _row, _column: "--like")
        index = known.rows("accelerators", names, asked, "accelerator")[0]
        for column in ("generation", "default_network"):
            if text := str(accelerators.text(column)[index]):
                row.setdefault(column, text)
    if "generation" not in row:
        generations = dict.fromkeys(str(text) for text in accelerators.text("generation").tolist() if text)
        problem = f"needs a line generation ({', '.join(generations)}), which keys the calibration, or --like NAME"
        raise InputError(Fault(card, problem))
    table = _table("accelerators", row)
    doubts = far_values(table, accelerators)
    lines = [*converted.remarks, *(f"not read: {words}" for words in converted.unread)]
    lines += [f"doubtful: {words}" for words in doubts]
    _deliver("accelerators", table, row, output, as_json, lines)
    return 1 if doubts else 0


def _table(kind: str, row: Row) -> Table:
    """A row as a table, checked as a sheet is; the values are in the units of the schema."""
    from xlperf.catalog.parse import table_from_rows
    from xlperf.catalog.schema import table_schema

    columns = [column for column in table_schema(kind).columns if column.name in row]
    return table_from_rows(kind, [column.header for column in columns], [[row[column.name] for column in columns]])


def _deliver(kind: str, table: Table, row: Row, output: str | None, as_json: bool, lines: list[str]) -> None:
    """Print a row as a card, or add it to a file, with remarks."""
    from xlperf.catalog.schema import table_schema

    columns = [column for column in table_schema(kind).columns if column.name in row]
    if output is not None:
        place, left_out = _added(output, kind, row)
        lines = [*lines, *(f"the sheet has no column {name.replace('_', ' ')}" for name in left_out), f"{place}: added"]
        if kind == "accelerators" and output.casefold().endswith(".xlsx"):
            lines.append("its price is a row of the sheet prices: without one no plan on it has a cost")
    if as_json:
        say(json.dumps({column.header: row[column.name] for column in columns}, ensure_ascii=False), folded=False)
    elif output is None:
        values = [v if isinstance(v := row[c.name], str) else rounded(float(str(v))) for c in columns]
        say(*aligned([[column.header for column in columns], values], (False, False)))
    say(*lines, err=as_json)


def _added(output: str, kind: str, row: Row) -> tuple[str, list[str]]:
    """Add a row to a workbook or a CSV table, made if missing; its place and the columns that the sheet lacks."""
    file = Path(output)
    values = {name: value for name, value in row.items() if isinstance(value, (str, int, float))}
    if file.suffix.casefold() in (".xlsx", ".xlsm"):
        from xlperf.catalog.xlsx_rows import add_row

        if not file.exists():
            from xlperf.workbook.build import new_workbook

            with working(f"making {file.name}"):
                new_workbook(file)
        return add_row(file, kind, values)
    if file.suffix.casefold() != ".csv":
        raise InputError(Fault(output, "must end in .xlsx or .csv"))
    from xlperf.catalog.xlsx_rows import add_csv_row

    return f"{file.name}:{add_csv_row(file, kind, values)}", []


@command()
def launch(plans: str, stack: str | None, chosen: Chosen, catalog: str | None) -> None:
    """Print the arguments that start a plan in a training or serving stack."""
    from xlperf.engine import evaluate
    from xlperf.explore.mappings import refused_reasons, shape_of
    from xlperf.interop.launch import launch_lines
    from xlperf.interop.launch_stacks import kind_of_stack

    plan = read_one(plans, chosen)
    known = catalog_for(catalog, plans, [plan])
    if any(mask.any() for mask in plan.auto.values()):
        from xlperf.explore.search import resolve

        plan = resolve(plan, known).plans
    stack = stack or _stack_of(plan)
    fitting = plan.kind == kind_of_stack(stack)
    results = evaluate(plan, known)
    illegal = str(results.text("reason")[0]) if results.number("memory")[0] != results.number("memory")[0] else ""
    refused = illegal or (refused_reasons(plan, known, stack)[0] if fitting else "")
    if refused:
        raise InputError(Fault(plan.place(0, "model"), f"{refused}; xlperf search finds a mapping that starts"))
    say(*launch_lines(plan, stack, shape_of(plan, known) if fitting else None), folded=False)


def _stack_of(plan: Table) -> str:
    """The stack that starts a plan by its software."""
    from xlperf.base.resources import stack_folders
    from xlperf.interop.software import stack_named

    software, written = str(plan.filled("software")[0]), stack_folders("flags")
    stack = stack_named(software)
    if stack not in written:
        known = ", ".join(written)
        raise InputError(Fault(plan.place(0, "software"), f"{software} has no launch line; give --for one of {known}"))
    return stack


@command()
def plan(file: str, stack: str | None, given: tuple[str, ...], partial: bool, output: str, catalog: str | None) -> None:
    """Read the plan of a launch line, script, YAML or TOML file, or log."""
    read = launched_plan(file, stack, given, partial, catalog)
    deliver(output, read.kind, parts(read), "plan")
