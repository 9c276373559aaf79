"""Memory of the loss by training stack and release, beside published peaks."""

from __future__ import annotations

import pytest

from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate

GIB = 2.0**30


@pytest.mark.parametrize(
    ("plan", "measured"),
    [
        # torchtitan 1690e0ae (May 2026): BF16 weights and moments, FSDP of eight B200, full recomputation, loss in
        # eight chunks; a table of a batch sweep
        ({"model": "gpt-oss-20b", "micro_batch_size": 10}, 69.5),
        ({"model": "gpt-oss-20b", "micro_batch_size": 20}, 104.5),
        # prime-rl 559b447 benchmarks/baselines (January 2026): FP32 master weights, plain loss, reserved memory
        ({"model": "Qwen3-4B", "micro_batch_size": 1, "sequence_length": 16_384, "software": "prime-rl",
          "master_weights": "", "moment_precision": "", "gradient_precision": "", "software_release": ""}, 54.6),
        ({"model": "Qwen3-4B", "micro_batch_size": 1, "sequence_length": 65_536, "software": "prime-rl",
          "master_weights": "", "moment_precision": "", "gradient_precision": "", "software_release": ""}, 171.5),
    ],
)  # fmt: skip
def test_logits_of_the_loss_by_stack_and_release(plan: dict[str, object], measured: float, catalog: Catalog) -> None:
    row = {"accelerator": "B200-SXM-180GB", "num_accelerators": 8, "sequence_length": 8192, "recompute": "full",
           "precision": "bf16", "zero_stage": 3, "compiled": "yes", "software": "torchtitan", "software_release": "0.3",
           "master_weights": "none", "moment_precision": "bf16", "gradient_precision": "bf16", **plan}  # fmt: skip
    batch = float(str(row["micro_batch_size"])) * 8 * (2 if row["software"] == "prime-rl" else 1)
    table = table_from_rows("training", [*row, "global_batch_size"], [[*row.values(), batch]])
    assert evaluate(table, catalog).number("memory_reserved")[0] / GIB == pytest.approx(measured, rel=0.17)
