"""Entries of a form in words."""

from __future__ import annotations

from collections.abc import Mapping

from xlperf.base import resources
from xlperf.catalog.cells import number_of
from xlperf.catalog.schema import Column, table_schema

_THOUSAND, _YEARS = 1000.0, ("first_year", "owned_since")  # [-]; entries that are no amounts


def entry_words(column: Column, value: str) -> str:
    """An entry in words: its name and its value, a number with its unit.

    >>> from xlperf.catalog.schema import column
    >>> entry_words(column("serve", "ttft_target"), "2000"), entry_words(column("serve", "model"), "GPT")
    ('ttft target 2,000 ms', 'model GPT')
    """
    number = number_of(value) if column.kind == "number" else float("nan")
    if number != number:
        return f"{column.words} {value}"
    if number >= _THOUSAND and number.is_integer() and column.name not in _YEARS:
        value = f"{number:,.0f}"
    return f"{column.words} {value} {column.unit if column.unit != '-' else ''}".rstrip()


def asked_words(kind: str, form: Mapping[str, str]) -> str:
    """The stated entries of a form, without those that have no effect beside the others (``silent_entries.csv``)."""
    known = table_schema(kind).by_name
    silent = {
        name for row in resources.rows("catalog/silent_entries.csv")
        if row["form"] == kind and form.get(row["entry"], "") == row["value"] for name in row["without effect"].split()
    }  # fmt: skip
    said = {name: value for name, value in form.items() if value not in ("", "auto") and name not in silent}
    return ", ".join(entry_words(known[name], value) for name, value in said.items())
