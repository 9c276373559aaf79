"""A datasheet's card as a row of the sheet ``accelerators``: lines of a name and a value, in a vendor's words.

``memory bandwidth: 4.8 TB/s``, ``FP8 Tensor Core,3958 TFLOPS (with sparsity)`` and the sheet's own headers are read
alike. Names that no column has are named, not dropped in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from xlperf.base.errors import Fault, InputError, nearest
from xlperf.base.resources import rows
from xlperf.base.units import UNITS, factor
from xlperf.catalog.csv_files import read_text
from xlperf.catalog.schema import Column, known_units, split_header, table_schema, unit_of
from xlperf.interop.launch_text import loaded

_UNIT_WORDS = {
    "TFLOPS": "TFLOP/s", "PFLOPS": "PFLOP/s", "TOPS": "TFLOP/s", "TFLOP": "TFLOP/s", "POPS": "PFLOP/s",
    "GBPS": "GB/s", "TBPS": "TB/s", "WATT": "W", "WATTS": "W", "MHZ": "MHz", "GHZ": "GHz", "KW": "kW", "NM": "nm",
}  # fmt: skip
_VALUE = re.compile(r"(?:up to\s+)?(?P<number>\d[\d,]*\.?\d*)\s*(?P<unit>[A-Za-zµ/0-9]*)(?P<rest>.*)", re.IGNORECASE)
_SPARSE = re.compile(r"spars|\*", re.IGNORECASE)
_BOTH = re.compile(r"nvlink|infinity|interconnect|both directions|bidirectional", re.IGNORECASE)


class AcceleratorRow(NamedTuple):
    """A row of ``accelerators`` in the schema's units, the conversions of its numbers, and lines without a column."""

    row: dict[str, float | str]
    remarks: list[str]
    unread: list[str]


def read_card(path: str | os.PathLike[str]) -> dict[str, str]:
    """Lines of a name and a value, separated by a comma, tab, colon or equals sign, or a JSON object, of a file."""
    file = Path(path)
    text = read_text(file, "a card as .csv, .txt or .json")
    if file.suffix.casefold() == ".json":
        result = loaded(text)
        if result is None:
            raise InputError(Fault(str(path), "is no JSON"))
        if isinstance(result, dict):
            return {str(name): str(value) for name, value in result.items() if value is not None}
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [[part.strip().strip('"') for part in re.split(r"\s*[,\t:=]\s*", line, maxsplit=1)] for line in lines]
    card = {row[0]: row[1] for row in pairs if len(row) == 2 and row[1]}
    if not card:
        raise InputError(Fault(str(path), 'holds no line of a name and a value, such as "memory bandwidth: 4.8 TB/s"'))
    return card


def accelerator_row(card: Mapping[str, str], name: str, source: str) -> AcceleratorRow:
    """A card as a row of the sheet ``accelerators``; InputError names the line of a bad value."""
    columns = table_schema("accelerators").by_name
    row: dict[str, float | str] = {}
    remarks: list[str] = []
    unread: list[str] = []
    faults: list[Fault] = []
    for label, text in card.items():
        column = columns.get(_column_of(label))
        if column is None:
            known = nearest(split_header(label)[0].replace("_", " "), [c.replace("_", " ") for c in columns])
            unread.append(f'"{label}" is no column of accelerators; {known}')
        elif column.kind != "number":
            row[column.name] = text
        else:
            try:
                row[column.name] = _number(column, label, text, remarks)
            except ValueError as error:
                faults.append(Fault(source, f"{label}: {error}"))
    if faults:
        raise InputError(faults)
    row = {"accelerator": row.pop("accelerator", name), **row}
    row.setdefault("source", source)
    row.setdefault("kind", "datasheet")
    if remarks and "notes" not in row:
        row["notes"] = "; ".join(remarks)
    return AcceleratorRow(row, remarks, unread)


def _column_of(label: str) -> str:
    """Column that a line of a datasheet is about; "" if none is."""
    own = split_header(label)[0]
    if own in table_schema("accelerators").by_name:
        return own
    words = re.sub(r"[^a-z0-9]+", " ", re.sub(r"\([^)]*\)|\*", " ", label.casefold())).strip()
    known = rows("interop/datasheet_words.csv")
    return next((row["column"] for row in known if re.fullmatch(row["pattern"], words)), "")


def _number(column: Column, label: str, text: str, remarks: list[str]) -> float:
    """A value in the unit of the schema; sparse peaks are halved, as are links stated in both directions."""
    match = _VALUE.match(text.strip())
    if match is None:
        raise ValueError(
            f"a number{f' ({column.unit})' if column.unit not in ('', '-') else ''} is meant, got {text!r}"
        )
    value, stated = float(match["number"].replace(",", "")), match["unit"] or split_header(label)[1] or ""
    words = column.name.replace("_", " ")
    symbol = next((s for s in UNITS if s.casefold() == stated.casefold()), _UNIT_WORDS.get(stated.upper(), ""))
    if column.name == "memory_capacity" and symbol in ("GB", "GiB", ""):
        if symbol == "GB":
            remarks.append("memory capacity: GB of a datasheet are taken as GiB, as drivers report them")
    elif stated and not symbol and not column.is_whole:
        raise ValueError(f'"{stated}" is no unit; known are {", ".join(known_units(unit_of(column).dimension)[:8])}')
    elif symbol and not column.is_whole:
        if UNITS[symbol].dimension != unit_of(column).dimension:
            raise ValueError(f"{stated} is no unit of {words} ({column.unit})")
        value *= factor(symbol) / unit_of(column).factor
    if column.name.startswith("peak_flop_rate") and _SPARSE.search(f"{label} {match['rest']}"):
        value /= 2.0
        remarks.append(f"{words}: half of the peak with sparsity")
    if column.name == "link_bandwidth" and _BOTH.search(f"{label} {match['rest']}"):
        value /= 2.0
        remarks.append(f"{words}: half of the bandwidth stated for both directions")
    return float(f"{value:.15g}")
