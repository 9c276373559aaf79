"""Plans as records: made from the schema alone, read by the equations under the names of the sheet."""

from __future__ import annotations

import ast
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import PLAN_TABLES, column, table_schema
from xlperf.catalog.table import Table
from xlperf.engine.join import plan_columns
from xlperf.equations.plan import records
from xlperf.equations.plan.records import PlanColumns
from xlperf.equations.plan.serving_plan import SERVED_PRECISIONS
from xlperf.equations.plan.training_plan import TRAINING_RULES, TrainingPlan

CODES = {name: vars(value) for name, value in vars(records).items() if isinstance(value, records.Codes)}


def _plans(**given: object) -> Table:
    columns: dict[str, object] = {"model": "GPT-3-175B", "accelerator": "A100", "num_accelerators": 8, **given}
    return table_from_rows("training", list(columns), [list(columns.values())], lambda row, name: name)


@pytest.mark.parametrize("title", CODES)
def test_codes_are_positions_of_the_words_in_the_schema(title: str) -> None:
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", title).lower()
    allowed = [column(table, name).choices for table in PLAN_TABLES if name in table_schema(table).by_name]
    assert CODES[title]
    for word, code in CODES[title].items():
        spelled = word.lower().replace("_", "-")
        positions = {entry.index(spelled) for entry in allowed if spelled in entry}
        assert positions == {int(code)}, f"{name}: {spelled}"


def test_a_record_has_every_number_flag_and_choice_with_its_default() -> None:
    plan = plan_columns(_plans(pipeline_schedule="zero-bubble", checkpoint_bandwidth=1.0), PlanColumns)
    for declared in table_schema("training").columns:
        if declared.kind in ("number", "flag", "choice"):
            assert getattr(plan, declared.name).shape == (1,), declared.name
    assert plan.pipeline_schedule[0] == records.PipelineSchedule.ZERO_BUBBLE
    assert plan.recompute[0] == records.Recompute.NONE
    assert plan.pipeline_overlap[0] == 1.0
    assert plan.checkpoint_bandwidth[0] == 1e9
    assert np.isnan(plan.gradient_precision[0]) and np.isnan(plan.data_parallel[0])
    assert plan.words("model").tolist() == ["GPT-3-175B"] and plan.words("dimension_order").tolist() == [""]
    assert plan.has("model") and not plan.has("recompute")


def test_a_record_is_read_only_and_a_changed_one_forgets_what_followed() -> None:
    class Plan(PlanColumns):
        @property
        def twice(self) -> np.ndarray:
            return 2.0 * self.tensor_parallel

    plan = Plan({"tensor_parallel": np.array([1.0, 2.0]), "share": np.array(0.5)}, {"model": np.array(["a", "b"])})
    with pytest.raises(AttributeError, match="read-only"):
        plan.tensor_parallel = np.array([3.0])
    assert plan.replaced(tensor_parallel=np.array([4.0, 8.0])).twice.tolist() == [8.0, 16.0]
    second = plan.take(slice(1, 2))
    assert (second.twice.tolist(), float(second.share), second.words("model").tolist()) == ([4.0], 0.5, ["b"])
    assert (len(plan), len(second)) == (2, 1)


def _attributes_read(folder: str, name: str) -> set[str]:
    """Attributes that the modules of a folder read of a variable or field of some name."""
    result = set()
    for path in Path(str(files("xlperf"))).joinpath(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                owner = node.value
                word = (
                    owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                )
                if word == name:
                    result.add(node.attr)
    return result


def test_every_attribute_of_a_training_plan_is_a_column_or_follows_from_columns() -> None:
    columns = {declared.name for declared in table_schema("training").columns}
    resolved = set(TrainingPlan.__annotations__)  # filled in by the engine
    read = _attributes_read("equations/training", "plan") | {
        name for rule in TRAINING_RULES for name in re.findall(r"\{(\w+)\}", rule.reason)
    }
    unknown = {name for name in read if not hasattr(TrainingPlan, name)} - columns - resolved
    assert not unknown


def test_every_column_of_training_plans_is_read() -> None:
    """By an equation or a rule of the plan, or by the engine that looks names up in the catalog."""
    read = _attributes_read("equations", "plan") | _attributes_read("equations/plan", "self")
    read |= {node for folder in ("equations/plan", "engine") for node in _words(folder)}
    unread = {declared.name for declared in table_schema("training").columns} - read - {"name"}
    assert not unread


def _words(folder: str) -> set[str]:
    """Strings and keywords in the modules of a folder, docstrings left out by their blanks."""
    result = set()
    for path in Path(str(files("xlperf"))).joinpath(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                result.add(node.value)
    return result


def test_precisions_of_inference_plans_are_in_the_order_of_the_sheet() -> None:
    assert column("inference", "precision").choices == (*SERVED_PRECISIONS, "auto")
    caches = column("inference", "kv_precision").choices  # a cache has no blocks of weights
    assert caches == SERVED_PRECISIONS[: len(caches)]
    assert SERVED_PRECISIONS[len(caches) : len(caches) + 2] == ("fp8-block", "fp8-tensor")
    products = column("inference", "activation_precision").choices
    assert products == SERVED_PRECISIONS[: len(products)]
