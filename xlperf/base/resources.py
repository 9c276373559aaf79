"""Paths of shipped workbooks, templates and tables, in the wheel or beside the package in a checkout."""

from __future__ import annotations

import csv
import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _resource(folder: str, name: str) -> Path:
    installed = _PACKAGE / folder / name
    return installed if installed.exists() else _PACKAGE.parent / folder / name


def workbook(name: str = "xlperf.xlsx") -> Path:
    """Path of a shipped workbook: ``xlperf.xlsx`` or ``validation.xlsx``."""
    return _resource("workbooks", name)


def template(name: str) -> Path:
    """Path of a shipped template."""
    return _resource("templates", name)


def table(name: str) -> Path:
    """Path of a CSV file of the package."""
    return _PACKAGE / name


def stamp() -> str:
    """Text that changes with the package and the catalog that it ships: sizes and times of change of their files."""
    files = sorted(path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".csv"))
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in [*files, workbook()]]
    return hashlib.sha256(repr(states).encode()).hexdigest()


def rows(name: str) -> list[dict[str, str]]:
    """Rows of a CSV file of the package, such as ``studies/studies.csv``."""
    header, lines = cells(name)
    return [dict(zip(header, line, strict=True)) for line in lines]


@cache
def stack_folders(name: str) -> tuple[str, ...]:
    """Stacks with a table of a name in ``interop/stacks``: in the order of ``interop/stacks.csv``, others by name.

    >>> stack_folders("stack")[:2]
    ('megatron', 'nemo')
    """
    present = sorted(path.parent.name for path in table("interop/stacks").glob(f"*/{name}.csv"))
    listed = [row["stack"] for row in rows("interop/stacks.csv") if row["table"] == name]
    return tuple(dict.fromkeys((*listed, *present)))


@cache
def stack_rows(name: str) -> tuple[dict[str, str], ...]:
    """Rows of a table of all stacks, such as ``flags``: ``interop/stacks/<stack>/flags.csv`` of each.

    A number in a column ``order`` moves a row before all rows with a larger number or none.

    >>> stack_rows("flags")[0]["stack"]
    'megatron'
    """
    result = [row for folder in stack_folders(name) for row in rows(f"interop/stacks/{folder}/{name}.csv")]
    return tuple(sorted(result, key=lambda row: float(row.pop("order", "") or "inf")))


def cells(name: str) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a CSV file of the package."""
    text = table(name).read_text(encoding="utf-8")
    written = text.splitlines()
    header, *lines = csv.reader(written) if '"' in text else (line.split(",") for line in written)
    return header, [line for line in lines if any(line)]


def shipped_folders() -> tuple[Path, ...]:
    """Folders whose files xlperf reads: the package, workbooks, templates."""
    return (_PACKAGE, workbook().parent, template("report.xlsx").parent)
