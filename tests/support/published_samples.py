"""Published rows of the papers, one of them, and one with other cells."""

from __future__ import annotations

from collections.abc import Sequence

from places import DATA

from xlperf.catalog.catalog import Catalog
from xlperf.measurements.published import Published, published_rows
from xlperf.measurements.training import training_plans

TRAINING, INFERENCE = DATA / "training_published.csv", DATA / "inference_published.csv"


def one(published: Published, row_id: str) -> Published:
    return published.take([published.text["row_id"].index(row_id)])


def edited(published: Published, row_id: str, **values: str) -> Published:
    """One row with some cells changed."""
    row = published.text["row_id"].index(row_id)
    header = list(published.text)
    cells = [values.get(name, published.text[name][row]) for name in header]
    return published_rows(header, [cells], lambda row, column: f"row {row} {column}")


def plan_of(published: Published, catalog: Catalog) -> dict[str, object]:
    plans = training_plans(published, catalog).plans
    return {name: plans[name][0] for name in plans.columns}


def without_models(catalog: Catalog, *starts: str) -> Catalog:
    models = catalog.tables["models"]
    keep = [row for row, name in enumerate(models["model"]) if not name.startswith(starts)]
    return catalog.with_tables([models.take(keep)])


def rows_of_fit_set(text: str, rows: Sequence[str]) -> list[str]:
    """Row names that a fit set names, in the order of the table.

    >>> rows_of_fit_set("a-c e", ["a", "b", "c", "d", "e"])
    ['a', 'b', 'c', 'e']
    """
    at = {name: number for number, name in enumerate(rows)}
    result: list[str] = []
    for word in text.split():
        if word in at:
            result.append(word)
            continue
        for cut in (position for position, letter in enumerate(word) if letter == "-"):
            first, last = at.get(word[:cut]), at.get(word[cut + 1 :])
            if first is not None and last is not None:
                result += rows[first : last + 1]
                break
    return result
