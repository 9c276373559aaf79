"""Which plans their stacks start: the rules of ``stack_rules.csv`` for spaces and tables of plans."""

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
from xlperf.interop.stack_rules import TITLES, stack_of_software

_RECORDS: dict[str, tuple[type[PartialPlan], ...]] = {
    "training": (PartialTraining,),
    "inference": (PartialInference, PartialPrefill),
}
"""Records that the rules of stacks read, by kind of plan."""


def stacks_of(plans: Table) -> tuple[str, ...]:
    """Stacks of plans whose rules are known, in their order."""
    names = {stack_of_software(str(name)) for name in set(plans.filled("software").tolist())}
    return tuple(stack for stack in TITLES if stack in names)


def rules_of_stacks(plans: Table, stacks: Collection[str]) -> Rules:
    """Rules of stacks as spaces of plans read them.

    ``plans``: of the space. ``stacks``: :func:`stacks_of` these; if there are several, each concerns its own plans.
    """
    kind = plans.kind
    whole = len(set(plans.filled("software").tolist())) == 1

    def of(rule: Rule[Any], stack: str) -> Rule[Any]:
        def broken(plan: Any, model: Any) -> np.ndarray:
            names = plan.filled("software").tolist()
            own = {name: stack_of_software(str(name)) == stack for name in set(names)}
            return np.asarray(rule.broken(plan, model) & np.array([own[name] for name in names], dtype=bool))

        return rule if whole else replace(rule, broken=broken)

    return [
        (record, of(rule, stack))
        for stack in stacks
        for rule in rules_of(kind, stack, True)
        for record in _RECORDS[kind]
    ]


def refused_reasons(plans: Table, catalog: Catalog, stack: str = "") -> list[str]:
    """Why the stack of each plan does not start it, "" if it does or its rules are not known.

    ``plans``: without ``auto``. ``catalog``: with the models. ``stack``: whose rules, in place of that of each plan's
    software.
    """
    if stack:
        software = "tensorrt-llm" if stack == "trtllm" else stack
        named = np.full(len(plans), software, dtype=object)
        plans = replace(plans, columns={**plans.columns, "software": named}, auto={})
    rules = rules_of_stacks(plans, stacks_of(plans))
    result = [""] * len(plans)
    if not rules:
        return result
    space = space_of(plans, {}, catalog, rules[:1], len(plans))
    for record, rule in rules:
        plan: Any = space.plan(record)
        try:
            said = broken_rules([rule], plan, plan.model)
        except NotChosen:
            continue
        concerned = True if plan.concerned is None else plan.concerned
        for each in said:
            _, words = remarks_of_rows([each], len(plans))
            for row in np.flatnonzero(each.rows & concerned).tolist():
                result[row] = result[row] or str(words[row])
    return result


def shape_of(plan: Table, catalog: Catalog) -> Shape:
    """What a launch line says of the model of a plan and of its servers.

    ``plan``: one row. Raises InputError where a name is unknown.
    """
    models = catalog.tables["models"]
    row = int(catalog.rows("models", plan.text("model"), plan, "model")[0])
    model = {name: values[row] for name, values in models.columns.items() if values[row] == values[row]}
    return Shape(model, float(server_sizes(plan, catalog)[0][0]))
