"""Columns of a plan that a published row states by name, in its column ``settings``; why a row is no plan."""

from __future__ import annotations

import math

from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import table_schema, unit_of


class Refusal(Exception):
    """Why a published row is not a plan, in words."""


def stated_settings(kind: str, printed: str) -> dict[str, object]:
    """Columns of the plan that a row states by name; numbers in base units.

    >>> stated_settings("inference", "run_requests=500; output variation=0.7; graphs=no; software=vllm")
    {'run_requests': 500.0, 'output_variation': 0.7, 'graphs': 0.0, 'software': 'vllm'}
    >>> stated_settings("training", "master_weights=none; offload activations=1; compiled=yes")
    {'master_weights': 'none', 'offload_activations': 1.0, 'compiled': 1.0}

    ``kind``: training or inference. ``printed``: ``name=value``, separated by semicolons. Raises Refusal where a name
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
