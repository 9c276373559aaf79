"""Single published numbers of ``workbooks/rows/validation/single_published.csv``."""

from __future__ import annotations

import csv
from functools import cache

from places import ROOT


@cache
def _numbers() -> dict[str, float]:
    with (ROOT / "workbooks/rows/validation/single_published.csv").open(encoding="utf-8") as stream:
        return {row["row_id"]: float(row["value"]) for row in csv.DictReader(stream)}


def printed(row_id: str) -> float:
    """The number of a row in its unit."""
    return _numbers()[row_id]
