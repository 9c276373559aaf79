"""Names as people write them: one match is taken and said, several are an error that lists them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome

import xlperf
from xlperf.addin.worker import Engine, Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.spellings import Spellings, unknown
from xlperf.catalog.table import Table

PLAN = {"model": "Llama3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.mark.parametrize(
    ("kind", "written", "name"),
    [
        ("accelerators", "H100", "H100-SXM-80GB"),
        ("accelerators", "h200", "H200-SXM-141GB"),
        ("accelerators", "B200", "B200-SXM-180GB"),
        ("accelerators", "mi300x", "MI300X"),
        ("accelerators", "NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("accelerators", "a100 sxm4 80 GB", "A100-SXM4-80GB"),
        ("models", "meta-llama/Llama-3.1-70B", "Meta-Llama-3.1-70B"),
        ("models", "llama3 70b", "Meta-Llama-3.1-70B"),
        ("models", "mistralai/Mixtral-8x7B-v0.1", "Mixtral-8x7B-v0.1"),
        ("models", "DeepSeek-V3/R1", "DeepSeek-V3"),
        ("models", "llama3-8b", "Meta-Llama-3.1-8B"),
        ("models", "Llama 3.1 8B Instruct", "Meta-Llama-3.1-8B"),
        ("models", "meta-llama/Meta-Llama-3.1-70B-Instruct", "Meta-Llama-3.1-70B"),
        ("models", "deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"),
        ("models", "/models/Mixtral-8x7B-Instruct-v0.1/", "Mixtral-8x7B-v0.1"),
        ("accelerators", "4090", "RTX 4090"),
        ("accelerators", "NVIDIA RTX 4090", "RTX 4090"),
        ("accelerators", "rtx 3090 24gb", "RTX 3090"),
        ("accelerators", "NVIDIA L4 24GB", "L4"),
        ("accelerators", "H20(96G)", "H20-96GB"),
        ("accelerators", "A100-80G", "A100-SXM4-80GB"),
        ("accelerators", "H100 80GB", "H100-SXM-80GB"),
        ("accelerators", "B200 192GB", "B200-SXM-180GB"),
        ("accelerators", "AMD MI300X", "MI300X"),
        ("models", "DeepSeek-R1 671B", "DeepSeek-R1"),
        ("models", "deepseek-r1:671b", "DeepSeek-R1"),
        ("models", "qwen 3 235b", "Qwen3-235B-A22B"),
        ("models", "llama3.3", "Meta-Llama-3.1-70B"),
        ("models", "unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "Meta-Llama-3.1-70B"),
        ("models", "DeepSeek-R1-W4AFP8", "DeepSeek-R1"),
        ("models", "OPEA/Mistral-Small-3.1-24B-Instruct-2503-int4-AutoRound-awq-sym", "Mistral-Small-3.2-24B"),
        ("models", "mistralai/Ministral-3-8B-Instruct-2512", "Ministral-3-8B"),
        ("networks", "dgx h100", "DGX-H100"),
        ("process_nodes", "3nm", "3 nm"),
        ("process_nodes", "N3", "3 nm"),
    ],
)
def test_one_match_is_taken(catalog: Catalog, kind: str, written: str, name: str) -> None:
    assert Spellings(catalog.tables[kind]).names(written) == [name]


def test_every_name_and_alias_of_the_shipped_sheets_means_its_own_row(catalog: Catalog) -> None:
    for kind in ("accelerators", "models", "networks", "process_nodes", "technology"):
        spellings, table = Spellings(catalog.tables[kind]), catalog.tables[kind]
        for name in set(table[table.schema.key.name].tolist()):
            assert spellings.names(name) == [name]


@pytest.mark.parametrize("written", ["Llama-31-70B", "3", "H10", "/", "-", "A100-", "Llama3-1.2.3B"])
def test_what_is_not_a_name_is_not_guessed(catalog: Catalog, written: str) -> None:
    assert len(Spellings(catalog.tables["models"]).names(written)) == 0
    assert len(Spellings(catalog.tables["accelerators"]).names(written)) != 1


@pytest.mark.parametrize(
    ("written", "name"),
    [("Qwen/Qwen3-14B-AWQ", "Qwen3-14B"), ("Llama-3.3-70B-Instruct-FP8-dynamic", "Meta-Llama-3.1-70B")],
)
def test_a_format_in_a_name_leaves_the_shape(catalog: Catalog, written: str, name: str) -> None:
    """A plan of precision auto reads the format in the name (tests/engine/test_formats.py)."""
    assert Spellings(catalog.tables["models"]).names(written) == [name]


def test_a_word_that_tells_models_or_cards_apart_is_never_left_out(catalog: Catalog) -> None:
    """GLM-4.5 was taken as GLM-4.5-Air, a third of its size, and an RTX 4060 would be an RTX 4060 Ti."""
    models = catalog.tables["models"]
    without = models.take(np.flatnonzero(models.text("model") != "GLM-4.6"))
    for table, written, hint in (
        (without, "GLM-4.5", "GLM-4.5-Air"),
        (models, "Llama 3.1 13B", "Meta-Llama-3.1-8B"),
        (models, "DeepSeek-V3 236B", "DeepSeek-V3"),
        (models, "unsloth/Meta-Llama-3.1-8B-Instruct-GGUF", "Meta-Llama-3.1-8B"),
        (models, "Kimi", "Kimi-K2-Instruct"),
        (catalog.tables["accelerators"], "RTX 4060", "RTX 4060 Ti"),
        (catalog.tables["accelerators"], "H100 96GB", "H100-96GB-HBM2e-500W"),
        (catalog.tables["accelerators"], "A100 24GB", "A100-"),
        (catalog.tables["accelerators"], "8x H200", "H200-SXM-141GB"),
    ):
        names = Spellings(table).names(written)
        told, more = unknown(written, table, names)
        assert len(names) != 1 or names == ["H100-96GB-HBM2e-500W"], written
        assert more is None or hint in more(), (written, told, more())


def test_what_was_taken_is_said_and_exact_names_are_not() -> None:
    spelled = {**PLAN, "model": "meta-llama/Llama-3.1-70B", "accelerator": "H100", "network": "dgx h100"}
    serving = {**spelled, "prompt length": 100, "output length": 10}
    exact, taken = xlperf.evaluate([PLAN, spelled])["reason"].tolist()
    served = xlperf.evaluate([serving])["reason"].tolist()[0]
    words = "model meta-llama/Llama-3.1-70B taken as Meta-Llama-3.1-70B; accelerator H100 taken as H100-SXM-80GB; "
    words += "network dgx h100 taken as DGX-H100"
    assert "taken" not in exact
    assert taken.endswith(words)
    assert served.endswith(words)
    (cell,) = Session().call("XLPERF_CHECK", [[list(row) for row in spelled.items()]])
    assert cell == [taken]


def test_several_matches_are_listed() -> None:
    with pytest.raises(InputError) as caught:
        xlperf.evaluate([{**PLAN, "accelerator": "A100", "model": "Llama-3.1"}])
    assert [re.sub(r"^.*?: ", "", line) for line in str(caught.value).splitlines()] == [
        'model "Llama-3.1" may be one of several; '
        "write one of Meta-Llama-3.1-8B, Meta-Llama-3.1-70B, Meta-Llama-3.1-405B",
        'accelerator "A100" may be one of several; '
        "write one of A100-SXM4-40GB, A100-SXM4-80GB, A100-PCIe-80GB, A100-PCIe-40GB",
    ]


def test_references_between_sheets_may_be_spelled_so_too(catalog: Catalog) -> None:
    technology, prices = catalog.tables["technology"], catalog.tables["prices"]
    nodes = np.array([name.replace(" ", "") for name in technology["process_node"].tolist()], dtype=object)
    priced = np.where(prices["price"] == "H100-SXM-80GB", "h100", prices["price"])
    spelled = catalog.with_tables(
        [
            Table("technology", {**technology.columns, "process_node": nodes}),
            Table("prices", {**prices.columns, "price": priced}),
        ]
    )
    assert spelled.tables["technology"]["process_node"].tolist() == technology["process_node"].tolist()
    assert spelled.price_rows.tolist() == catalog.price_rows.tolist()
    named = np.where(priced == "h100", "a100", priced)
    (fault,) = catalog.with_tables([Table("prices", {**prices.columns, "price": named})]).orphans.faults
    assert 'accelerator "a100" may be one of several; write one of A100-SXM4-40GB' in str(fault)


@pytest.mark.parametrize(
    ("model", "proxy"),
    [("DeepSeek-V3", "DeepSeek-V3-l4"), ("DeepSeek-V2", "DeepSeek-V2-l4"), ("Mine", "mine_4 layers")],
)
def test_a_model_that_is_gone_is_never_a_proxy_of_fewer_layers(catalog: Catalog, model: str, proxy: str) -> None:
    """Case K12: Serve without the row DeepSeek-V3 answered 16 H200 at $0.04, with the 4 layers of DeepSeek-V3-l4."""
    models = catalog.tables["models"]
    names = np.where(models["model"] == "DeepSeek-V3-l4", proxy, models["model"])
    kept = Table("models", {**models.columns, "model": names}).take(names != model)
    left = catalog.with_tables([kept])
    form = {"model": model, "users": 100, "prompt length": 2000, "output length": 500, "speed per user": 20}
    (served,) = Session(engine=_Installed(left)).call(
        "XLPERF_SERVE", [[*map(list, form.items()), ["accelerator", "H200"]]]
    )
    assert served[0].startswith("No answer: ") and f'unknown model "{model}"' in served[0]
    with pytest.raises(InputError, match=f'unknown model "{model}"'):
        xlperf.evaluate([{**PLAN, "model": model}], left)
    assert Spellings(left.tables["models"]).names(proxy.replace("-", " ")) == [proxy]


def test_a_unique_longer_name_is_taken_by_whole_words_and_every_answer_says_so(
    catalog: Catalog, command: Callable[..., Outcome], tmp_path: Path
) -> None:
    models = catalog.tables["models"]
    names = np.where(models["model"] == "DeepSeek-V3", "DeepSeek-V3 Chat", models["model"])
    aliases = np.where(names == "DeepSeek-V3 Chat", "", models["aliases"])
    renamed = catalog.with_tables([Table("models", {**models.columns, "model": names, "aliases": aliases})])
    said = "taken as DeepSeek-V3 Chat"
    form = {"model": "DeepSeek-V3", "accelerator": "H200-SXM-141GB", "users": 100, "prompt length": 2000}
    form |= {"output length": 500, "speed per user": 20}
    (served,) = Session(engine=_Installed(renamed)).call("XLPERF_SERVE", [[list(row) for row in form.items()]])
    assert served[0].endswith(f" Model DeepSeek-V3 {said}.")
    plan = {**PLAN, "model": "DeepSeek-V3", "prompt length": 100, "output length": 10}
    assert f"model DeepSeek-V3 {said}" in xlperf.evaluate([plan], renamed)["reason"][0]
    path = tmp_path / "plans.csv"
    path.write_text("model,accelerator,num accelerators,tensor parallel\nLlama3-70B,H100,64,8\n", encoding="utf-8")
    for output in (["-o", "-"], ["-o", tmp_path / "out.xlsx"], ["--json"]):
        assert "note: accelerator H100 taken as H100-SXM-80GB\n" in command("evaluate", path, *output).err
    assert command("explain", path).err.startswith("note: accelerator H100 taken as H100-SXM-80GB\n")


def test_a_note_about_a_name_is_never_a_reason_and_a_refusal_has_no_badge(command: Callable[..., Outcome]) -> None:
    """``xlperf train --num-accelerators 7`` said MEASURED, and of H100 "accelerator H100 taken as" as its reason."""
    done = command("train", "--num-accelerators", "1", "--accelerator", "H100")
    assert done.code == 1
    assert done.out.startswith("No answer: 1 H100 needs ")
    assert "Accelerator H100 taken as H100-SXM-80GB." in done.out.splitlines()[0]
    assert "MEASURED" not in done.out


class _Installed(Engine):
    """An engine whose installed catalog is another."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def installed(self) -> Catalog:
        return self._catalog


def test_an_alias_that_begins_as_another_model_is_no_first_word_of_it() -> None:
    """In a catalog with the model of a distillation alone, the name of its teacher stays unknown."""
    models = load_catalog().tables["models"]
    small = models.take(np.flatnonzero(models.text("model") == "Qwen3-8B"))
    spelled = Spellings(small)
    assert spelled.names("DeepSeek-R1-0528-Qwen3-8B") == ["Qwen3-8B"]
    assert spelled.names("DeepSeek-R1") == spelled.names("DeepSeek-R1-0528") == []


def test_a_name_that_the_own_workbook_lacks_is_said_to_be_shipped(
    tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    book = tmp_path / "study.xlsx"
    assert command("new", book).code == 0
    said = command("serve", "--model", "Qwen3-235B", "--catalog", book).err
    assert said.startswith('--model: unknown model "Qwen3-235B"; xlperf ships Qwen3-235B-A22B: ')
    assert "did you mean" in command("serve", "--model", "Qwen3-30C", "--catalog", book).err
