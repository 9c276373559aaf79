"""A plan that does not fit names the part that is too large and a setting that makes it smaller."""

from __future__ import annotations

import re
from typing import Any

import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate

H100 = "H100-SXM-80GB"
SERVED = {"accelerator": H100, "software": "vllm", "prompt_length": 4000, "output_length": 500, "mode": "continuous",
          "concurrency": 4}  # fmt: skip
TRAINED = {"model": "Llama3-8B", "accelerator": H100, "num_accelerators": 8, "sequence_length": 8192,
           "software": "megatron", "global_batch_size": 64}  # fmt: skip
TAKES = re.compile(r"\btakes? [\d.,]+ GiB")


def of_plans(catalog: Catalog, kind: str, *rows: dict[str, Any]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return evaluate(table_from_rows(kind, names, [[row.get(name, "") for name in names] for row in rows]), catalog)


@pytest.mark.parametrize(
    ("plan", "part", "mended"),
    [
        ({"model": "Meta-Llama-3.1-405B", "num_accelerators": 8, "tensor_parallel": 8, "precision": "bf16"},
         "weights take 94.5 GiB: 2 times as many ranks", {"num_accelerators": 16, "tensor_parallel": 16}),
        ({"model": "Meta-Llama-3.1-70B", "num_accelerators": 1, "precision": "bf16"},
         "weights take 131.4 GiB: 2 times as many ranks", {"num_accelerators": 2, "tensor_parallel": 2}),
        ({"model": "DeepSeek-R1", "accelerator": "H20-96GB", "num_accelerators": 8, "tensor_parallel": 8,
          "precision": "fp8", "software_release": "0.8.2"},
         "weights take 79.4 GiB and the engine sets 16.5 GiB aside: a larger memory fraction",
         {"memory_fraction": 0.95}),
        ({"model": "Meta-Llama-3.1-8B", "num_accelerators": 1, "precision": "bf16", "prompt_length": 500_000},
         "the cache takes 61.1 GiB: kv precision fp8", {"kv_precision": "fp8"}),
    ],
)  # fmt: skip
def test_serving(catalog: Catalog, plan: dict[str, Any], part: str, mended: dict[str, Any]) -> None:
    result = of_plans(catalog, "inference", {**SERVED, **plan}, {**SERVED, **plan, **mended})
    assert result.number("fits").tolist() == [0.0, 1.0]
    assert part in result.text("reason")[0] and not TAKES.search(result.text("reason")[1])


@pytest.mark.parametrize(
    ("plan", "part", "mended"),
    [
        ({"micro_batch_size": 2}, "saved activations take", {"recompute": "full"}),
        ({"zero_stage": 0, "micro_batch_size": 1}, "optimizer state takes", {"zero_stage": 1, "recompute": "full"}),
        ({"software": "torch-fsdp", "micro_batch_size": 8, "recompute": "full"}, "the loss and one layer take",
         {"cross_entropy": "chunked"}),
    ],
)  # fmt: skip
def test_training(catalog: Catalog, plan: dict[str, Any], part: str, mended: dict[str, Any]) -> None:
    result = of_plans(catalog, "training", {**TRAINED, **plan}, {**TRAINED, **plan, **mended})
    assert result.number("fits").tolist() == [0.0, 1.0]
    assert part in result.text("reason")[0] and not TAKES.search(result.text("reason")[1])
