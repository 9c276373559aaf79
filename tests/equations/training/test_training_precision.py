"""Training: recipes of narrow precision, their casts, copies and constants."""

from __future__ import annotations

import numpy as np
import pytest
from training_samples import B200, H100, NARROW, plans, result

from xlperf.calibrate.fitter import FittedConstant, calibration_table
from xlperf.catalog.calibration import Calibration
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate, explain

TOKENS, HIDDEN, FFN, LAYERS = 4096.0, 4096.0, 14336.0, 32.0
PRODUCTS = HIDDEN * 128.0 * 80.0 + 3.0 * HIDDEN * FFN


def traffic_of(catalog: Catalog, name: str, **change: object) -> float:
    """Bytes of one call of an operator, 0 where there is none."""
    parts = explain(plans({**NARROW, **change}), catalog)
    outcome = parts.text("operator").tolist()
    return float(parts.number("traffic")[outcome.index(name)]) if name in outcome else 0.0


@pytest.mark.parametrize(
    ("precision", "fused", "alone"),
    [
        ("fp8", -2.0 + 1.0, 2.0 + 1.0),
        ("fp8-current", 2.0 + 1.0, 4.0 + 1.0),
        ("mxfp8", 2.0 + 2.0 * (1.0 + 1.0 / 32.0), 2.0 + 2.0 * (1.0 + 1.0 / 32.0)),
        ("fp8-block", 2.0 + 2.0 * (1.0 + 4.0 / 128.0), 2.0 + 2.0 * (1.0 + 4.0 / 128.0)),
        ("fp4", 2.0 + 2.0 * 0.5625, 4.0 + 2.0 * 0.5625),
    ],
)
def test_casts_by_hand(catalog: Catalog, precision: str, fused: float, alone: float) -> None:
    """Inputs of qkv and both of the feed-forward layer come from a norm or an activation; the others are read.

    Blackwell's matrix units read what has one scale by rows and by columns: that is written once. What a norm writes
    less is not counted in its favour.
    """
    forward = TOKENS * HIDDEN * (fused + alone)
    assert traffic_of(catalog, "attention casts", precision=precision) == pytest.approx(forward)
    forward = TOKENS * (HIDDEN + FFN) * max(fused, 0.0)
    assert traffic_of(catalog, "mlp casts", precision=precision) == pytest.approx(forward)
    backward = TOKENS * max(2.0 * FFN * fused + HIDDEN * alone, 0.0)
    assert traffic_of(catalog, "mlp casts of gradients", precision=precision) == pytest.approx(backward)


@pytest.mark.parametrize(
    ("precision", "fused", "alone"), [("fp8", -2.0 + 2.0, 2.0 + 2.0), ("fp8-current", 2.0 + 2.0, 4.0 + 2.0)]
)
def test_matrix_units_that_read_by_rows_alone_take_two_copies(
    catalog: Catalog, precision: str, fused: float, alone: float
) -> None:
    assert traffic_of(catalog, "attention casts", precision=precision, accelerator=H100) == pytest.approx(
        TOKENS * HIDDEN * (fused + alone)
    )
    kept, wide = (
        result(catalog, {**NARROW, "accelerator": H100}, "memory_weights", precision=name, **copies)
        for name, copies in ((precision, {"quantized_copies": "kept"}), ("bf16", {}))
    )
    assert kept - wide == pytest.approx(LAYERS * PRODUCTS * 2.0)


_SPLIT = {"tensor_parallel": 2, "data_parallel": 4, "sequence_parallel": "yes"}
_GATHERS = ("tensor-parallel gather", "tensor-parallel gather of gradients")


@pytest.mark.parametrize(
    ("change", "inputs", "gradients"),
    [
        ({"precision": "bf16"}, 2.0, 2.0),
        ({"precision": "fp8"}, 1.0, 1.0),
        ({"precision": "fp8-current", "accelerator": H100}, 1.0, 1.0),
        ({"precision": "mxfp8"}, 33.0 / 32.0, 2.0 * 33.0 / 32.0),
        ({"precision": "fp4"}, 0.5625, 2.0 * 0.5625),
        ({"precision": "fp8", "quantized_copies": "none"}, 2.0, 2.0),
        ({"precision": "fp8", "wide_layers": 8}, 1.25, 1.25),
        ({"precision": "fp8", "adapter_rank": 16, "global_batch_size": 8}, 2.0, 2.0),
    ],
)
def test_what_is_cast_is_gathered_narrow(
    catalog: Catalog, change: dict[str, object], inputs: float, gradients: float
) -> None:
    """Gradients in both layouts where their scales run along rows; what each product casts itself is gathered wide."""
    outcome = [traffic_of(catalog, name, **{**_SPLIT, **change}) for name in _GATHERS]
    assert outcome == pytest.approx([TOKENS * HIDDEN * inputs, TOKENS * HIDDEN * gradients])
    assert traffic_of(catalog, "tensor-parallel scatter", **{**_SPLIT, **change}) == TOKENS * HIDDEN * 2.0


@pytest.mark.parametrize(
    ("precision", "accelerator", "shard", "turned", "own"),
    [
        ("fp8-current", B200, 2.0 + 1.0, 0.0, 4.0 + 1.0),
        ("fp8-current", H100, 2.0 + 1.0, 2.0, 4.0 + 2.0),
        ("mxfp8", B200, 2.0 + 2.0 * 33.0 / 32.0, 0.0, 2.0 + 2.0 * 33.0 / 32.0),
    ],
)
def test_ranks_cast_their_shards_before_they_gather_them(
    catalog: Catalog, precision: str, accelerator: str, shard: float, turned: float, own: float
) -> None:
    """The input of qkv: half is cast, all of it turned where products need both layouts; the other is not gathered."""
    plan = {**_SPLIT, "precision": precision, "accelerator": accelerator}
    forward = TOKENS * HIDDEN * (0.5 * shard + turned) + TOKENS * 0.5 * HIDDEN * own
    assert traffic_of(catalog, "attention casts", **plan) == pytest.approx(forward)


def test_nothing_is_cast_where_products_are_as_wide_as_activations(catalog: Catalog) -> None:
    parts = explain(plans({**NARROW, "precision": "bf16"}), catalog)
    assert not [name for name in parts.text("operator").tolist() if "casts" in name]


def test_what_is_not_kept_is_cast_for_each_product(catalog: Catalog) -> None:
    kept, none = (
        traffic_of(catalog, "mlp casts of gradients", precision="fp8-current", quantized_copies=copies)
        for copies in ("kept", "none")
    )
    weights, inputs = 3.0 * HIDDEN * FFN, TOKENS * (HIDDEN + FFN)
    assert none - kept == pytest.approx((weights + inputs) * (4.0 + 1.0))
    long = {**NARROW, "software": "megatron", "global_batch_size": 64}
    times = [result(catalog, long, precision="fp8-current", quantized_copies=c) for c in ("primary", "kept", "none")]
    assert times[0] < times[1] < times[2]


def test_recipes_that_read_twice_are_slower(catalog: Catalog) -> None:
    busy = {**NARROW, "software": "megatron"}  # the host does not wait
    assert result(catalog, busy) < result(catalog, busy, precision="mxfp8")
    assert result(catalog, busy, precision="mxfp8") < result(catalog, busy, precision="fp8-current") * 1.02
    assert result(catalog, busy) < result(catalog, busy, precision="fp8-current")
    assert result(catalog, busy, precision="fp4") < result(catalog, busy, precision="bf16")


def test_memory_of_narrow_copies_by_hand(catalog: Catalog) -> None:
    """Weights of products in each layout; inputs narrow in place of wide, and beside the wide attention output."""
    wide = result(catalog, NARROW, "memory_weights", precision="bf16")
    for precision, size, layouts in (("fp8", 1.0, 1.0), ("mxfp8", 1.0 + 1.0 / 32.0, 2.0), ("fp4", 0.5625, 2.0)):
        kept, primary, none = (
            result(catalog, NARROW, "memory_weights", precision=precision, quantized_copies=copies) - wide
            for copies in ("kept", "primary", "none")
        )
        assert kept == pytest.approx(LAYERS * PRODUCTS * layouts * size)
        assert primary == pytest.approx(LAYERS * PRODUCTS * (layouts * size - 2.0), abs=1.0)
        assert none == 0.0
        saved = result(catalog, NARROW, "memory_layer_activations", precision=precision) - result(
            catalog, NARROW, "memory_layer_activations", precision="bf16"
        )
        each = (size - 2.0) * (2.0 * HIDDEN + FFN) + size * HIDDEN
        assert saved == pytest.approx(LAYERS * TOKENS * each, rel=1e-6)


def test_primary_weights_are_gathered_narrow(catalog: Catalog) -> None:
    """One byte less for each; scales along rows cannot be turned: those weights are gathered wide."""
    wide = [
        traffic_of(catalog, "weight gathering", precision="mxfp8", quantized_copies=copies)
        for copies in ("kept", "primary")
    ]
    assert wide[0] == wide[1]
    kept, primary = (traffic_of(catalog, "weight gathering", quantized_copies=copies) for copies in ("kept", "primary"))
    assert kept - primary == pytest.approx(LAYERS * PRODUCTS)
    sharded = {**NARROW, "zero_stage": 3, "global_batch_size": 32}
    assert result(catalog, sharded, "time_data_parallel", quantized_copies="primary") < result(
        catalog, sharded, "time_data_parallel", quantized_copies="kept"
    )
    assert result(catalog, sharded, "memory", quantized_copies="primary") < result(
        catalog, sharded, "memory", quantized_copies="kept"
    )


def test_wide_layers_lie_between_narrow_and_wide(catalog: Catalog) -> None:
    row = {**NARROW, "precision": "fp4", "quantized_copies": "none"}
    narrow, some, all_wide = (result(catalog, row, "time_forward", wide_layers=count) for count in (0, 4, 32))
    wide = result(catalog, {**NARROW, "precision": "bf16"}, "time_forward")
    assert all_wide == pytest.approx(wide, rel=1e-9)
    assert some == pytest.approx(narrow + (wide - narrow) / 8.0, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": "bf16", "quantized_copies": "kept"}, "quantized copies kept need products in FP8, INT8 or FP4"),
        ({"precision": "bf16", "wide_layers": 2}, "wide layers 2 need products in FP8, INT8 or FP4"),
        ({"wide_layers": 40}, "wide layers 40 are more than the model's 32"),
        (
            {"precision": "mxfp8", "accelerator": H100},
            "the matrix units of accelerator H100-SXM-80GB do not scale blocks (it states no FP4 rate): use fp8-block",
        ),
    ],
)
def test_precisions_that_cannot_be_are_said(catalog: Catalog, change: dict[str, object], reason: str) -> None:
    results = evaluate(plans({**NARROW, **change}), catalog)
    assert np.isnan(results["step_time"][0]) and reason in results["reason"][0]


def test_rows_of_every_recipe_are_the_same_together_and_alone(catalog: Catalog) -> None:
    mixture = {**NARROW, "model": "Mixtral-8x7B-v0.1", "expert_parallel": 8, "precision": "mxfp8"}
    table = plans(
        NARROW,
        {**NARROW, "precision": "bf16"},
        {**NARROW, "precision": "fp8-block", "quantized_copies": "primary", "wide_layers": 2},
        {**NARROW, "precision": "fp4", "zero_stage": 3, "global_batch_size": 16},
        {**NARROW, "quantized_copies": "none", "tensor_parallel": 2},
        mixture,
        {**mixture, "precision": "bf16"},
    )
    together = evaluate(table, catalog)
    for row in range(len(table)):
        alone = evaluate(table.take([row]), catalog)
        assert not np.isnan(alone["step_time"][0]), alone["reason"][0]
        for name, values in alone.columns.items():
            assert repr(values[0]) == repr(together[name][row]), (name, row)


def test_kinds_of_fp8_take_the_constants_of_fp8_unless_they_have_their_own() -> None:
    def table(*rows: tuple[str, str, float]) -> Calibration:
        made = [
            FittedConstant("gemm", kind, precision, "any", "compute_efficiency", value, "", 0, float("nan"), "", "")
            for kind, precision, value in rows
        ]
        return Calibration(calibration_table(made))

    def found(calibration: Calibration, precision: str) -> float:
        key = (np.array(["blackwell"]), np.array([precision]), np.array(["nemo"]))
        return float(calibration.constants("gemm", *key)[0]["compute_efficiency"][0, 0])

    rows = (("blackwell", "fp8", 0.8), ("blackwell", "any", 0.7), ("any", "any", 0.6), ("any", "fp8_block", 0.5))
    assert [found(table(*rows), name) for name in ("mxfp8", "fp8_block", "fp8", "fp4")] == [0.8, 0.8, 0.8, 0.7]
    own = table(*rows, ("blackwell", "mxfp8", 0.75))
    assert [found(own, name) for name in ("mxfp8", "fp8_block", "fp8")] == [0.75, 0.8, 0.8]
    far = table(*rows[2:], ("any", "fp8", 0.55))
    assert [found(far, name) for name in ("mxfp8", "fp8_block")] == [0.55, 0.5]
