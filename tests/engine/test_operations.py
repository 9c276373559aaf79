"""Single collectives and kernels: the same numbers as in the plans that use them, and what is said of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlperf.addin.cells import CellError
from xlperf.addin.worker import Session
from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.cli.hardware import time as time_command
from xlperf.engine import explain
from xlperf.engine.operations import NEEDS, TAKES, evaluate_operations

H100, H200 = "H100-SXM-80GB", "H200-SXM-141GB"
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def table(kind: str, row: dict[str, Any]) -> Table:
    return table_from_rows(kind, list(row), [list(row.values())])


def timed(catalog: Catalog, operation: str, **row: Any) -> Table:
    return evaluate_operations(table("operations", {"operation": operation, "accelerator": H100, **row}), catalog)


SIZES = {"size": 32.0, "group": 64.0, "m": 512.0, "n": 512.0, "k": 512.0, "num_attention_heads": 8.0,
         "query_length": 512.0, "key_length": 512.0}  # fmt: skip


@pytest.mark.parametrize("stack", ["inference", "training"])
@pytest.mark.parametrize("operation", [name for name in NEEDS if name != "decode-attention"])
def test_every_operation_has_a_time_in_either_stack(catalog: Catalog, operation: str, stack: str) -> None:
    """Also collectives that only mixtures of experts call: no model is named."""
    result = timed(catalog, operation, stack=stack, **{name: SIZES[name] for name in NEEDS[operation]})
    assert result["time"][0] > 0.0, result.text("reason")


def test_examples_of_the_help_run(command: Command) -> None:
    examples = re.findall(r"^ +xlperf (explain .*)$", command("explain", "--operation", "--help").out, re.MULTILINE)
    assert len(examples) == 5
    for line in examples:
        assert command(*shlex.split(line)).code == 0, line


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int4"])
@pytest.mark.parametrize("accelerator", [H100, "B200-SXM-180GB", "MI300X"])
def test_operations_are_those_of_a_service(catalog: Catalog, accelerator: str, precision: str) -> None:
    """To the last bit: 70B on 4 ranks and 2 stages, prompts of 1,024 in one pass, then tokens that see 1,025 keys."""
    row = {
        "model": "Meta-Llama-3.1-70B", "accelerator": accelerator, "num_accelerators": 8, "tensor_parallel": 4,
        "pipeline_parallel": 2, "prompt_length": 1024, "output_length": 2, "batch_size": 8, "software": "vllm",
        "precision": precision, "prefill_tokens": 8192,
    }  # fmt: skip
    operators = explain(table("inference", row), catalog)
    names = list(zip(operators.text("phase").tolist(), operators.text("operator").tolist(), strict=True))
    tokens = {phase: operators["m"][names.index((phase, "qkv"))] for phase in ("prefill", "decode")}
    seen = 0
    for index in range(len(operators)):
        line = {name: values[index] for name, values in operators.columns.items()}
        asked: dict[str, Any] = {"accelerator": accelerator, "software": "vllm", "precision": precision}
        family = str(line["family"])
        if family == "gemm" and line["operator"] != "logits":
            asked |= {"operation": "gemm", **{name: line[name] for name in ("m", "n", "k", "batch")}}
        elif family == "all_reduce" or line["operator"] == "stage transfer":
            ranks = {"group": 4} if family == "all_reduce" else {"group": 2, "stride": 4}
            asked |= {"operation": family.replace("_", "-"), "size": line["traffic"] / 1e6, **ranks}
        elif family in ("attention", "attention_decode"):
            heads = {"num_attention_heads": 16, "num_query_groups": 2, "head_size": 128}
            heads["batch"] = tokens["prefill"] / 1024 if family == "attention" else tokens["decode"]
            lengths = {"query_length": 1024} if family == "attention" else {"key_length": 1025}
            asked |= {"operation": "prefill-attention" if lengths.get("query_length") else "decode-attention"}
            asked |= heads | lengths
        else:
            continue
        one = replace(table("operations", asked))
        if "size" in one:
            one = replace(one, columns={**one.columns, "size": np.array([line["traffic"]])})
        result = evaluate_operations(one, catalog)
        assert result["time"][0] == line["time"], line["operator"]
        if not np.isnan(line["flop"]) and line["flop"] > 0.0:
            assert result["flop"][0] == pytest.approx(line["flop"], rel=1e-12)
            assert result["traffic"][0] == pytest.approx(line["traffic"], rel=1e-12)
        seen += 1
    assert seen >= 12


def test_operations_are_those_of_a_training_step(catalog: Catalog) -> None:
    row = {
        "model": "GPT3-175B", "accelerator": H100, "num_accelerators": 64, "tensor_parallel": 8, "zero_stage": 1,
        "pipeline_parallel": 4, "sequence_parallel": "yes", "global_batch_size": 64, "sequence_length": 2048,
    }  # fmt: skip
    operators = explain(table("training", row), catalog)
    ranks = {"tensor-parallel gather": (8, 1), "tensor-parallel scatter": (8, 1), "stage transfer": (4, 16)}
    seen = 0
    for index in range(len(operators)):
        line = {name: values[index] for name, values in operators.columns.items()}
        asked: dict[str, Any] = {"accelerator": H100, "stack": "training", "num_accelerators": 64}
        if line["phase"] == "forward" and line["operator"] in ("qkv", "attention output", "mlp up", "mlp down"):
            asked |= {"operation": "gemm", **{name: line[name] for name in ("m", "n", "k", "batch")}}
            del asked["num_accelerators"]
        elif line["operator"] in ranks:
            group, stride = ranks[str(line["operator"])]
            asked |= {"operation": str(line["family"]).replace("_", "-"), "group": group, "stride": stride, "size": 1}
        else:
            continue
        one = table("operations", asked)
        if "size" in one:
            one = replace(one, columns={**one.columns, "size": np.array([line["traffic"]])})
        assert evaluate_operations(one, catalog)["time"][0] == line["time"], line["operator"]
        seen += 1
    assert seen >= 6


def test_rates_follow_from_times(catalog: Catalog) -> None:
    reduce = timed(catalog, "all-reduce", size=1000, group=8)
    assert reduce["algorithm_bandwidth"][0] == pytest.approx(1e9 / reduce["time"][0], rel=1e-12)
    assert reduce["bus_bandwidth"][0] == pytest.approx(1.75 * reduce["algorithm_bandwidth"][0], rel=1e-12)
    assert 0.7 * 450e9 < reduce["bus_bandwidth"][0] < 450e9 * 1.2
    gather = timed(catalog, "all-gather", size=1000, group=8)
    assert gather["bus_bandwidth"][0] == pytest.approx(0.875 * gather["algorithm_bandwidth"][0], rel=1e-12)
    product = timed(catalog, "gemm", m=8192, n=8192, k=8192)
    assert product["flop"][0] == 2.0 * 8192**3
    assert product["flop_rate"][0] == pytest.approx(product["flop"][0] / product["time"][0], rel=1e-12)
    assert 0.5 * 989e12 < product["flop_rate"][0] < 989e12
    causal, whole = (
        timed(catalog, "prefill-attention", num_attention_heads=32, query_length=8192, causal=word)
        for word in ("yes", "no")
    )
    assert whole["flop"][0] == 4.0 * 128 * 32 * 8192**2
    assert 1.5 < whole["time"][0] / causal["time"][0] < 2.1


def test_a_bound_is_what_would_help_if_it_were_doubled(catalog: Catalog) -> None:
    assert timed(catalog, "gemm", m=8192, n=8192, k=8192)["bound"][0] == "compute"
    assert timed(catalog, "gemm", m=1, n=8192, k=8192)["bound"][0] == "memory"
    assert timed(catalog, "decode-attention", num_attention_heads=8, key_length=50000, batch=64)["bound"][0] == "memory"
    assert timed(catalog, "all-reduce", size=1000, group=16)["bound"][0] == "network"
    assert timed(catalog, "all-gather", size=0.001, group=8)["bound"][0] == "overhead"


def test_what_is_extrapolated_is_said(catalog: Catalog) -> None:
    assert timed(catalog, "gemm", m=1, n=1, k=1)["calibration"][0] == "measured"
    assert timed(catalog, "gemm", accelerator="Rubin (VR200)", m=64, n=64, k=64)["calibration"][0] == "extrapolated"
    sent = timed(catalog, "point-to-point", size=1e6, group=2)
    assert sent["calibration"][0] == "extrapolated", (
        "no transfer between two ranks was measured: constants are defaults"
    )


def test_what_a_machine_cannot_do_has_a_reason(catalog: Catalog, command: Command) -> None:
    result = timed(catalog, "gemm", accelerator="A100-SXM4-80GB", m=64, n=64, k=64, precision="fp8")
    assert np.isnan(result["time"][0])
    assert result["bound"][0] == result["calibration"][0] == ""
    assert "states no peak rate for precision fp8" in result["reason"][0]
    done = command("explain", "--operation", "all-reduce", "--accelerator", H100, "--group", 1_000_000, "--size", 1)
    assert done.code == 1
    assert "accelerators at most" in done.err


def test_columns_of_operations_are_those_of_the_command(catalog: Catalog) -> None:
    kinds = table("operations", {"operation": "gemm", "accelerator": H100}).schema.by_name
    assert tuple(time_command.params[0].type.choices) == kinds["operation"].choices == tuple(NEEDS) == tuple(TAKES)
    named = [parameter.name for parameter in time_command.params]
    assert named[: len(kinds)] == list(kinds)
    known = {"operation", "accelerator", "stack", "software"}
    assert {name for taken in TAKES.values() for name in taken} | known == set(kinds)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"operation": "gemm", "m": 1, "n": 1}, "gemm needs k"),
        ({"operation": "gemm", "m": 1, "n": 1, "k": 1, "size": 3}, "size says nothing of gemm, which takes m, n, k"),
        ({"operation": "all-reduce", "size": 3}, "all-reduce needs group"),
        ({"operation": "decode-attention", "num_attention_heads": 8, "key_length": 9, "stack": "training"},
         "decode-attention is of inference, not of training"),
        ({"operation": "gemm", "m": 1, "n": 1, "k": 1, "precision": "int4", "stack": "training"},
         'training has no precision "int4"'),
        ({"operation": "gemm", "m": 1, "n": 1, "k": 1, "accelerator": "H10"}, 'unknown accelerator "H10"'),
    ],
)  # fmt: skip
def test_operations_that_are_refused(catalog: Catalog, row: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        evaluate_operations(table("operations", {"accelerator": H100, **row}), catalog)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemm", "--accelerator", H100, "-m", "x", "-n", 1, "-k", 1), '-m: m must be a number above 0, got "x"'),
        (("all-reduce", "--accelerator", H100, "--group", 8), "xlperf explain --operation: all-reduce needs size"),
        (("all-reduce", "--accelerator", H100, "--group", 8, "--size", "3 foo"), '--size: cannot be in "foo"'),
        (("all-reduce", "--accelerator", H100, "--group", 8, "--size", "3..4 MB"), "--size: must be a number of bytes"),
        (("all-reduce", "--group", 8), "missing option '--accelerator'"),
        (("broadcast", "--accelerator", H100), "is not one of"),
        (("memory", "--accelerator", H100, "--size", "1", "-o", "x.txt"), "x.txt: the output must end in"),
    ],
)
def test_bad_arguments_have_one_line(command: Command, arguments: tuple[Any, ...], words: str) -> None:
    done = command("explain", "--operation", *arguments)
    assert done.code == 2
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_the_command_crosses_values_and_writes_files(command: Command, tmp_path: Path) -> None:
    shown = command(
        "explain",
        "--operation",
        "all-reduce",
        "--accelerator",
        f"{H100},{H200}",
        "--group",
        "4,8",
        "--size",
        "1 MiB,2,1e3",
    )
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 3 + 12
    path = tmp_path / "out.csv"
    assert (
        command(
            "explain", "--operation", "gemm", "--accelerator", H100, *("-m", 64, "-n", 64, "-k", 64), "-o", path
        ).code
        == 0
    )
    assert "bus bandwidth (GB/s)" in path.read_text(encoding="utf-8").splitlines()[0]


def test_cells_show_the_same(catalog: Catalog) -> None:
    card = [["operation", "all-reduce"], ["accelerator", H100], ["size (MiB)", 64.0], ["group", 8.0]]
    session = Session()
    expected = timed(catalog, "all-reduce", **{"size (MiB)": 64}, group=8)
    assert session.call("XLPERF_TIME", [card]) == [[expected["time"][0] / 1e-6]]
    assert session.call("XLPERF_TIME", [card, "bus bandwidth"]) == [[expected["bus_bandwidth"][0] / 1e9]]
    assert session.call("XLPERF_TIME", [card, "bound"]) == [["network"]]
    rows = [
        ["operation", "accelerator", "m", "n", "k"],
        ["gemm", H100, 64.0, 64.0, 64.0],
        ["gemm", H100, 1.0, 64.0, 64.0],
    ]
    block = session.call("XLPERF_TIME", [rows])
    assert [len(block), len(block[0])] == [2, 1]
    bad = session.call("XLPERF_TIME", [card[:3]])[0][0]
    assert isinstance(bad, CellError)
    assert "all-reduce needs group" in bad.message
    header = ["accelerator", "vendor", "generation", "memory bandwidth (TB/s)", "memory capacity (GiB)",
              "peak flop rate bf16 (TFLOP/s)", "peak flop rate fp32 (TFLOP/s)", "default network",
              "thermal design power (W)"]  # fmt: skip
    own = [header, ["mine", "NVIDIA", "hopper", 6.7, 80.0, 989.0, 67.0, "DGX-H100", 700.0]]
    handle = session.call("XLPERF_CATALOG", [own])[0][0]
    moved = [["operation", "memory"], ["accelerator", "mine"], ["size (GB)", 1.0]]
    fast = session.call("XLPERF_TIME", [moved, "memory rate", handle])[0][0]
    assert isinstance(fast, float)
    assert 3350.0 < fast < 6700.0
