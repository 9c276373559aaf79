"""The table of what software does by default: short, of software alone, and compared by release."""

from __future__ import annotations

import pytest

from xlperf.base import resources
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import aliases
from xlperf.interop.launch_stacks import kind_of_stack
from xlperf.interop.software import DEVICE_FILE, FILE, STATED, pairs, release_of, software_defaults
from xlperf.measurements.published import Published

MOST_LINES = 60
BESIDE_COLUMNS = ("layers", "generation", "device_gib")
DEVICES = resources.rows(f"interop/{DEVICE_FILE}")
LINES = [*resources.rows(f"interop/{FILE}"), *DEVICES]


def test_the_table_is_short_and_each_line_has_a_reference() -> None:
    assert 20 < len(LINES) - len(DEVICES) <= MOST_LINES and len(DEVICES) <= MOST_LINES // 2
    assert all(line["reference"] and line["settings"] and line["software"] for line in LINES)
    assert {line["kind"] for line in LINES} == {"training", "inference", "memory", "launch"}


def test_no_line_names_a_model_a_source_or_an_accelerator(
    training: Published, inference: Published, catalog: Catalog
) -> None:
    """What is told apart is software, its release, precision, kind of layers and generation of the machine."""
    models = catalog.tables["models"]
    names = {str(name).casefold() for name in models.text("model").tolist()} | {
        w.casefold() for _, w in aliases(models)
    }
    names |= {str(name).casefold() for name in catalog.tables["accelerators"].text("accelerator").tolist()}
    names |= {source for rows in (training, inference) for source in rows.text["source_id"]}
    software = {name.casefold() for name in training.text["software"]}
    for line in LINES:
        assert tuple(line) == ("kind", "software", "since", "until", "condition", "settings", "reference")
        words = {word for name in ("condition", "settings") for word in pairs(line[name]).values()}
        words = {word for value in words for word in value.split()} | set(line["software"].split("|"))
        assert not (words & names) - software, line
        assert not {"model", "accelerator", "network", "name", "software"} & (
            pairs(line["condition"]).keys() | pairs(line["settings"]).keys()
        ), line


def test_every_setting_and_condition_is_one_that_plans_know() -> None:
    for line in LINES:
        if line["kind"] == "memory":
            constants = declared_constants()["serving_memory"]
            for name, value in pairs(line["settings"]).items():
                assert constants[name].low <= float(value) <= constants[name].high
        kinds = ["inference" if line["kind"] == "memory" else line["kind"]]
        if line["kind"] == "launch":
            kinds = [kind_of_stack(stack) for stack in line["software"].split("|")]
        for kind in kinds:
            columns = {column.name: column for column in table_schema(kind).columns}
            for name, value in pairs(line["settings"] if line["kind"] != "memory" else "").items():
                choices = columns[name].choices
                assert not choices or value in choices, (name, value)
            for name, value in pairs(line["condition"]).items():
                if name not in BESIDE_COLUMNS and columns[name].choices:
                    assert value == STATED or set(value.split()) <= set(columns[name].choices), (name, value)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("0.5.9", "0.5.10"), ("v0.9", "0.10"), ("24.07", "25.04"), ("1.2.0rc6.post2", "1.2.0"), ("0.5.5", "0.5.5.post1")],
)
def test_releases_are_compared_number_by_number(earlier: str, later: str) -> None:
    assert release_of(earlier) <= release_of(later) and not release_of(later) < release_of(earlier)


@pytest.mark.parametrize("words", ["newest", "", "(June)", "0.5.x", "v", "-1"])
def test_words_that_are_no_release_are_refused(words: str) -> None:
    with pytest.raises(ValueError):
        release_of(words)


def test_a_blank_release_is_the_newest_or_the_one_in_the_name() -> None:
    """Piecewise graphs of SGLang are on since 0.5.10; a calibration of SGLang 0.4 is of that release."""

    def has(setting: str, software: str, release: str = "") -> bool:
        return any(setting in default.settings for default in software_defaults("inference", software, release))

    assert [has("graph_tokens", "sglang", release) for release in ("0.5.9", "0.5.10rc1", "0.5.10", "")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [has("max_running_batch", "vllm", release) for release in ("0.8.5", "0.9.0", "")] == [False, True, True]
    assert not has("max_running_batch", "vllm-0.8") and has("max_running_batch", "vllm-0.8", "0.11.2")
