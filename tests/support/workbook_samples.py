"""A small workbook with every sheet, written cell by cell, that tests spoil in one place."""

from __future__ import annotations

import copy
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openpyxl import Workbook
from openpyxl.worksheet.table import Table

from xlperf.base.errors import InputError

Sheets = dict[str, list[list[Any]]]

_SHEETS: Sheets = {
    "accelerators": [
        [
            "accelerator",
            "generation",
            "peak flop rate bf16 (TFLOP/s)",
            "memory capacity (GiB)",
            "memory bandwidth (TB/s)",
            "thermal design power (W)",
            "default network",
            "kind",
            "source",
            "year",
        ],
        ["H100", "hopper", 989, 79.65, 3.35, 700, "DGX-H100", "datasheet", "datasheet", 2022],
        ["A100", "ampere", 312, 80, 2.039, 400, "DGX-A100", "datasheet", "datasheet", 2020],
    ],
    "networks": [
        ["network", "tier", "size", "link bandwidth (GB/s)", "latency (us)", "topology", "source", "year"],
        ["DGX-H100", 1, 8, 450, 1, "switch", "datasheet", 2022],
        ["DGX-H100", 2, 1024, 50, 5, "fat-tree", "datasheet", 2022],
        ["DGX-A100", 1, 8, 300, 1, "switch", "datasheet", 2020],
    ],
    "models": [
        [
            "model",
            "aliases",
            "num layers",
            "hidden size",
            "num attention heads",
            "ffn hidden size",
            "vocab size",
            "gated mlp",
            "source",
            "year",
        ],
        ["llama-2-7b", "Llama 2 7B; llama2-7b", 32, 4096, 32, 11008, 32000, "yes", "paper", 2023],
        ["gpt-3", None, 96, 12288, 96, 49152, 51200, False, "paper", 2020],
    ],
    "prices": [
        ["price", "capex (USD)", "year", "source"],
        ["H100", 30000, 2024, "list"],
        ["A100", 15000, 2024, "list"],
    ],
    "calibration": [
        ["calibration", "family", "generation", "precision", "software", "constant", "value", "unit", "source", "year"],
        ["one", "gemm", "hopper", "bf16", "any", "launch_time", 4, "us", "fit", 2025],
        ["two", "gemm", "any", "any", "any", "launch_time", 6, "us", "fit", 2025],
    ],
    "training": [
        ["name", "model", "accelerator", "num accelerators", "tensor parallel", "precision", "step time (s)"],
        ["a", "llama-2-7b", "H100", 8, 8, "bf16", "=1+1"],
        ["b", "GPT-3", "a100", 64, None, None, "=1+1"],
    ],
}


def sheets() -> Sheets:
    """Rows of every sheet, the header first; a copy that may be changed."""
    return copy.deepcopy(_SHEETS)


def write(path: Path, content: Sheets, tables: bool = True) -> Path:
    """Write sheets as a workbook, each with an Excel table of its name where ``tables``."""
    book = Workbook()
    book.remove(book.active)
    for name, rows in content.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
        if tables:
            sheet.add_table(Table(displayName=name, ref=sheet.dimensions))
    book.save(path)
    return path


def set_cell(content: Sheets, address: str, value: Any) -> Sheets:
    """Set one cell by ``sheet!F2``."""
    sheet, _, cell = address.partition("!")
    content[sheet][int(cell[1:]) - 1][ord(cell[0]) - 65] = value
    return content


def without_column(content: Sheets, sheet: str, header: str) -> Sheets:
    """Leave one column out."""
    position = content[sheet][0].index(header)
    content[sheet] = [row[:position] + row[position + 1 :] for row in content[sheet]]
    return content


def refused(action: Callable[..., object], argument: Any) -> str:
    """What an action says when it refuses an argument."""
    with pytest.raises(InputError) as caught:
        action(argument)
    return str(caught.value)


def edited(path: Path, part: str, edit: Callable[[str], str]) -> Path:
    """A package with one of its parts changed."""
    with zipfile.ZipFile(path) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    parts[part] = edit(parts[part].decode()).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in parts.items():
            package.writestr(name, content)
    return path


HEADER = "name,model,accelerator,num accelerators"
PLAN = "first,Llama3-70B,H100-SXM-80GB,64"


def csv_of(path: Path, *rows: str, header: str = HEADER) -> Path:
    """A file of plans."""
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path
