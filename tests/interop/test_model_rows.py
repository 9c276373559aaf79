"""Rows made from public configurations and datasheets, and added to a user's workbook without losing anything of it."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import openpyxl
import pytest
from conftest import Outcome
from openpyxl.chart import BarChart, Reference
from places import DATA

from xlperf import load_catalog
from xlperf.base.errors import InputError
from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.catalog.xlsx_rows import add_row
from xlperf.engine import evaluate
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.operators import mtp_parameters, parameter_count
from xlperf.interop.hugging_face import model_row
from xlperf.interop.hugging_face_files import read_config
from xlperf.interop.stated_rows import accelerator_row

Command = Callable[..., Outcome]
PUBLIC = json.loads((DATA / "hugging_face.json").read_text(encoding="utf-8"))
COUNTED = [entry for entry in PUBLIC if entry["parameters"] is not None]
LLAMA = next(entry["config"] for entry in PUBLIC if entry["model"] == "Meta-Llama-3.1-8B")


def _catalog(row: dict[str, object]) -> Catalog:
    return Catalog.from_tables([table_from_rows("models", list(row), [list(row.values())])], "")


def test_forty_public_configurations_have_a_count() -> None:
    assert len(COUNTED) >= 40
    assert {"GQA", "MHA", "MLA", "MoE", "hybrid", "sliding", "chunked", "vision"} <= {e["kind"] for e in COUNTED}


@pytest.mark.parametrize("entry", COUNTED, ids=lambda entry: entry["model"])
def test_parameters_are_those_published_within_half_a_percent(entry: dict[str, object]) -> None:
    config = entry["config"]
    assert isinstance(config, dict)
    result = model_row(config, str(entry["model"]), str(entry["source"]))
    models, reasons = catalog_models(_catalog(result.row))
    modules = float(mtp_parameters(models)[0]) if "multi-token" in str(entry["note"]) else 0.0
    assert (result.refused, reasons[0]) == ("", "")
    assert float(parameter_count(models)[0]) + modules == pytest.approx(entry["parameters"], rel=0.005)


@pytest.mark.parametrize("entry", [e for e in PUBLIC if e["kind"] == "refused"], ids=lambda entry: entry["model"])
def test_what_a_row_cannot_express_is_named_and_refused(entry: dict[str, object]) -> None:
    config = entry["config"]
    assert isinstance(config, dict)
    result = model_row(config, str(entry["model"]), "x")
    assert result.refused
    assert result.refused in str(result.row["notes"])
    assert catalog_models(_catalog(result.row))[1][0] != ""


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("gpt-oss-20b", "attention_pattern", "1 sliding 128 : 1 full"),
        ("gemma-3-27b-pt", "attention_pattern", "5 sliding 1024 : 1 full"),
        ("Mistral-7B-v0.1", "sliding_window", 4096),
        ("Llama-4-Scout-17B-16E-Instruct", "attention_pattern", "3 chunked 8192 : 1 full"),
        ("Qwen3.5-27B", "attention_pattern", "3 linear (gated delta net) : 1 full"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "attention_pattern", "23 Mamba-2 : 6 full : 23 feed-forward"),
        ("DeepSeek-V4-Flash", "attention_pattern", "2 sliding : 21 selected 4 : 20 compressed 128"),
        ("DeepSeek-V4-Flash", "residual_streams", 4),
        ("DeepSeek-V3.2", "index_top_k", 2048),
        ("DeepSeek-V3", "first_dense_layers", 3),
        ("DeepSeek-V3", "attention_type", "MLA"),
        ("Qwen1.5-MoE-A2.7B", "num_shared_experts", 4),
        ("Qwen2.5-7B", "linear_bias", "qkv"),
        ("gpt2-xl", "position_embedding", "learned"),
    ],
)
def test_layers_are_named_as_the_sheet_names_them(name: str, column: str, value: object) -> None:
    config = next(entry["config"] for entry in PUBLIC if entry["model"] == name)
    assert model_row(config, name, "x").row[column] == value


def test_vision_and_quantised_weights_are_named() -> None:
    config = next(entry["config"] for entry in PUBLIC if entry["model"] == "gemma-3-27b-pt")
    left_out = " ".join(model_row({**config, "quantization_config": {"quant_method": "fp8"}}, "g", "x").left_out)
    assert "vision tower (27 layers, width 1152)" in left_out
    assert "quantised (fp8)" in left_out


OMNI = {
    "model_type": "qwen3_omni_moe_text", "hidden_size": 2048, "intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
"""What Qwen3-Omni-30B-A3B answers in text with."""


def test_what_answers_in_text_is_taken_where_what_speaks_stands_beside_it() -> None:
    """Qwen3-Omni: the thinker has 30.53 G parameters (its model card); talker and vocoder are named as left out."""
    thinker = {
        "text_config": OMNI,
        "audio_config": {"encoder_layers": 32},
        "vision_config": {"depth": 27, "hidden_size": 1152},
    }
    result = model_row({"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {"x": 1},
                       "code2wav_config": {"y": 2}}, "omni", "x")  # fmt: skip
    assert not result.refused and result.row["num_experts"] == 128 and result.row["query_key_norm"] == "yes"
    said = " ".join(result.left_out)
    assert "talker_config, code2wav_config" in said and "vision tower (27 layers" in said and "not known" not in said
    models, reasons = catalog_models(_catalog(result.row))
    assert reasons[0] == "" and float(parameter_count(models)[0]) == pytest.approx(30.53e9, rel=0.005)


def test_an_unknown_model_type_is_a_llama_only_where_a_count_will_check_it() -> None:
    lama = {**LLAMA, "model_type": "lama"}
    assert 'model type "lama" is not known' in model_row(lama, "m", "x").refused
    checked = model_row(lama, "m", "x", counted=True)
    assert (checked.refused, checked.row["attention_type"]) == ("", "GQA")
    assert "taken as Llama" in " ".join(checked.left_out) and checked.assumed
    odd = model_row({**lama, "memory_of_tokens": "ring", "use_haze": True}, "m", "x", counted=True)
    assert "entries are not read: memory_of_tokens, use_haze" in odd.refused
    with pytest.raises(InputError, match='lacks "num_hidden_layers"'):
        model_row({"tokenizer_class": "LlamaTokenizer"}, "m", "x", counted=True)
    with pytest.raises(InputError, match='lacks "vocab_size"'):
        model_row({key: value for key, value in lama.items() if key != "vocab_size"}, "m", "x", counted=True)
    for network in ({"_class_name": "FluxTransformer2DModel", "num_attention_heads": 24, "num_single_layers": 38},
                    {"_class_name": "WanModel", "dim": 5120, "num_heads": 40, "num_layers": 40}):  # fmt: skip
        with pytest.raises(InputError, match="a part of diffusers"):
            model_row(network, "m", "x")


ODD: tuple[object, ...] = (
    None, "", 0, 1, -1, 3, 7, 0.5, 1e308, float("inf"), float("nan"), 10**400, 2**40, True, False, "8", "LLLG", "x", [],
    [1], [1, 2], ["a"], [[1]], {}, {"a": 1},
)  # fmt: skip


def test_any_configuration_is_a_model_or_says_what_is_wrong() -> None:
    """Entries left out or of another kind: a row whose parameters can be counted, a refusal, or a line."""
    random, counted = Random(3), 0
    for _ in range(500):
        config = json.loads(json.dumps(random.choice(PUBLIC)["config"]))
        part = config.get("text_config", config)
        for key in random.sample(list(part), k=random.choice((1, 2))):
            part[key] = random.choice(ODD)
        try:
            result = model_row(config, "m", "x")
            models, reasons = catalog_models(_catalog(result.row))
        except InputError as error:
            assert len(error.lines()) == 1, error
            continue
        if result.refused or reasons[0]:
            continue
        total, active = (float(parameter_count(models, experts_per_token=each)[0]) for each in (False, True))
        assert 0.0 < active <= total < np.inf, config
        counted += 1
    assert counted > 100


def test_an_entry_that_nobody_reads_is_named() -> None:
    """Of any type of model: what is not known of it may be what its layers do."""
    odd = {**LLAMA, "memory_layers": 4, "rope_theta": 1e6}
    result = model_row(odd, "m", "x")
    assert result.unread == ["memory_layers"] and "not read: memory_layers" in " ".join(result.left_out)
    assert not model_row(LLAMA, "m", "x").left_out
    assert model_row({"model_type": "laguna", "gating": False}, "m", "x").unread == ["gating"]  # its class has true


@pytest.mark.parametrize("name", ["Mixtral-8x7B-v0.1", "DeepSeek-V3", "qwen3-next-80B-A3B", "DeepSeek-V3.2"])
def test_a_blank_or_odd_cell_of_a_model_gives_numbers_or_a_reason(name: str) -> None:
    """Never a plan without time or memory, and no word about why."""
    shipped = load_catalog()
    models = shipped.tables["models"]
    at = models["model"].tolist().index(name)
    own = {column: values[at] for column, values in models.columns.items()}
    rows = [
        {**own, column.name: value}
        for column in models.schema.columns
        if column.kind == "number" and column.name != "year"
        for value in (np.nan, 1.0, 3.0, 7.0)
        if not (column.required and np.isnan(value))
    ]
    rows = [{**row, "model": f"model {number}"} for number, row in enumerate(rows)]
    columns = {column: np.array([row[column] for row in rows], dtype=models[column].dtype) for column in own}
    catalog = shipped.with_tables([Table("models", columns, models.place)])
    for kind, plan in (
        ("training", {"num accelerators": 8, "global batch size": 8, "sequence length": 2048}),
        ("inference", {"num accelerators": 1, "prompt length": 1000, "output length": 100, "batch size": 4}),
    ):
        header = ["model", "accelerator", *plan]
        plans = [[row["model"], "H100-SXM-80GB", *plan.values()] for row in rows]
        results = evaluate(table_from_rows(kind, header, plans), catalog)
        time = results["step_time" if kind == "training" else "latency"]
        good = (time > 0.0) & np.isfinite(time) & (results["memory"] > 0.0)
        said = np.array([("needs" not in words and "calibration" not in words) and words != ""
                         for words in results["reason"].tolist()])  # fmt: skip
        assert (good | said).all(), [rows[row] for row in np.flatnonzero(~(good | said))[:1]]


def _folder(path: Path, counts: int) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "BF16", "shape": [counts], "data_offsets": [0, 0]}}
    ).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_weights_beside_the_configuration_check_the_row(command: Command, tmp_path: Path) -> None:
    good, bad = _folder(tmp_path / "good", 8_030_261_248), _folder(tmp_path / "bad", 9_030_261_248)
    done = command("add", "model", good)
    assert done.code == 0
    assert "8.0303 billion, +0.00 %: agrees" in done.out
    done = command("add", "model", bad)
    assert done.code == 1
    assert "DIFFERS" in done.out


def test_a_model_of_your_own_is_a_table_that_plans_take(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    models, plans = tmp_path / "models.csv", tmp_path / "plans.csv"
    for name in ("mine", "mine too"):
        assert command("add", "model", tmp_path / "config.json", "--name", name, "-o", models).code == 0
    text = models.read_text(encoding="utf-8").replace("model,", "model,aliases,", 1)
    models.write_text("\n".join(line if line[:6] == "model," else line.replace(",", ",an alias;other,", 1)
                                for line in text.splitlines()), encoding="utf-8")  # fmt: skip
    taken = command("add", "model", tmp_path / "config.json", "--name", "Other", "-o", models)
    assert taken.code == 2 and "another spelling of" in taken.err
    models.write_text(text.replace("aliases,", "", 1), encoding="utf-8")
    again = command("add", "model", tmp_path / "config.json", "--name", "Mine", "-o", models)
    assert (again.code, again.err.strip()) == (2, 'models.csv: "mine" is there already; give the new row another name')
    plans.write_text(
        "model,accelerator,num accelerators,global batch size\n"
        "mine too,H100-SXM-80GB,64,64\nMeta-Llama-3.1-8B,H100-SXM-80GB,64,64\n",
        encoding="utf-8",
    )
    done = command("evaluate", plans, "--catalog", models)  # its rows stand beside the shipped ones
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    folder = tmp_path / "catalog"
    folder.mkdir()
    models.rename(folder / "models.csv")
    done = command("evaluate", plans, "--catalog", folder)
    assert done.code == 0
    assert len(done.out.splitlines()) == 3


def test_a_catalog_table_names_its_kind(command: Command, tmp_path: Path) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text("model,accelerator,num accelerators\nLlama3-8B,H100-SXM-80GB,64\n", encoding="utf-8")
    done = command("evaluate", plans, "--catalog", plans)
    assert done.code == 2
    other = tmp_path / "other.csv"
    other.write_text("thing\n1\n", encoding="utf-8")
    done = command("evaluate", plans, "--catalog", other)
    assert "the first header must name the kind of table (accelerator," in done.err


# --- rows added to a workbook


def _users_workbook(path: Path) -> Path:
    """A workbook with a chart, a sparkline-like extension, formats and a table, as a person has it."""
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "models"
    sheet.append(["Models of mine"])
    sheet.append([])
    rows = [
        [
            "model",
            "num layers",
            "hidden size",
            "num attention heads",
            "ffn hidden size",
            "vocab size",
            "stated parameters (M)",
        ]
    ]
    rows.append(["tiny", 4, 256, 4, 1024, 1000, 5])
    for row in rows:
        sheet.append(row)
    sheet["B4"].number_format = "0000"
    sheet["B4"].font = openpyxl.styles.Font(bold=True)
    sheet["J4"] = "beside"
    sheet["A9"] = "far below"
    table = openpyxl.worksheet.table.Table(displayName="models", ref="A3:G4")
    sheet.add_table(table)
    rule = openpyxl.formatting.rule.DataBarRule("num", 0, "max", color="0072B2")
    sheet.conditional_formatting.add("B4:B4", rule)
    chart = BarChart()
    chart.add_data(Reference(sheet, min_col=2, min_row=3, max_row=4), titles_from_data=True)
    sheet.add_chart(chart, "L2")
    book.save(path)
    return path


def test_a_row_added_keeps_everything_else(tmp_path: Path) -> None:
    path = _users_workbook(tmp_path / "mine.xlsx")
    with zipfile.ZipFile(path) as package:
        before = {name: package.read(name) for name in package.namelist()}
    row = {"model": 'a <b> & "c"', "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
           "ffn_hidden_size": 14336, "vocab_size": 128256, "stated_parameters": 8.03, "top_k": 2}  # fmt: skip
    assert add_row(path, "models", row) == ("mine.xlsx [models!A5]", ["top_k"])
    with zipfile.ZipFile(path) as package:
        after = {name: package.read(name) for name in package.namelist()}
    changed = {name for name in before if before[name] != after[name]}
    assert set(after) == set(before)
    assert changed == {"xl/worksheets/sheet1.xml", "xl/tables/table1.xml", "xl/workbook.xml"}
    sheet = openpyxl.load_workbook(path)["models"]
    assert [cell.value for cell in sheet[5]][:7] == ['a <b> & "c"', 32, 4096, 32, 14336, 128256, 8030]
    assert (sheet["B5"].number_format, sheet["B5"].font.bold) == ("0000", True)
    assert (sheet["J4"].value, sheet["A9"].value) == ("beside", "far below")
    assert sheet.tables["models"].ref == "A3:G5"
    assert [str(entry.sqref) for entry in sheet.conditional_formatting] == ["B4:B5"]
    result = load_catalog(path).tables["models"]
    assert result["stated_parameters"][1] == pytest.approx(8.03 * factor("G"))
    with pytest.raises(InputError, match=r"mine.xlsx \[models!A4\]: \"tiny\" is there already"):
        add_row(path, "models", {**row, "model": "TINY"})


def test_a_row_needs_room_below_the_table(tmp_path: Path) -> None:
    path = _users_workbook(tmp_path / "mine.xlsx")
    book = openpyxl.load_workbook(path)
    book["models"]["C5"] = "a remark"
    book.save(path)
    with pytest.raises(InputError, match=r"\[models!C5\]: stands where the new row would"):
        add_row(path, "models", {"model": "new", "num_layers": 1})


def test_a_model_goes_into_a_new_workbook_and_into_one_of_your_own(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    study = tmp_path / "study.xlsx"
    done = command("add", "model", tmp_path / "config.json", "--name", "first", "-o", study)
    assert (done.code, "[models!A" in done.out) == (0, True)
    assert command("add", "model", tmp_path / "config.json", "--name", "second", "-o", study).code == 0
    models = load_catalog(study).tables["models"]
    shipped = load_catalog().tables["models"]
    assert models["model"][len(shipped) :].tolist() == ["first", "second"]
    assert command("check", study).code == 0
    before = study.read_bytes()
    again = command(
        "add", "model", tmp_path / "config.json", "--name", "llama3-70b", "-o", study
    )  # an alias on the sheet
    assert (again.code, len(again.err.splitlines())) == (2, 1)
    assert 'is another spelling of "Meta-Llama-3.1-70B"' in again.err
    assert study.read_bytes() == before


# --- accelerators

CARD = """Product: H200
Memory: 141 GB
Memory bandwidth: 4.8 TB/s
FP8 Tensor Core: 3,958 TFLOPS (with sparsity)
BFLOAT16 Tensor Core: 989.5 TFLOPS
Max Thermal Design Power (TDP): Up to 700W
NVLink: 900GB/s
Colour: green
"""


def test_a_datasheet_becomes_a_row(command: Command, tmp_path: Path) -> None:
    card, study = tmp_path / "h200.txt", tmp_path / "accelerators.csv"
    card.write_text(CARD, encoding="utf-8")
    done = command("add", "accelerator", card, "--like", "H200-SXM-141GB", "--name", "my H200", "-o", study)
    assert done.code == 0
    assert '"Colour" is no column of accelerators' in done.out
    table = load_catalog(study).tables["accelerators"]
    shipped = load_catalog()
    known = shipped.tables["accelerators"]
    row = int(shipped.known_rows("accelerators", np.array(["H200-SXM-141GB"]))[0])
    for column in ("memory_bandwidth", "peak_flop_rate_fp8", "peak_flop_rate_bf16", "memory_capacity"):
        assert table[column][0] == pytest.approx(known[column][row], rel=0.01)
    assert table["link_bandwidth"][0] == 450 * factor("GB/s")
    assert (table["thermal_design_power"][0], table["generation"][0]) == (700, "hopper")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("memory bandwidth: fast", "memory bandwidth: a number (TB/s) is meant, got 'fast'"),
        ("memory bandwidth: 4.8 furlongs", '"furlongs" is no unit; known are'),
        ("memory bandwidth: 4.8 W", r"W is no unit of memory bandwidth (TB/s)"),
    ],
)
def test_a_bad_line_of_a_card_is_named(line: str, problem: str) -> None:
    name, _, value = line.partition(": ")
    with pytest.raises(InputError) as error:
        accelerator_row({name: value}, "x", "card.txt")
    assert problem in str(error.value)


def test_a_card_without_generation_or_far_beyond_others_is_said(command: Command, tmp_path: Path) -> None:
    card = tmp_path / "chip.txt"
    card.write_text(CARD.replace("4.8 TB/s", "48000 TB/s"), encoding="utf-8")
    done = command("add", "accelerator", card, "--like", "H200-SXM-141GB")
    assert (done.code, "memory bandwidth" in done.err) == (2, True)  # beyond what any machine can have
    card.write_text(CARD.replace("4.8 TB/s", "4.8 MB/s"), encoding="utf-8")
    done = command("add", "accelerator", card)
    assert (done.code, "needs a line generation" in done.err) == (2, True)
    done = command("add", "accelerator", card, "--like", "H200-SXM-141GB", "--json")
    assert (done.code, "check its zeros and its unit" in done.err) == (1, True)
    assert json.loads(done.out)["accelerator"] == "H200"


def test_original_configurations_of_llama_and_mistral_are_read(tmp_path: Path) -> None:
    """params.json of Llama 3 70B and Mixtral 8x7B: 70.55 and 46.70 billion parameters."""
    llama = {"dim": 8192, "n_layers": 80, "n_heads": 64, "n_kv_heads": 8, "vocab_size": 128_256,
             "ffn_dim_multiplier": 1.3, "multiple_of": 4096, "norm_eps": 1e-5}  # fmt: skip
    mixtral = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14_336, "n_heads": 32, "n_kv_heads": 8,
               "vocab_size": 32_000, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}  # fmt: skip
    for stated, parameters in ((llama, 70.55e9), (mixtral, 46.70e9)):
        (tmp_path / "params.json").write_text(json.dumps(stated), encoding="utf-8")
        config, *_ = read_config(tmp_path / "params.json")
        model, _ = catalog_models(_catalog(model_row(config, "x", "").row))
        assert float(parameter_count(model)[0]) == pytest.approx(parameters, rel=1e-3)
