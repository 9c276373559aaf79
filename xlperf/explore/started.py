"""Plans that their software starts: the rules of ``rules.csv`` for spaces and tables of plans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.stack_rules import rules_of
from xlperf.equations.plan.records import Rule, broken_rules, remarks_of_rows
from xlperf.explore.mappings import PartialInference, PartialPrefill, PartialTraining, server_sizes
from xlperf.explore.space import NotChosen, PartialPlan, Rules, space_of
from xlperf.interop.launch_start import Shape
from xlperf.interop.stack_rules import STACKS, stack_of_software

_RECORDS: dict[str, tuple[type[PartialPlan], ...]] = {
    "training": (PartialTraining,),
    "inference": (PartialInference, PartialPrefill),
}
"""Records that the rules of software read, by kind of plan."""


def stacks_of(plans: Table) -> tuple[str, ...]:
    """Software of plans with known rules, in order of the plans."""
    names = {stack_of_software(str(name)) for name in set(plans.filled("software").tolist())}
    return tuple(stack for stack in STACKS if stack in names)


def rules_of_stacks(plans: Table, stacks: Collection[str]) -> Rules:
    """Rules of software in the form that spaces of plans read.

    ``plans``: of the space. ``stacks``: :func:`stacks_of` these; each of several concerns its own plans.
    """
    kind = plans.kind
    whole = len(set(plans.filled("software").tolist())) == 1

    def of(rule: Rule[Any], stack: str) -> Rule[Any]:
        def broken(plan: Any, model: Any) -> np.ndarray:
            names = plan.filled("software").tolist()
            starts = {name: stack_of_software(str(name)) == stack for name in set(names)}
            return np.asarray(rule.broken(plan, model) & np.array([starts[name] for name in names], dtype=bool))

        return rule if whole else replace(rule, broken=broken)

    return [
        (record, of(rule, stack))
        for stack in stacks
        for rule in rules_of(kind, stack, True)
        for record in _RECORDS[kind]
    ]


def refused_reasons(plans: Table, catalog: Catalog, stack: str = "") -> list[str]:
    """Reason why the software of each plan does not start it, "" if it does or its rules are unknown.

    ``plans``: without ``auto``. ``stack``: software whose rules replace the rules of each plan's own.
    """
    if stack:
        named = np.full(len(plans), STACKS[stack].software, dtype=object)
        plans = replace(plans, columns={**plans.columns, "software": named}, auto={})
    rules = rules_of_stacks(plans, stacks_of(plans))
    result = [""] * len(plans)
    if not rules:
        return result
    space = space_of(plans, {}, catalog, rules[:1], len(plans))
    for record, rule in rules:
        plan: Any = space.plan(record)
        try:
            faults = broken_rules([rule], plan, plan.model)
        except NotChosen:
            continue
        concerned = True if plan.concerned is None else plan.concerned
        for each in faults:
            _, words = remarks_of_rows([each], len(plans))
            for row in np.flatnonzero(each.rows & concerned).tolist():
                result[row] = result[row] or str(words[row])
    return result


def shape_of(plan: Table, catalog: Catalog) -> Shape:
    """Facts of a plan's model and servers that a launch line needs.

    ``plan``: one row. Raises InputError if a name is unknown.
    """
    models = catalog.tables["models"]
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    model = {name: values[row] for name, values in models.columns.items() if values[row] == values[row]}
    return Shape(model, float(server_sizes(plan, catalog)[0][0]))
