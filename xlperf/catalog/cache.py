"""Cache of the tables of the shipped workbook, in the user's cache folder.

Reading the workbook takes longer than anything that a command does with one plan. The name of a cache file is a hash
of the workbook and of the state of the modules that read it: when any of them changes, the workbook is read again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlperf.base.files import cache_folder, store, stored
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import NamedCells, SheetCells, Table

MOST_FILES = 4
"""Files that stay in the cache folder, the newest. [-]"""


def cached_tables(path: Path, folder: Path | None = None) -> list[Table] | None:
    """Tables of a workbook from its cache; none if the cache lacks it and these readers, or another user may have
    written it.
    """
    try:
        target = _file(path, folder)
        with stored(target) as stream:
            if not _ours_alone(os.fstat(stream.fileno())) or not _ours_alone(target.parent.stat()):
                return None
            seal, _, content = stream.read().partition(b"\n")
        if seal.decode("ascii") != _digest(content):
            return None
        return [_restored(path.name, table) for table in json.loads(content)]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def cache_tables(path: Path, tables: Sequence[Table], folder: Path | None = None) -> None:
    """Write the tables of a workbook without faults to the cache; nothing happens if it cannot be written."""
    content = json.dumps([_described(table) for table in tables], separators=(",", ":")).encode("ascii")
    with contextlib.suppress(OSError):
        target = _file(path, folder)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _ours_alone(target.parent.stat()):
            return
        with contextlib.suppress(FileNotFoundError):
            if not _ours_alone(target.stat()):
                target.unlink()
        store(target, _digest(content).encode("ascii") + b"\n" + content)
        kept = [file for file in target.parent.iterdir() if not file.name.startswith(".")]
        files = sorted(kept, key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for old in files[MOST_FILES:]:
            old.unlink()


def _ours_alone(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and nobody else may write it; who may could forge the cache."""
    if sys.platform in ("win32", "emscripten"):  # the user's profile, or a browser's memory: the bits say nothing
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _file(path: Path, folder: Path | None) -> Path:
    """Cache file of a workbook, by its content and the state of the modules that read it."""
    beside = Path(__file__).parent
    readers = [file for file in beside.iterdir() if file.suffix in (".py", ".csv")]
    states = [(file.name, file.stat()) for file in sorted([*readers, beside.parent / "base" / "units.py"])]
    read_by = "\n".join(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states)
    return (folder or cache_folder() / "workbooks") / f"{_digest(path.read_bytes() + read_by.encode())}.json"


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _described(table: Table) -> dict[str, Any]:
    """A table as JSON can hold it: columns, and the cells of their values."""
    cells = table.place
    assert isinstance(cells, NamedCells) and isinstance(cells.locate, SheetCells)  # it was read from a sheet
    return {
        "kind": table.kind,
        "columns": {name: values.tolist() for name, values in table.columns.items()},
        "sheet": cells.locate.sheet,
        "header_row": cells.locate.header_row,
        "rows": [cells.locate.rows[row] for row in cells.rows],
        "sheet_columns": list(cells.locate.columns),
        "positions": dict(cells.positions),
    }


def _restored(book: str, known: dict[str, Any]) -> Table:
    declared = table_schema(known["kind"]).by_name
    columns = {
        name: np.array(values, dtype=object if declared[name].is_text else np.float64)
        for name, values in known["columns"].items()
    }
    cells = SheetCells(book, known["sheet"], known["header_row"], known["rows"], known["sheet_columns"])
    return Table(known["kind"], columns, NamedCells(cells, range(len(known["rows"])), known["positions"]))
