"""Commands that import rows (``model``, ``accelerator``, ``plan``), and ``launch``, which exports a plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xlperf.base.errors import Fault, InputError
from xlperf.base.units import factor
from xlperf.catalog.parts import parts, rounded
from xlperf.cli.command import Chosen, catalog_for, catalog_of, command, read_one
from xlperf.cli.output import STANDARD, aligned, deliver, say, working

if TYPE_CHECKING:
    from xlperf.catalog.table import Table
    from xlperf.interop.hugging_face import ModelRow


Row = Mapping[str, object]
_TOLERANCE = 0.005


@command()
def add(kind: str) -> None:
    """A model or an accelerator of your own: a row made from a file."""
    raise click.UsageError(f"{kind} comes first: xlperf add {kind} FILE")


@command()
def model(config: str, parameters: float | None, name: str | None, output: str | None, as_json: bool) -> int:
    """A model of your own: a row of models from a Hugging Face configuration."""
    from xlperf.interop.hugging_face import model_row
    from xlperf.interop.hugging_face_files import read_config

    settings, counted, where = read_config(config)
    path = Path(config).resolve()
    folder = path if path.is_dir() else path.parent
    chosen = name or str(settings.get("_name_or_path") or "").rstrip("/").rpartition("/")[2] or folder.name
    source = f"Hugging Face config.json, {path.name if path.is_dir() else config}"
    stated = parameters * factor("G") if parameters is not None else counted
    converted = model_row(settings, chosen, source, counted=None if stated is None else True)
    lines, agrees = _checked(converted, stated, where if parameters is None else "--parameters")
    if not agrees and converted.assumed and not converted.refused:
        converted = model_row(settings, chosen, source, counted=False)
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
    return [*lines, f"stated ({where}): {stated / billion:.5g} billion, {error:+.2%}: {verdict}"], agrees


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
        say(json.dumps({column.header: row[column.name] for column in columns}, ensure_ascii=False))
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
    from xlperf.catalog.csv_files import add_csv_row

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
        from xlperf.explore.auto import resolve

        plan = resolve(plan, known).plans
    stack = stack or _stack_of(plan)
    fitting = plan.kind == kind_of_stack(stack)
    results = evaluate(plan, known)
    illegal = str(results.text("reason")[0]) if results.number("memory")[0] != results.number("memory")[0] else ""
    refused = illegal or (refused_reasons(plan, known, stack)[0] if fitting else "")
    if refused:
        raise InputError(Fault(plan.place(0, "model"), f"{refused}; xlperf search finds a mapping that starts"))
    say(*launch_lines(plan, stack, shape_of(plan, known) if fitting else None))


def _stack_of(plan: Table) -> str:
    """The stack that starts a plan by its software."""
    from xlperf.base.resources import stack_folders
    from xlperf.interop.stack_rules import stack_named

    software, written = str(plan.filled("software")[0]), stack_folders("flags")
    stack = stack_named(software)
    if stack not in written:
        known = ", ".join(written)
        raise InputError(Fault(plan.place(0, "software"), f"{software} has no launch line; give --for one of {known}"))
    return stack


@command()
def plan(file: str, stack: str | None, given: tuple[str, ...], partial: bool, output: str, catalog: str | None) -> None:
    """Read the plan of a launch line, script, YAML or TOML file, or log."""
    from xlperf.interop.launch import MOST_TEXT, read_launch

    wrong = [text for text in given if not text.partition("=")[2]]
    if wrong:
        raise click.UsageError(f'--set must be as accelerator=H100-SXM-80GB, got "{wrong[0]}"')
    try:
        with sys.stdin if file == STANDARD else Path(file).open(encoding="utf-8") as stream:
            text = stream.read(MOST_TEXT + 1)
    except UnicodeDecodeError:
        raise InputError(Fault(file, "is no text in UTF-8")) from None
    name = "standard input" if file == STANDARD else Path(file).name
    stated = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in given)}
    folder = None if file == STANDARD else Path(file).parent
    models = catalog_of(catalog, None).tables["models"]
    launched = read_launch(text, name, stack or "", stated, models, partial, folder)
    listed = (
        ("moves a result, not read", launched.unread),
        ("not read", launched.unknown),
        ("variables not known; give them with --set", launched.open),
    )
    for words, flags in listed:
        if flags:
            say(f"note: {name}: {words}: {'; '.join(dict.fromkeys(flags))}", err=True)
    for note in launched.notes:
        say(f"note: {name}: {note}", err=True)
    deliver(output, launched.plan.kind, parts(launched.plan), "plan")
