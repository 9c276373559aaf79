"""Commands that answer a question as the front sheets do, in a line: ``serve``, ``train``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xlperf.catalog.schema import Column, first_words, results_of, table_schema
from xlperf.cli.command import command
from xlperf.cli.options import catalog_of
from xlperf.cli.output import Front, deliver, is_json, is_workbook, parts, rounded, say, took

if TYPE_CHECKING:
    from xlperf.catalog.table import Table

Words = Mapping[str, str | None]
_WITHOUT = {"request_rate": "users", "deadline": "num_accelerators"}
"""Entries that ask for what another one else states: the other one has no default beside them."""
_SHOWN = {
    "serve": (
        "accelerators", "accelerators_sure", "servers", "copies", "copy_size", "tensor_parallel", "expert_parallel",
        "data_parallel_attention", "prefill_accelerator", "prefill_accelerators", "prefill_tensor_parallel",
        "prefill_expert_parallel", "prefill_data_parallel_attention", "expert_dispatch", "two_batch_overlap",
        "prefill_tokens", "redundant_experts", "concurrency", "request_rate", "tokens_per_second_per_accelerator",
        "ttft", "tpot",
        "fleet_cost_per_million_output_tokens", "cost_per_million_output_tokens",
        "cost_per_million_output_tokens_all_in", "monthly_cost", "hour_price",
        "owned_fleet_cost_per_million_output_tokens", "owned_monthly_cost", "owned_hour_cost", "power",
        "accelerators_in_power", "users_in_power", "request_rate_in_power", "monthly_energy",
        "carbon_per_million_tokens", "monthly_carbon", "memory_used", "head_room", "precision", "kv_precision",
    ),
    "train": (
        "accelerators", "run_time", "run_cost", "hour_price", "owned_run_cost", "owned_hour_cost", "run_energy",
        "run_carbon", "carbon_per_million_tokens", "power", "accelerators_in_power", "run_time_in_power",
        "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "expert_parallel", "data_parallel",
        "micro_batch_size", "recompute", "step_time", "mfu", "goodput", "memory_reserved", "memory_capacity",
        "largest_loss",
    ),
    "chip": (
        "unit_cost", "capex", "peak_flop_rate_bf16", "peak_flop_rate_fp8", "cache", "memory_stacks", "memory_capacity",
        "memory_bandwidth", "num_multiprocessors", "thermal_design_power", "tokens_per_second_per_accelerator",
        "tokens_per_thousand_dollars", "limited_by", "chosen",
    ),
}  # fmt: skip
"""Results that a terminal shows below the answer."""
_SHARES = ("memory_used", "head_room", "mfu", "goodput")
"""Results without a unit that are said in per cent."""
_BANDS = {"fleet_cost_per_million_output_tokens": "cost"}
"""How the ends of the 80 % band of a result are named, where not as the result."""


def _option(column: Column, value: str) -> Any:
    """The option of an entry of a form."""
    unit = column.unit if column.unit not in ("", "-") else "N" if column.kind == "number" else "NAME"
    metavar = "|".join(column.choices) or unit
    words = f"{column.meaning}.  [default: {value}]"
    return click.option(f"--{column.name.replace('_', '-')}", column.name, metavar=metavar, help=words)


def form_options(kind: str, function: Any) -> Any:
    """Give a command an option for each entry of a form."""
    first = first_words(kind)
    for column in reversed(table_schema(kind).columns):
        if column.name in first:
            function = _option(column, first[column.name])(function)
    return function


def _says(answer: Mapping[str, Any], name: str) -> bool:
    """Whether an answer has a text."""
    return answer.get(name, "") not in ("", "none")


def answer_lines(kind: str, form: Mapping[str, str], answer: Mapping[str, Any], shown: list[str]) -> list[str]:
    """Lines of an answer on a terminal: the sentence, results, ``shown``, and the assumptions."""
    card = _card(kind, answer)
    beside = [f"{answer[name]}".rstrip(".") + "." for name in ("best_way", "api_answer") if _says(answer, name)]
    blocks = [[str(answer["answer"]), *beside], card, shown, _notes(form, answer)]
    return [line for block in blocks if block for line in (*block, "")][:-1]


def _answered(kind: str, given: Words, output: str | None, catalog: str | None) -> int:
    """Answer a form and print or write it; 1 without an answer."""
    import numpy as np

    from xlperf.engine import evaluate
    from xlperf.explore.forms import evaluate_forms, form_of, plan_of, ways_of, without_defaults

    values = {name: words for name, words in given.items() if words is not None}
    dropped = {other for name, other in _WITHOUT.items() if name in values}
    form = {name: value for name, value in first_words(kind).items() if name not in dropped} | values
    table = form_of(kind, form, lambda _, column: f"--{column.replace('_', '-')}")
    known = catalog_of(catalog, None)
    results = evaluate_forms(table, known)
    answer = {name: values[0] for name, values in results.columns.items()}
    plans, ways = ways_of(table, known) if kind == "serve" else (None, None)
    plans = plan_of(table, known) if kind == "train" else plans
    if output is None:
        say(*answer_lines(kind, form, answer, [] if ways is None else _ways(ways)))
        took(1, "answer")
    elif plans is not None and len(plans) and not is_json(output) and not is_workbook(output):
        chosen = without_defaults(plans.take([int(np.nan_to_num(answer.get("way", 1.0), nan=1.0)) - 1]))
        deliver(output, chosen.kind, parts(chosen, evaluate(chosen, known)), "plan")
    else:
        own = [part for part in parts(table) if part[0].name not in answer]
        nested = {} if ways is None else {"ways": [part for part in parts(ways) if part[0].name in _WAY]}
        whole = own + parts(results)
        deliver(output, kind, whole, "answer", front=Front(answers=[str(answer["answer"])], nested=nested))
    return 1 if str(answer["answer"]).startswith("No ") else 0


_WAY = (
    "way", "software", "mode", "copy_size", "prefill_accelerators", "accelerators", "accelerators_low",
    "accelerators_high", "accelerators_sure", "fleet_cost_per_million_output_tokens", "tokens_per_second_per_user",
    "ttft", "tpot", "trust",
)  # fmt: skip
"""Results of a way that a table of ways shows."""


def _ways(ways: Table) -> list[str]:
    """Lines of the ways to serve, the cheapest first."""
    from xlperf.base.units import MILLION
    from xlperf.explore.fleet_plans import engine_title

    if not len(ways):
        return []
    heads = ("way", "engine", "pools", "copy", "number", "80 %", "$/M", "trust")
    lines = [heads]
    for row in range(len(ways)):
        size, prefill = (float(ways.number(name)[row]) for name in ("copy_size", "prefill_accelerators"))
        count, low, high, cost = (
            float(ways.number(name)[row])
            for name in (
                "accelerators",
                "accelerators_low",
                "accelerators_high",
                "fleet_cost_per_million_output_tokens",
            )
        )
        pools = prefill == prefill
        lines.append((
            f"{row + 1}", engine_title(str(ways["software"][row])), "two" if pools else "one",
            f"{prefill:,.0f} + {size - prefill:,.0f}" if pools else f"{size:,.0f}", f"{count:,.0f}",
            f"{low:,.0f} to {high:,.0f}", rounded(cost * MILLION), str(ways["trust"][row]),
        ))  # fmt: skip
    left = (False, True, True, False, False, False, False, True)
    wide = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return [
        "  ".join(
            word.ljust(width) if to_left else word.rjust(width)
            for word, width, to_left in zip(line, wide, left, strict=True)
        ).rstrip()
        for line in lines
    ]


def _card(kind: str, answer: Mapping[str, Any]) -> list[str]:
    """Lines of name, value, unit and 80 % band of the results that a terminal shows."""
    from xlperf.catalog.schema import unit_of

    lines = []
    for column in (results_of(kind).by_name[name] for name in _SHOWN[kind]):
        value = answer[column.name]
        if column.is_text or value != value:
            lines += [(column, str(value), "")] if column.is_text and _says(answer, column.name) else []
            continue
        factor, name = unit_of(column).factor, _BANDS.get(column.name, column.name)
        ends = [answer.get(f"{name}_{end}", float("nan")) / factor for end in ("low", "high")]
        band = f"  80 %: {rounded(ends[0])} to {rounded(ends[1])}" if ends[0] == ends[0] else ""
        words = f"{rounded(100.0 * value)} %" if column.name in _SHARES else rounded(value / factor)
        lines.append((column, words, band))
    wide = max((len(column.header) for column, _, _ in lines), default=0)
    return [f"{column.header.ljust(wide)}  {words}{band}" for column, words, band in lines]


def _notes(form: Mapping[str, str], answer: Mapping[str, Any]) -> list[str]:
    """Notes below an answer: its trust, the defaults used, and the question."""
    sure = f"{answer['trust']}: {answer['trust_reason']}" if answer.get("trust") else ""
    asked = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in form.items() if value not in ("", "auto"))
    taken = "; ".join(filter(None, [answer.get("defaults_used", ""), _priced(answer)]))
    return [
        f"{words}{text}" for words, text in (("", sure), ("taken for granted: ", taken), ("asked: ", asked)) if text
    ]


def _priced(answer: Mapping[str, Any]) -> str:
    basis = str(answer.get("price_basis", ""))
    return f"price: {basis}" if basis else ""


@command(entries=partial(form_options, "serve"))
def serve(output: str | None, catalog: str | None, **given: str | None) -> int:
    """The cheapest fleet that serves so many users at their speed: engine, one pool or two, mapping, cost, power, the
    limiting resource; then every way to serve them. The sheet Serve in a line; entries that are not given have the
    values of the sheet and are listed below the answer. -o plan.csv writes the plan of a copy, which xlperf evaluate
    reads; --json the answer with all ways.
    """
    return _answered("serve", given, output, catalog)


@command(entries=partial(form_options, "train"))
def train(output: str | None, catalog: str | None, **given: str | None) -> int:
    """The fastest mapping of a training run: time, cost, energy, memory. The sheet Train in a line; entries that are
    not given have the values of the sheet and are listed below the answer. -o plan.csv writes its plan, which every
    command reads; --json the answer.
    """
    return _answered("train", given, output, catalog)
