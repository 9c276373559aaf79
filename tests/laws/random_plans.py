"""Random legal plans of every mode, drawn from the shipped catalog: the same ones each time for the same seed.

``legal_plans(catalog, "continuous", 50)`` is a table of fifty legal plans; :data:`MODES` names what there is. A draw
is shaped so that many plans are legal (degrees are powers of two that divide the accelerators); those that the
engine gives no result for are drawn again. Columns are the same for every plan of a kind, blank in most rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.schema import table_schema
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.equations.plan.records import PRECISIONS

Row = dict[str, Any]

TRAINING_STACKS = ("megatron", "nemo", "nemo-bridge", "nanotron", "torch-fsdp", "torchtitan", "maxtext", "home-made")
ENGINES = ("tensorrt-llm", "vllm", "sglang", "nim", "turbomind", "deepseek", "home-made")
NARROW = ("fp8", "int4", "int8", "fp4")
FORMATS = ("auto", "mxfp4", "int4-128", "int4-64", "int8-128")
"""Formats of weights alone, and that of the checkpoint."""
NARROW_TRAINING = ("fp8", "fp8-current", "fp8-block", "mxfp8", "fp4", "int8")
STRANGE_MODELS = (  # experts, latent, local and chunked attention, linear attention, state space, MTP modules
    "Mixtral-8x7B-v0.1",
    "Qwen3-30B-A3B",
    "DeepSeek-V3",
    "Kimi-K2-Instruct",
    "gpt-oss-120b",
    "Gemma-2-27B",
    "Llama-4-Scout-17B-16E-Instruct",
    "GPT3-175B",
    "Meta-Llama-3.1-70B",
)
LINEAR_MODELS = ("qwen3-next-80B-A3B", "Qwen3.5-27B", "Nemotron-H-56B-Base-8K", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")


LATER = (
    "H100-NVL-94GB", "Kimi-K3", "gemma-4-26B-A4B", "Gemma-4-31B-IT-NVFP4", "Llama-3_3-Nemotron-Super-49B-v1",
    "Kimi-Linear-48B-A3B", "granite-4.0-h-small", "granite-4.0-h-tiny", "Falcon-H1-7B", "Falcon-H1-34B",
    "AI21-Jamba-1.5-Mini", "AI21-Jamba-1.5-Large", "MiniMax-Text-01", "LongCat-Flash-Chat", "LFM2-8B-A1B",
)  # fmt: skip
"""Accelerators and models that came after the plans were drawn: a new row draws none anew."""


class Draw:
    """A seeded source of choices with a few words that draws of plans read well with."""

    def __init__(self, seed: int, catalog: Catalog) -> None:
        self.random = np.random.default_rng(seed)
        self.later = np.random.default_rng((seed, 1))  # for columns that came later: draws of the others stay
        machines = catalog.tables["accelerators"]["accelerator"].tolist()
        self.accelerators = [name for name in machines if name not in LATER]
        known = catalog.tables["models"]["model"].tolist()
        self.models = [name for name in known if name not in LATER]
        self.experts = dict(zip(known, catalog.tables["models"]["num_experts"] > 0.0, strict=True))
        self.predicting = dict(zip(known, catalog.tables["models"].filled("num_mtp_layers") > 0.0, strict=True))
        self.seeing = dict(zip(known, catalog.tables["models"].number("vision_layers", 0.0) > 0.0, strict=True))
        self._peaks = {
            name: dict(zip(machines, catalog.tables["accelerators"][f"peak_flop_rate_{name}"], strict=True))
            for name in ("fp8", "int8", "fp4")
        }

    def precision(self, accelerator: str, wide: Sequence[str], narrow: Sequence[str]) -> str:
        """A precision that the accelerator mostly has a peak rate for."""
        known = [
            name
            for name in narrow
            if not (peaks := self._peaks.get(next((key for key in self._peaks if key in name), "")))
            or peaks[accelerator] > 0.0
            or self.maybe(0.1)
        ]
        return str(self.one(known if known and self.maybe(0.5) else wide))

    def has_peak(self, name: str, accelerator: str) -> bool:
        """Whether an accelerator has a peak rate of a narrow precision."""
        return bool(self._peaks[name][accelerator] > 0.0)

    def one(self, values: Sequence[Any]) -> Any:
        """One of some values, each as likely."""
        return values[int(self.random.integers(len(values)))]

    def maybe(self, chance: float) -> bool:
        """Whether something of this chance happens."""
        return bool(self.random.random() < chance)

    def power(self, most: int, mean: float = 1.5) -> int:
        """A power of two up to a largest one; small ones are likelier."""
        return int(min(2 ** int(self.random.poisson(mean)), most))

    def length(self, low: float, high: float) -> int:
        """A whole number between two, as likely in each decade; half of them are round."""
        value = float(np.exp(self.random.uniform(np.log(low), np.log(high))))
        return int(2 ** round(np.log2(value))) if self.maybe(0.5) else max(int(value), 1)


def _training_row(draw: Draw, number: int) -> Row:
    model = draw.one(STRANGE_MODELS) if draw.maybe(0.45) else draw.one(draw.models)
    experts = draw.experts[model]
    tensor, pipeline = draw.power(8), draw.power(16, 1.0)
    context = draw.power(4) if draw.maybe(0.25) else 1
    replicas = draw.power(32, 2.0)
    accelerator = draw.one(draw.accelerators)
    row: Row = {
        "name": f"t{number}",
        "model": model,
        "accelerator": accelerator,
        "num_accelerators": tensor * pipeline * context * replicas,
        "software": draw.one(TRAINING_STACKS),
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "zero_stage": draw.one((0, 1, 2, 3)),
        "micro_batch_size": draw.power(4, 0.7),
        "precision": draw.precision(accelerator, ("bf16", "bf16", "fp16", "tf32", "fp32"), NARROW_TRAINING),
        "recompute": draw.one(("none", "selective", "full")),
        "attention": "standard"
        if context == 1 and draw.maybe(0.1)
        else ("flash", "flash", "flash", "flash-2", "flash-3")[number % 5],
        "sequence_length": draw.one((None, 2048, 4096, 8192, 16384)),
    }
    row["global_batch_size"] = replicas * row["micro_batch_size"] * pipeline * draw.one((1, 2, 4, 8))
    schedule = draw.one(("1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble", "dualpipe")) if pipeline > 1 else "1f1b"
    row["pipeline_schedule"] = schedule
    if schedule in ("1f1b", "interleaved") and pipeline > 1 and draw.maybe(0.5):
        row["virtual_pipeline"] = draw.one((2, 3, 5))
    if experts and draw.maybe(0.8):
        row["expert_parallel"] = draw.power(min(tensor * context * replicas, 64), 2.0)
        row |= draw.one(({}, {"expert_tensor_parallel": tensor}))
        row |= {
            "expert_imbalance": draw.one((None, 1.0, 1.3)),
            "expert_capacity": draw.one((None, 1.0, 1.5)),
            "token_dispatch": draw.one(("once", "copies")),
            "dispatch_precision": draw.one(("bf16", "fp8")),
            "dispatch_nodes": draw.one((None, 2, 4)),
            "expert_overlap": draw.one((None, "yes", "no")),
        }
    if context > 1:
        row |= {
            "context_method": draw.one(("ring", "all-gather", "ulysses")),
            "context_balance": draw.one((None, "yes", "no")),
        }
    for name, values, chance in (
        ("tensor_overlap", ("none", "gradients", "all"), 0.4),
        ("graphs", ("none", "layers", "step"), 0.3),
        ("zero_group_size", (2, 4), 0.1),
        ("dimension_order", ("tp-cp-ep-dp-pp", "tp-pp-cp-ep-dp"), 0.2),
        ("gradient_precision", ("fp32", "bf16"), 0.3),
        ("gradient_accumulation", ("fused", "separate"), 0.3),
        ("cross_entropy", ("parallel", "fused", "plain"), 0.3),
        ("optimizer", ("adam", "sgd"), 0.2),
        ("moment_precision", ("fp32", "bf16", "fp8"), 0.2),
        ("master_weights", ("fp32", "remainder", "none"), 0.2),
        ("activation_storage", ("wide", "fp8"), 0.2),
        ("recompute_layers", (1, 2), 0.1),
        ("recompute_group", (1, 2), 0.1),
        ("stage_dealing", ("even", "cost"), 0.1),
        ("adapter_rank", (8, 16), 0.1),
        ("train_mtp", ("yes", "no"), 0.1),
        ("pipeline_overlap", ("yes", "no"), 0.3),
        ("data_overlap", ("yes", "no"), 0.3),
        ("sequence_parallel", ("yes", "yes", "no"), 0.2),
        ("data_parallel", (replicas,), 0.2),
        ("accelerator_mtbf", (5_000, 50_000), 0.1),
        ("checkpoint_bandwidth", (100, 2_000), 0.1),
        ("restart_time", (5, 30), 0.1),
        ("training_tokens", (1.0, 15.0), 0.3),
        ("power_limit", (300, 500), 0.1),
        ("network", ("DGX-H100", "NVL72-GB200", "DGX-H100-rails", "Slingshot-MI250X", "TPUv4-pod", "DGX-1-V100"), 0.15),
    ):
        if draw.maybe(chance):
            row[name] = draw.one(values)
    if row["zero_stage"] == 3:
        row["reshard_after_forward"] = draw.one((None, "yes", "no"))
    if draw.maybe(0.1):
        row |= {"offload_optimizer": draw.one((0.5, 1.0)), "offload_target": draw.one((None, "host", "drive"))}
    if draw.maybe(0.1):
        row["offload_activations"] = draw.one((0.5, 1.0))
    if draw.maybe(0.15) and pipeline > 1:
        row |= draw.one(({"last_stage_layers": 1}, {"last_stage_layers": 2}, {"first_stage_layers": 1},
                         {"first_stage_layers": 2}))  # fmt: skip
    if "adapter_rank" in row:
        row["adapter_modules"] = draw.one((None, "all", "qkv"))
    if row["precision"] in NARROW_TRAINING:
        row["quantized_copies"] = draw.one((None, "kept", "primary", "none"))
        row["wide_layers"] = draw.one((None, None, 1, 2))
    if row["recompute"] == "selective":
        modules = (
            "core_attention",
            "mlp norm",
            "core_attention activation",
            "products",
            *(("moe",) if experts else ()),
        )
        row["recompute_modules"] = draw.one((None, *modules))
    row["start_hour"] = (None, 3, 20)[number % 3]
    row |= _prices(number)
    row["software_release"] = (None, "24.07", None, "v0.15.0")[number % 4]
    row["loss_precision"] = (None, "bf16", None, "fp32")[number % 4]
    if "token_dispatch" in row:
        row["dispatch_ranks"] = (None, 6, None, 3)[number % 4]
    row["compiled"] = (None, None, "yes", None, "no")[number % 5]
    if "expert_capacity" in row and row["expert_capacity"] and draw.later.random() < 0.2:
        row["graphs"] = "whole-layers"
    if draw.later.random() < 0.1:
        row["cross_entropy"] = "gathered"
    if row["zero_stage"] == 3 and draw.later.random() < 0.2:
        row["gradient_accumulation"] = "whole"
    if draw.later.random() < 0.1:
        row["cross_entropy"] = "chunked"
    if draw.later.random() < 0.1:
        row["software"] = "torchtune"
    if number % 9 == 2:
        row |= {"failure_domain": (8, 72)[number % 2], "failure_domain_mtbf": (8_760, 50_000)[number % 2]}
    if draw.predicting[row["model"]] and draw.later.random() < 0.5:
        row["train_mtp"] = "yes"
    if number % 5 == 3 and draw.has_peak("fp4", accelerator):  # few accelerators have one: no draw, so others stay
        row["precision"] = "fp4"
    return row


def _prices(number: int) -> Row:
    """Prices that some plans state themselves."""
    return {
        "hour_price": (None, None, 2.0, None, None, 3.5, None)[number % 7],
        "utilization": (None, None, None, 0.7, None, 0.9)[number % 6],
        "energy_price": (None, 0.03, None, None, 0.06)[number % 5],
        "power_usage_effectiveness": (None, None, 1.1, 1.4)[number % 4],
        "carbon_intensity": (None, 50, None, 300, None, None)[number % 6],
    }


def _pool(draw: Draw, model: str, prefix: str = "") -> tuple[Row, int]:
    """Degrees of a pool of a served model, and the accelerators of a replica."""
    tensor, pipeline = draw.power(16, 2.0), draw.power(4, 0.4)
    context = draw.power(4) if draw.maybe(0.2) else 1
    row = {
        f"{prefix}tensor_parallel": tensor,
        f"{prefix}pipeline_parallel": pipeline,
        f"{prefix}context_parallel": context,
    }
    if draw.maybe(0.4):
        row[f"{prefix}data_parallel_attention"] = draw.power(tensor, 2.0)
    if draw.experts[model] and draw.maybe(0.7):
        row[f"{prefix}expert_parallel"] = draw.power(tensor, 3.0)
    return row, tensor * pipeline * context


def _on_host(number: int, experts: bool) -> Row:
    """Weights in the host's memory, or low-rank adapters, of some rows; no draw, so that all others stay."""
    row: Row = {}
    turn = number // 9
    if number % 9 == 4:
        row["host_experts_share" if experts and turn % 2 else "host_weights_share"] = (0.3, 1.0)[turn // 2 % 2]
        row |= {
            "host_compute": ("cpu", "stream", "faster")[turn % 3],
            "host_prefetch": ("yes", "no")[turn % 2],
            "host_experts": ("layers", "rarest")[turn // 2 % 2],
            "host_memory_capacity": (500, 2000)[turn % 2],
            "host_memory_bandwidth": (100, 300)[turn % 2],
            "host_flop_rate": (2, 20)[turn % 2],
            "host_bandwidth": (25, 50)[turn % 2],
        }
    elif number % 9 == 7:
        row["host_weights"] = (1, 10)[turn % 2]
    if number % 9 == 2:
        row |= {"adapters": (1, 40)[turn % 2], "adapter_rank": (8, 64)[turn % 2]}
        row |= {"adapter_modules": ("all", "qkv")[turn // 2 % 2], "resident_adapters": (None, 1, 20)[turn % 3]}
    return row


def _images(number: int) -> Row:
    """Images or video of some rows of models that see them; no draw, so that all others stay."""
    turn = number // 3
    if number % 3:
        return {}
    return {
        "images": (1, 3, 0.5)[turn % 3],
        "video_frames": (None, 8, 16)[turn // 2 % 3],
        "image_width": (None, 448, 1920)[turn // 3 % 3],
        "image_height": (None, 336, 1080)[turn // 4 % 3],
        "image_tokens": (None, None, 256, 1000)[turn % 4],
        "encoder_split": ("layers", "images", "pool")[turn % 3],
        "pixel_time": (None, 10, 40)[turn // 5 % 3],
    }


def _serving_row(draw: Draw, number: int, mode: str) -> Row:
    chosen = draw.random.random()
    model = draw.one(STRANGE_MODELS if chosen < 0.4 else LINEAR_MODELS if chosen < 0.55 else draw.models)
    degrees, replica = _pool(draw, model)
    replicas = draw.power(8, 0.7)
    accelerator = draw.one(draw.accelerators)
    row: Row = {
        "name": f"{mode[0]}{number}",
        "model": model,
        "accelerator": accelerator,
        "num_accelerators": replica * replicas,
        "software": draw.one(ENGINES),
        **degrees,
        "prompt_length": draw.length(16, 60_000),
        "output_length": draw.length(1, 4_000),
        "precision": draw.precision(accelerator, ("bf16", "bf16", "bf16", "fp16", "fp32"), NARROW),
        "mode": mode,
    }
    if mode == "static":
        row["batch_size"] = draw.length(1, 256)
    else:
        row["concurrency"] = draw.length(1, 512)
    for name, values, chance in (
        ("kv_precision", ("bf16", "fp16", "fp32", "fp8", "int8", "int4", "fp4"), 0.4),
        ("activation_precision", PRECISIONS[row["precision"]].products, 0.7),
        ("shared_prefix", (0.3, 0.5, 0.9, 1.0), 0.4),
        ("memory_fraction", (0.7, 0.85, 0.95), 0.3),
        ("prefill_tokens", (512, 2048, 16384), 0.3),
        ("power_limit", (300, 500), 0.1),
        ("draft_tokens", (1, 3, 5), 0.3),
        ("acceptance_rate", (0.0, 0.5, 0.9, 1.0), 0.3),
        ("draft_layers", (0, 1, 4), 0.2),
        ("context_method", ("ring", "all-gather"), 0.3),
        ("graphs", ("yes", "no"), 0.3),
        ("network", ("DGX-H100", "NVL72-GB200", "DGX-H100-rails"), 0.15),
    ):
        if draw.maybe(chance):
            row[name] = draw.one(values)
    if draw.maybe(0.1):
        row |= {"kv_offload": draw.one((0.2, 0.8)), "offload_target": draw.one((None, "host", "drive"))}
    if draw.later.random() < 0.05 and row.get("graphs") != "no":
        row["graph_tokens"] = int(draw.later.choice((0, 64, 3072)))
    if draw.later.random() < 0.2 and mode != "static":
        row["max_running_batch"] = int(draw.later.choice((4, 32, 300)))
    if len(row) % 7 == 0:  # no draw: all others stay as they are
        row["state_slots"] = (1, 3, 5)[len(model) % 3]
        row["state_precision"] = (None, "fp32", "bf16", "fp16")[number % 4]
    if draw.experts[model] and draw.maybe(0.2):
        row["redundant_experts"] = draw.one((8, 32))
    if row.get("data_parallel_attention", 1) > 1 and draw.experts[model]:
        row |= {
            "expert_dispatch": draw.one((None, "ranks", "nodes")),
            "two_batch_overlap": draw.one((None, "yes", "no")),
        }
    if mode != "static":
        for name, values, chance in (
            ("prompt_variation", (0.3, 1.0, 2.0), 0.4),
            ("output_variation", (0.3, 1.0, 2.0), 0.4),
            ("run_requests", (512, 2000), 0.3),
        ):
            if draw.maybe(chance):
                row[name] = draw.one(values)
    if mode == "continuous":
        row["polling_steps"] = draw.one((None, None, None, 5, 10))
        if row.get("data_parallel_attention", 1) > 1:
            row["gathering_steps"] = draw.one((None, None, 5, 20))
        if "run_requests" in row:
            row["prefill_first"] = draw.one((None, "yes", "no"))
    if mode == "disaggregated":
        before, ranks = degrees, replica
        if draw.maybe(0.5):
            before, ranks = _pool(draw, model, "prefill_")
            row |= before
            for name in ("expert_parallel", "data_parallel_attention"):
                row.setdefault(f"prefill_{name}", 1)
        if draw.maybe(0.3):
            row["prefill_accelerator"] = draw.one(draw.accelerators)
        if draw.maybe(0.2):
            row["prefill_network"] = draw.one(("DGX-H100", "NVL72-GB200"))
        if draw.maybe(0.2):
            row["transfer_bandwidth"] = draw.one((5, 50))
        row["prefill_accelerators"] = ranks * draw.power(4, 0.7)
        row["num_accelerators"] += row["prefill_accelerators"]
        if number % 8 == 0:
            _add_expert_pool(draw, row)
    row["sorted_sampling"] = (None, "no", "yes", None, None)[number % 5]
    row["wide_attention"] = (None, None, "no", "yes", None, None, None)[number % 7]
    row["attention_tile_rows"] = (None, None, None, 16, 64, 128, None, None)[number % 8]
    row |= _prices(number) | {"max_context": (None, 2e5, 1e6)[number % 3]}
    row["software_release"] = (None, "0.5.8", None, "0.11.2")[number % 4]
    if row.get("activation_precision") is None and number % 5 == 0:
        row["precision"] = (*FORMATS, None)[number // 5 % (len(FORMATS) + 1)]
    row |= _on_host(number, draw.experts[model])
    if draw.seeing[model]:
        row |= _images(number)
    row["load_by_hour"] = (None, "2 " * 12 + "1 " * 12, "1 " * 8 + "3 " * 16)[number % 3]
    if row["precision"] == "fp8":
        row["precision"] = ("fp8", "fp8-block", "fp8-tensor", "fp8")[number % 4]
    return row


def _add_expert_pool(draw: Draw, row: Row) -> None:
    """A pool for the feed-forward layers: as many ranks for each replica as its experts are split over, or twice."""
    ranks = row.get("tensor_parallel", 1) * row.get("context_parallel", 1)
    replicas = (row["num_accelerators"] - row["prefill_accelerators"]) // (ranks * row.get("pipeline_parallel", 1))
    row |= {"pipeline_parallel": 1, "expert_dispatch": None, "two_batch_overlap": None}
    row["expert_accelerators"] = replicas * row.get("expert_parallel", 1) * draw.one((1, 2))
    row["num_accelerators"] = row["prefill_accelerators"] + replicas * ranks + row["expert_accelerators"]
    row["ping_pong_batches"] = draw.one((None, 1, 2, 4))
    row["expert_bandwidth"] = draw.one((None, None, 5, 50))
    row["expert_accelerator"] = draw.one((None, *draw.accelerators[:4]))
    row["expert_network"] = draw.one((None, None, "DGX-H100", "NVL72-GB200"))


def _served(mode: str) -> Callable[[Draw, int], Row]:
    return lambda draw, number: _serving_row(draw, number, mode)


def _at_targets(draw: Draw, number: int) -> Row:
    row = _serving_row(draw, number, draw.one(("static", "continuous", "disaggregated")))
    ttft, tpot = draw.length(100, 20_000), draw.length(5, 200)
    return {**row, **draw.one(({"ttft_target": ttft, "tpot_target": tpot}, {"tpot_target": tpot}))}


_ROWS: dict[str, Callable[[Draw, int], Row]] = {
    "training": _training_row,
    "static": _served("static"),
    "continuous": _served("continuous"),
    "disaggregated": _served("disaggregated"),
    "targets": _at_targets,
}
MODES = (*_ROWS, "rate", "disaggregated rate")
"""What can be drawn. ``rate``: requests arrive at a rate (continuous); ``targets``: largest load under targets."""

_RESULT = {"training": "step_time", "inference": "latency"}
_FEWEST = 60
"""Plans that are drawn at least, so that fewer of them are the first of more. [-]"""
_SEEDS = {mode: 11 + at for at, mode in enumerate(MODES)}


def kind_of(mode: str) -> str:
    """Kind of table that the plans of a mode are in."""
    return "training" if mode == "training" else "inference"


def table_of(kind: str, rows: Sequence[Row]) -> Table:
    """A table of plans with every column of its kind; what a row has not is blank."""
    header = [column.name for column in table_schema(kind).columns]
    return table_from_rows(kind, header, [[row.get(name) for name in header] for row in rows])


def is_legal(plans: Table, results: Table) -> np.ndarray:
    """Whether each plan has results: what is illegal, or more load than can be served, has NaN and a reason."""
    return ~np.isnan(results[_RESULT[plans.kind]])


def _with_rates(catalog: Catalog, rows: list[Row], draw: Draw) -> list[Row]:
    """The same plans with requests that arrive at a share of the largest rate in place of requests in flight."""
    most = evaluate(table_of("inference", rows), catalog, results=["max_request_rate"])["max_request_rate"].tolist()
    changed = [
        {
            **row,
            "concurrency": None,
            "run_requests": None,
            "prefill_first": None,
            "request_rate": rate * draw.one((0.01, 0.3, 0.7, 0.9)),
            "arrival_variation": draw.later.choice((0.5, 2.0)) if draw.later.random() < 0.15 else None,
        }
        for row, rate in zip(rows, most, strict=True)
        if rate > 0.0
    ]
    return _legal("inference", changed, catalog)


def _legal(kind: str, rows: list[Row], catalog: Catalog) -> list[Row]:
    """The rows that are legal, by the result that tells it alone."""
    plans = table_of(kind, rows)
    legal = is_legal(plans, evaluate(plans, catalog, results=[_RESULT[kind]]))
    return [row for row, good in zip(rows, legal.tolist(), strict=True) if good]


@cache
def _drawn(mode: str, number: int, seed: int) -> tuple[Row, ...]:
    catalog = load_catalog()
    draw = Draw(_SEEDS[mode] + 1000 * seed, catalog)
    make = _ROWS[{"rate": "continuous", "disaggregated rate": "disaggregated"}.get(mode, mode)]
    result: list[Row] = []
    tried = 0
    for _ in range(50):  # three in five plans are legal, or more
        rows = [make(draw, tried + at) for at in range((3 if mode.endswith("rate") else 2) * number)]
        tried += len(rows)
        kept = _legal(kind_of(mode), rows, catalog)
        result += _with_rates(catalog, kept, draw) if mode.endswith("rate") else kept
        if len(result) >= number:
            return tuple(result[:number])
    raise AssertionError(f"{len(result)} of {number} plans of mode {mode} are legal after {tried} draws")


def legal_rows(mode: str, number: int, seed: int = 0) -> list[Row]:
    """Legal plans of a mode on the shipped catalog as cells by column, in the units of the schema."""
    return [dict(row) for row in _drawn(mode, max(number, _FEWEST), seed)[:number]]


def legal_plans(mode: str, number: int, seed: int = 0) -> Table:
    """Legal plans of a mode on the shipped catalog."""
    return table_of(kind_of(mode), legal_rows(mode, number, seed))
