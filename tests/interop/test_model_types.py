"""Types of configurations: counts of transformers, defaults of its classes, reasons of refusals; one-table catalogs."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from places import DATA

from xlperf import load_catalog
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import Column, unit_of
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.equations.model.operators import parameter_count
from xlperf.interop.hugging_face import ModelRow, model_row
from xlperf.interop.hugging_face_files import defaults_of, families

Command = Callable[..., Outcome]
COUNTS = list(csv.DictReader((DATA / "transformers_counts.csv").open(encoding="utf-8")))
M3 = {
    "model_type": "minimax_m3_vl", "architectures": ["MiniMaxM3SparseForCausalLM"],
    "text_config": {
        "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288, "vocab_size": 200064,
        "shared_intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 4, "use_qk_norm": True,
        "moe_layer_freq": [0] * 3 + [1] * 57, "tie_word_embeddings": False,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    },
}  # fmt: skip
"""As published (kind K9): transformers maps its sparse_attention_config to sparse layers; 426.19 G, 25.97 active."""
V4 = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_ref", "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
    "vocab_size": 129280, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "qk_rope_head_dim": 64,
    "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "sliding_window": 128, "hc_mult": 4,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}  # fmt: skip
"""DeepSeek-V4-Flash under a type that nobody knows: transformers builds 284.33 G of it."""
MOE = {
    "model_type": "doge", "is_moe": False, "num_experts": 16384, "num_experts_per_tok": 64, "hidden_size": 1024,
    "intermediate_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 8, "vocab_size": 32768,
}  # fmt: skip
QWEN35 = {
    "model_type": "qwen3_5_text", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
VL4B = {
    "model_type": "qwen3_vl", "tie_word_embeddings": True,
    "text_config": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
                    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                    "num_hidden_layers": 34, "sliding_window": 1024},
}  # fmt: skip
"""gemma-3-4b-it's own file names no more of its language model: heads and vocabulary are defaults of its class."""


MINIMAX_M1 = {
    "model_type": "minimax_m1", "attn_type_list": [*[0] * 7, 1] * 10, "hidden_size": 6144, "intermediate_size": 9216,
    "linear_attn_alpha_factor": 3.5565588200778455, "head_dim": 128, "num_attention_heads": 64, "vocab_size": 200064,
    "num_experts_per_tok": 2, "num_hidden_layers": 80, "num_key_value_heads": 8, "num_local_experts": 32,
}  # fmt: skip
"""Card of MiniMax-M1: 456 G, 45.9 G active."""
XVERSE_MOE = {
    "model_type": "xverse", "hidden_size": 2560, "intermediate_size": 1728, "moe_top_k": 6, "num_attention_heads": 32,
    "num_experts": 64, "num_hidden_layers": 28, "num_key_value_heads": 32, "num_shared_experts": 2,
    "tie_word_embeddings": False, "vocab_size": 100534,
}  # fmt: skip
"""Card of XVERSE-MoE-A4.2B: 25.8 G."""
TRINITY = {
    "model_type": "afmoe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1024,
    "num_hidden_layers": 32, "num_dense_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "sliding_window": 2048,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 8, "vocab_size": 200192,
}  # fmt: skip
"""Card of Trinity-Mini: 26 G, 3 active; queries have an output gate in all layers, of which none is linear."""


def _table(result: ModelRow) -> tuple[float, float, str]:
    row = result.row
    models, reasons = catalog_models(
        Catalog.from_tables([table_from_rows("models", list(row), [list(row.values())])], "")
    )
    total, active = (float(parameter_count(models, experts_per_token=each)[0]) for each in (False, True))
    return total, active, reasons[0]


@pytest.mark.parametrize("entry", COUNTS, ids=lambda entry: entry["model_type"])
def test_a_type_alone_counts_as_transformers_builds_it(entry: dict[str, str]) -> None:
    """Parameters of the models that transformers 5.24 makes of its default configurations (towers left out)."""
    result = model_row({"model_type": entry["model_type"]}, "m", "x")
    total, _, reason = _table(result)
    assert (result.refused, reason, result.unread) == ("", "", [])
    assert total == pytest.approx(float(entry["parameters"]), rel=0.005)


def test_every_type_is_modelled_or_has_a_reason() -> None:
    assert len(COUNTS) > 90
    for kind, family in families().items():
        if family["attention_type"] in ("linear", "hybrid"):
            assert family["remark"], kind
            assert "hidden_size" not in defaults_of(kind), kind


@pytest.mark.parametrize(
    ("config", "total", "column", "value"),
    [
        (M3, 426.19e9, "index_top_k", 2048),
        (M3, 426.19e9, "attention_pattern", "3 full : 57 selected"),
        (V4, 284.33e9, "attention_pattern", "2 sliding : 21 selected 4 : 20 compressed 128"),
        (MOE, 0.4031e9, "ffn_hidden_size", 2048),
        (QWEN35, 8.954e9, "attention_output_gate", "yes"),
        (VL4B, 4.0225e9, "tied_embeddings", "yes"),
        (GEMMA3_4B, 3.880e9, "num_attention_heads", 8),
        (GEMMA3_4B, 3.880e9, "attention_pattern", "6 sliding 1024 : 1 full"),
        (MINIMAX_M1, 456.09e9, "attention_pattern", "70 lightning : 10 full"),
        (TRINITY, 26.12e9, "attention_output_gate", "yes"),
        (XVERSE_MOE, 25.79e9, "moe_ffn_hidden_size", 1728),
    ],
)
def test_published_forms_of_a_type_are_read(
    config: dict[str, object], total: float, column: str, value: object
) -> None:
    """Counts of transformers 5.24; of the published gemma-3 its model card (3.88 G without its vision tower)."""
    result = model_row(config, "m", "x")
    assert (result.refused, result.unread, result.row[column]) == ("", [], value)
    assert _table(result)[0] == pytest.approx(total, rel=0.005)


def test_stated_sparse_attention_of_a_dense_type_is_not_passed_over() -> None:
    """openbmb/MiniCPM4.1-8B: InfLLM v2 above 8,192 tokens."""
    sparse = {"model_type": "minicpm", "sparse_config": {"kernel_size": 32, "topk": 64, "dense_len": 8192}}
    assert model_row({**MINIMAX_M1, **sparse, "num_local_experts": 0}, "m", "x").unread == ["sparse_config"]


def test_layer_names_of_transformers_5_mean_what_older_ones_say() -> None:
    """deepseek_v4 and deepseek_v32 as transformers 5 saves them: indexed, compressed and sliding layers by name."""
    older = model_row(V4, "m", "x").row
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    assert isinstance(V4["compress_ratios"], list)
    named = {**V4, "model_type": "deepseek_v4", "layer_types": [kinds[each] for each in V4["compress_ratios"][:43]]}
    del named["compress_ratios"]
    assert model_row(named, "m", "x").row["attention_pattern"] == older["attention_pattern"]
    dsa = model_row({"model_type": "deepseek_v32", "layer_types": ["indexed_attention"] * 61}, "m", "x")
    assert (dsa.refused, dsa.row["index_top_k"], "attention_pattern" in dsa.row) == ("", 2048, False)
    shared = {"indexer_types": ["full", "full", *["full", "shared", "shared", "shared"] * 19], "index_topk_freq": 4}
    glm = {"model_type": "glm_moe_dsa", "layer_types": ["deepseek_sparse_attention"] * 78}  # GLM-5.2 (NVFP4)
    assert model_row({**glm, **shared}, "m", "x").row["num_index_layers"] == 21
    assert model_row({**glm, **shared}, "m", "x").unread == []
    assert model_row({**glm, "index_topk_freq": 4}, "m", "x").unread == ["index_topk_freq"]
    blocks = {**M3["text_config"], "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57}  # type: ignore[dict-item]
    del blocks["sparse_attention_config"]
    assert model_row({**M3, "text_config": blocks}, "m", "x").row["attention_pattern"] == "3 full : 57 selected"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "recurrent_gemma", "lru_width": 2560, "block_types": ["recurrent", "attention"]}, "RG-LRU"),
        ({"model_type": "gemma3n_text", "hidden_size": 2048, "laurel_rank": 64}, "per-layer embeddings"),
        ({"model_type": "kimi_linear", "linear_num_heads": 32, "layer_types": ["linear_attention"] * 27}, "Kimi delta"),
        ({"model_type": "rwkv6", "hidden_size": 2560, "num_hidden_layers": 32}, "RWKV layers"),
        ({"model_type": "rwkv7", "hidden_size": 2560, "num_hidden_layers": 32}, "without the ranks of its gates"),
        ({"model_type": "own", "architectures": ["RWKV7ForCausalLM"]}, "RWKV layers"),
        ({"model_type": "xlm-roberta-xl", "architectures": ["XLMRobertaXLForMaskedLM"]}, "an encoder"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "a classifier"),
        ({"model_type": "t5"}, "an encoder beside the decoder"),
        ({"model_type": "doge", "is_moe": True}, "experts of one neuron"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "another model (cross attention)"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "another width than the layers"),
        ({"model_type": "laguna", "num_attention_heads_per_layer": [48, 64] * 20}, "unlike num_attention_heads_per_l"),
        ({"model_type": "peculiar", "hidden_size": 8}, '"peculiar" is not known'),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, "a drafting model"),
        ({"model_type": "llama", "draft_vocab_size": 32_000}, "a drafting model"),
        ({"model_type": "qwen3", "architectures": ["DSparkDraftModel"]}, "a drafting model"),
        ({**V4, "model_type": "deepseek_v4", "compress_ratios": [{"a": 1}, 4]}, "compress_ratios that are no numbers"),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForProcessRewardModel"]}, "a reward model"),
        ({"model_type": "llama", "layer_types": ["linear_attention"] * 26 + ["full_attention"]}, "are not stated"),
    ],
)
def test_a_refusal_names_the_architecture(config: dict[str, object], reason: str) -> None:
    """What no row expresses is said by its name, whatever the file lacks beside."""
    shape = {"num_hidden_layers": 27, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    try:
        said = model_row({"vocab_size": 1000, **shape, **config}, "m", "x").refused
        assert reason in said
        said = model_row(config, "m", "x").refused
    except InputError as error:
        said = str(error)
    assert reason in said


def test_an_entry_of_another_kind_is_refused_or_left_out() -> None:
    """What a configuration may hold in the place of a number, a list or a part: a row comes of it, or a message."""
    known = json.loads((DATA / "vision_configs.json").read_text(encoding="utf-8"))
    for config in (V4 | {"model_type": "deepseek_v4"}, known["Qwen2.5-VL-7B"], known["Gemma-3-27B"]):
        part = config.get("vision_config", {})
        for value in (None, -1, 2**39, 1e300, "x", [None, 1], [{}], {"a": 1}):
            changed = [config | {entry: value} for entry in config]
            changed += [config | {"vision_config": part | {entry: value}} for entry in part]
            for each in changed:
                with suppress(InputError):
                    assert model_row(each, "m", "x").row


def test_a_dense_gemma_4_is_not_refused_for_experts() -> None:
    """Gemma-4-31B: enable_moe_block is false, so that nothing runs beside experts; 26B-A4B has them."""
    dense = {
        "model_type": "gemma4_text",
        "enable_moe_block": False,
        "num_experts": None,
        "hidden_size_per_layer_input": 0,
    }
    result = model_row({**dense, "global_head_dim": 512}, "m", "x")
    assert (result.refused, result.row["head_size"], result.row["local_head_size"]) == ("", 512, 256)
    assert not {"num_experts", "ffn_pattern"} & {*result.row}
    assert "enable_moe_block" in model_row({**dense, "enable_moe_block": True}, "m", "x").refused


def test_embeddings_are_tied_as_the_whole_says() -> None:
    """Transformers 5 reads the entry of the whole; before it the text part decides if the whole is silent."""

    def tied(whole: dict[str, object], text: dict[str, object]) -> object:
        part = {"model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, **text}
        return model_row({"model_type": "internvl", "text_config": part, **whole}, "m", "x").row["tied_embeddings"]

    assert tied({"tie_word_embeddings": True}, {"tie_word_embeddings": False}) == "yes"
    assert tied({"tie_word_embeddings": False}, {"tie_word_embeddings": True}) == "no"
    assert tied({"transformers_version": "5.24.0"}, {"tie_word_embeddings": False}) == "yes"  # default of its class
    assert tied({"transformers_version": "4.52.1"}, {"tie_word_embeddings": False}) == "no"


def test_quantised_weights_are_said_wherever_the_file_says_so() -> None:
    """Kimi-K2.5 has quantization_config inside text_config: its weights are INT4."""
    part = {"model_type": "kimi_k2", **defaults_of("deepseek_v3")}
    part["quantization_config"] = {"quant_method": "compressed-tensors"}
    result = model_row({"model_type": "kimi_k25", "text_config": part}, "m", "x")
    assert "quantised (compressed-tensors)" in " ".join(result.left_out)


def test_null_is_no_default() -> None:
    """A file that states null has no such part: DeepSeek-V2-Lite has no q_lora_rank, its class 1536."""
    lite = {"model_type": "deepseek_v2", "num_experts_per_tok": 6}
    assert model_row(lite, "m", "x").row["q_lora_rank"] == 1536
    assert "q_lora_rank" not in model_row({**lite, "q_lora_rank": None}, "m", "x").row


def _written(path: Path, config: dict[str, object]) -> Path:
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_active_parameters_say_whether_embeddings_count(command: Command, tmp_path: Path) -> None:
    """MiniMax-M3: 25.96 G active with both embeddings, 23.5 without (its card says 23); tied ones count once."""
    done = command("add", "model", _written(tmp_path / "m3.json", M3))
    assert done.code == 0 and "left out" not in done.out
    assert "25.96 active per token with embeddings, 24.73 without the input embedding, 23.5 without" in done.out
    tied = {**M3, "tie_word_embeddings": True}
    done = command("add", "model", _written(tmp_path / "tied.json", tied))
    assert "24.73 active per token with embeddings, 23.5 without input and output embeddings" in done.out


def test_defaults_and_entries_that_were_not_read_are_said(command: Command, tmp_path: Path) -> None:
    done = command("add", "model", _written(tmp_path / "g.json", GEMMA3_4B))
    assert done.code == 0 and "defaults of its class: num_attention_heads 8, num_key_value_heads 4" in done.out
    odd = {**MOE, "residual_loops": 3}
    done = command("add", "model", _written(tmp_path / "odd.json", odd))
    assert (done.code, "are not read: residual_loops" in done.out) == (1, True)


def test_an_unknown_type_needs_the_count_of_a_llama(command: Command, tmp_path: Path) -> None:
    llama = {**defaults_of("llama"), "model_type": "foo"}
    path = _written(tmp_path / "config.json", llama)
    done = command("add", "model", path)
    assert (done.code, "give --parameters or its weights" in done.out) == (1, True)
    assert command("add", "model", path, "--parameters", "6.74").code == 0
    done = command("add", "model", path, "--parameters", "7.5", "-o", tmp_path / "models.csv")
    assert (done.code, "DIFFERS" in done.out, "differ from a Llama" in done.out) == (1, True, True)
    assert load_catalog(tmp_path / "models.csv").tables["models"]["attention_pattern"][0] == "not expressed"
    index = {"metadata": {"total_size": 2 * 6_738_415_616}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
    _written(path, {**llama, "dtype": "bfloat16"})
    _written(tmp_path / "model.safetensors.index.json", index)
    assert command("add", "model", path).code == 0  # the index beside the file tells
    header = json.dumps({"w": {"dtype": "BF16", "shape": [5, 10**9], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert command("add", "model", tmp_path).code == 1


def test_an_adapter_is_named_as_one(command: Command, tmp_path: Path) -> None:
    _written(tmp_path / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8})
    for given in (tmp_path, tmp_path / "adapter_config.json"):
        done = command("add", "model", given)
        assert done.code == 2 and "is an adapter (LORA); give the config.json of org/base" in done.err


# --- one table as a catalog


def _csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_one_table_adds_to_the_shipped_rows_and_replaces_by_name(tmp_path: Path) -> None:
    """Every kind whose rows have names: xlperf add model -o models.csv hid all shipped models once."""
    shipped = load_catalog()
    for kind in ("accelerators", "networks", "models", "prices", "servers", "process_nodes", "packages"):
        table = shipped.tables[kind]
        key = table.schema.key.name
        first = str(table[key][0])
        filled = [c for c in table.schema.columns if c.name in table and not _blank(table[c.name][0])]
        headers = [column.header for column in filled]
        cells = [_cell(column, table[column.name][0]) for column in filled]
        renamed = ["mine" if column.name == key else cell for column, cell in zip(filled, cells, strict=True)]
        path = _csv(tmp_path / f"{kind}.csv", ",".join(headers), ",".join(cells))
        result = load_catalog(path).tables[kind]
        of_first = [name for name in table[key].tolist() if str(name).casefold() == first.casefold()]
        assert len(result) == len(table) - len(of_first) + 1, kind
        assert {*map(str, result[key].tolist())} == {*map(str, table[key].tolist())}, kind
        if kind != "prices":  # a price names an accelerator
            more = load_catalog(_csv(path, ",".join(headers), ",".join(renamed))).tables[kind]
            assert (str(more[key][0]), len(more)) == ("mine", len(table) + 1), kind


def _blank(value: object) -> bool:
    return value == "" or value != value


def _cell(column: Column, value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if column.kind == "flag":
        return "yes" if value else "no"
    assert isinstance(value, float)
    return repr(float(value) / unit_of(column).factor)


def test_a_row_of_ones_own_takes_a_shipped_alias(tmp_path: Path) -> None:
    header = "model,num layers,hidden size,num attention heads,ffn hidden size,vocab size"
    path = _csv(tmp_path / "models.csv", header, "Llama3-70B,2,64,4,128,1000")
    catalog = load_catalog(path)
    assert catalog.known_rows("models", np.array(["llama3-70b", "Meta-Llama-3.1-70B"], dtype=object))[0] == 0
    assert len(catalog.tables["models"]) == len(load_catalog().tables["models"]) + 1


def test_a_calibration_and_a_workbook_stand_for_themselves(tmp_path: Path) -> None:
    import openpyxl

    rows = [["model", "num layers", "hidden size", "num attention heads", "ffn hidden size", "vocab size"]]
    rows.append(["mine", 2, 64, 4, 128, 1000])  # type: ignore[list-item]
    shipped = load_catalog().tables
    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.title = "models"
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "one.xlsx")
    assert len(load_catalog(tmp_path / "one.xlsx").tables["models"]) == len(shipped["models"]) + 1
    sheet = book.create_sheet("process_nodes")
    sheet.append([c.header for c in shipped["process_nodes"].schema.columns if c.required])
    book.save(tmp_path / "two.xlsx")
    assert load_catalog(tmp_path / "two.xlsx").tables["models"]["model"].tolist() == ["mine"]
    line = "calibration,family,generation,precision,software,constant,value"
    path = _csv(tmp_path / "calibration.csv", line, "mine,gemm,any,any,any,compute_efficiency,0.5")
    assert len(load_catalog(path).tables["calibration"]) == 1


def test_an_accelerator_added_to_a_table_runs_beside_the_shipped(command: Command, tmp_path: Path) -> None:
    card = _csv(tmp_path / "x.txt", "memory: 90 GB", "memory bandwidth: 5 TB/s", "BF16 Tensor Core: 900 TFLOPS",
                "TDP: 700 W")  # fmt: skip
    own = tmp_path / "accelerators.csv"
    assert command("add", "accelerator", card, "--like", "H200-SXM-141GB", "--name", "mine", "-o", own).code == 0
    plans = _csv(tmp_path / "p.csv", "model,accelerator,num accelerators,global batch size",
                 "Meta-Llama-3.1-8B,mine,8,8", "Meta-Llama-3.1-8B,H100-SXM-80GB,8,8")  # fmt: skip
    done = command("evaluate", plans, "--catalog", own)
    assert (done.code, len(done.out.splitlines())) == (0, 3)
