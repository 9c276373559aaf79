"""Plans that searches start from: a small dense model in training, a mixture of experts in serving."""

from __future__ import annotations

from typing import Any

from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table

TRAIN: dict[str, Any] = {
    "model": "Meta-Llama-3.1-8B", "accelerator": "H100-SXM-80GB", "num accelerators": 8, "global batch size": 32,
}  # fmt: skip
SERVE: dict[str, Any] = {
    "model": "Mixtral-8x7B", "accelerator": "H100-SXM-80GB", "num accelerators": 8, "prompt length": 1000,
    "output length": 200, "concurrency": 16,
}  # fmt: skip


def plan(base: dict[str, Any], *auto: str, **more: Any) -> Table:
    row = {**base, **{name.replace("_", " "): value for name, value in more.items()}, **dict.fromkeys(auto, "auto")}
    return table_from_rows("inference" if "prompt length" in row else "training", list(row), [list(row.values())])
