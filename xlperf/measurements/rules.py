"""Rules and stated settings of published rows: the plan columns that they fill, and why a row is no plan."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import table_schema, unit_of
from xlperf.measurements.published import KINDS, published_columns

FILE = "published_defaults.csv"
_PATTERNS = ("software", "source_id", "source", "model", "gpu", "notes")
_HEADER = ("table", *_PATTERNS, "row", "settings", "reference")
_RANGE = re.compile(r"(?P<low>[\d.]*?)(?:\.\.(?P<high>[\d.]*))?")
_FURTHER = frozenset(
    "num_layers length_share run_waves draft_tokens_copies expert_mapping batch_wait_steps scheduler_limits".split()
)
"""Settings that are no columns of a plan: :func:`default_of` says what they mean."""
_RELEASE = "release"
"""Of a training row, beside its columns: the release of its stack that its source names."""

Condition = tuple[str, "re.Pattern[str] | tuple[float, float]"]


@dataclass(frozen=True)
class Rule:
    """A line: what it is about, what it sets, and where that is documented."""

    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    rows: tuple[tuple[Condition, ...], ...]
    settings: Mapping[str, str]
    reference: str

    def number(self, text: Mapping[str, str]) -> str | None:
        """The number that a pattern finds in a row, "" if none asks for one; None if the line does not fit."""
        number = ""
        for name, pattern in self.patterns:
            match = pattern.match(text[name].casefold())
            if match is None:
                return None
            number = match.groupdict().get("n") or number
        either = not self.rows or any(all(_holds(text, *one) for one in conditions) for conditions in self.rows)
        return number if either else None


def _holds(text: Mapping[str, str], name: str, wanted: re.Pattern[str] | tuple[float, float]) -> bool:
    value = text.get(name, "")
    if isinstance(wanted, re.Pattern):
        return wanted.match(value.casefold()) is not None
    return bool(value) and wanted[0] <= number_of(value) <= wanted[1]


def default_of(kind: str, text: Mapping[str, str], setting: str) -> tuple[str, str]:
    """What is documented for a setting that a published row does not state, and where.

    ``kind``: training or inference. ``text``: the row as printed; ``software``: its stack or serving engine as plans
    name it. ``setting``: a column of plans, also of some of its rows (``recompute of full``), or ``num_layers`` (of
    the model), ``length_share`` (mean of the lengths over the stated ones), ``run_waves`` (requests of a run over those
    in flight), ``draft_tokens_copies`` (tokens drafted if the attention layers have copies), ``expert_mapping``
    (what a script spreads over all ranks by itself: experts, ``ranks``, or copies of the attention layers too,
    ``copies``), ``batch_wait_steps`` (steps that a prompt waits for a full pass), ``scheduler_limits`` (of requests and
    tokens). Returns value, "" for none, and reference.
    """
    for rule in _rules()[kind].get(setting, ()):
        number = rule.number(text)
        if number is not None:
            return rule.settings[setting].replace("{n}", number), rule.reference
    return "", ""


@cache
def _rules() -> Mapping[str, Mapping[str, tuple[Rule, ...]]]:
    return read_rules(resources.rows(f"measurements/{FILE}"))


def read_rules(lines: Iterable[Mapping[str, str]]) -> Mapping[str, Mapping[str, tuple[Rule, ...]]]:
    """Lines of the table as rules in their order, by kind of row and setting.

    Raises InputError with every fault: a column that is no column, a setting that no plan has, a value that is none.
    """
    by_name: dict[str, dict[str, tuple[Rule, ...]]] = {kind: {} for kind in KINDS}
    faults: list[Fault] = []
    for number, line in enumerate(lines, 2):
        try:
            rule = _rule(line)
        except ValueError as wrong:
            faults.append(Fault(f"{FILE} [line {number}]", str(wrong)))
            continue
        for setting in rule.settings:
            by_name[line["table"]][setting] = (*by_name[line["table"]].get(setting, ()), rule)
    if faults:
        raise InputError(faults)
    return by_name


def _rule(line: Mapping[str, str]) -> Rule:
    if tuple(line) != _HEADER:
        raise ValueError(f"has the columns {', '.join(line)}; wanted are {', '.join(_HEADER)}")
    kind, blank = line["table"], [name for name in (*_PATTERNS, "settings", "reference") if not line[name]]
    if kind not in KINDS:
        raise ValueError(f'table is "{kind}"; one of {", ".join(KINDS)} is wanted')
    if blank:
        raise ValueError(f"{blank[0]} is blank")
    patterns = tuple((name, _pattern(line[name])) for name in _PATTERNS if line[name] != "*")
    lists = line["row"].split("|") if line["row"] else []
    rows = tuple(tuple(_condition(kind, *pair) for pair in _pairs(part)) for part in lists)
    pairs = _pairs(line["settings"])
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("gives a setting twice")
    columns = {column.name for column in table_schema(kind).columns} | _FURTHER
    for name in settings:
        if name.partition(" of ")[0] not in columns:
            raise ValueError(f'setting "{name}" is no column of a plan')
    return Rule(patterns, rows, settings, line["reference"])


def _pairs(words: str) -> list[tuple[str, str]]:
    """Names and values of ``name=value; name=value``.

    >>> _pairs("graph_tokens=; zero_stage = 3")
    [('graph_tokens', ''), ('zero_stage', '3')]
    """
    parts = [part.partition("=") for part in words.split(";")]
    for name, equals, _ in parts:
        if not (name.strip() and equals):
            raise ValueError(f'"{words.strip()}" is no list of name=value; separate them by semicolons')
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _pattern(words: str) -> re.Pattern[str]:
    """Alternatives with wildcards as one expression.

    >>> [bool(_pattern("b[23]00*|*zero1={n},*").match(words)) for words in ("b300-sxm", "mtp zero1=8, a", "gb200")]
    [True, True, False]
    """
    each = [fnmatch.translate(part.strip().casefold()) for part in words.split("|")]
    return re.compile("|".join(each).replace(re.escape("{n}"), r"(?P<n>\d+)"))


def _condition(kind: str, name: str, wanted: str) -> Condition:
    sort = published_columns()[kind].get(name, "text" if name == _RELEASE else "")
    if not sort:
        raise ValueError(f'row names "{name}", which is no column of {kind} rows')
    if sort == "text":
        return name, _pattern(wanted)
    match = _RANGE.fullmatch(wanted)
    if match is None or not any(match.groups()):
        raise ValueError(f'row wants {name} to be "{wanted}"; enter a number or a range such as 1..8')
    low = float(match["low"] or "-inf")
    return name, (low, low if match["high"] is None else float(match["high"] or math.inf))


class Refusal(Exception):
    """Why a published row is not a plan, in words."""


def stated_settings(kind: str, printed: str) -> dict[str, object]:
    """Columns of the plan that a row states by name; numbers in base units.

    >>> stated_settings("inference", "run_requests=500; output variation=0.7; graphs=no; software=vllm")
    {'run_requests': 500.0, 'output_variation': 0.7, 'graphs': 0.0, 'software': 'vllm'}
    >>> stated_settings("training", "master_weights=none; offload activations=1; compiled=yes")
    {'master_weights': 'none', 'offload_activations': 1.0, 'compiled': 1.0}

    ``kind``: training or inference. ``printed``: ``name=value``, separated by semicolons. Raises Refusal if a name
    is no column of such plans, a column is given twice, or its value is no number or none of its choices.
    """
    columns = {column.name: column for column in table_schema(kind).columns}
    stated: dict[str, object] = {}
    for word in filter(None, map(str.strip, printed.split(";"))):
        name, _, value = (part.strip() for part in word.partition("="))
        column = columns.get(name.replace(" ", "_"))
        if column is None or not value:
            raise Refusal(f'settings: "{word}" is no column of a plan with its value')
        if column.name in stated:
            raise Refusal(f'settings: "{word}" gives a column twice')
        given: object = value
        if column.choices and value not in column.choices:
            raise Refusal(f'settings: "{word}" is none of {", ".join(column.choices)}')
        if not column.is_text:
            given = {"yes": 1.0, "no": 0.0}.get(value.casefold(), number_of(value)) * unit_of(column).factor
            if math.isnan(given):
                raise Refusal(f'settings: "{word}" needs a number')
        stated[column.name] = given
    return stated
