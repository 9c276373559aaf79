"""Cards that people own or rent singly: they are in the catalog, run plans, and are said to be extrapolated."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate

CARDS = ("RTX 3090", "RTX 4090", "RTX 5090", "L4", "L40S", "A10", "RTX PRO 6000 WS", "RTX-PRO-6000-BSE", "RTX 6000 Ada")
SERVED = ("model", "accelerator", "num accelerators", "prompt length", "output length", "batch size", "software")


@pytest.mark.parametrize("card", CARDS)
def test_a_card_serves_a_model_that_fits_at_a_price(catalog: Catalog, card: str) -> None:
    plan = ["Llama-3.2-3B", card, 1, 1024, 128, 1, "vllm"]
    results = evaluate(table_from_rows("inference", list(SERVED), [plan]), catalog)
    weights = 2.0 * 3.21e9
    row = catalog.known_rows("accelerators", np.array([card], dtype=object))
    bandwidth = float(catalog.tables["accelerators"]["memory_bandwidth"][row[0]])
    assert bool(results["fits"][0]) and results["trust"][0] == "EXTRAPOLATED"
    assert weights / bandwidth < results["tpot"][0] < 4.0 * weights / bandwidth  # weights are read once a token
    assert 0.0 < results["cost_per_million_output_tokens"][0] < 1e-2


@pytest.mark.parametrize(
    ("spelled", "name", "mebibytes", "bandwidth"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX 3090", 24576, 0.936),
        ("rtx-4090", "RTX 4090", 24564, 1.008),
        ("GeForce RTX 5090", "RTX 5090", 32607, 1.792),
        ("NVIDIA L4", "L4", 23034, 0.300),
        ("NVIDIA A10", "A10", 23028, 0.600),
        ("RTX PRO 6000", "RTX-PRO-6000-BSE", 97887, 1.597),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 49140, 0.960),
    ],
)
def test_a_card_has_the_memory_that_its_driver_reports(
    catalog: Catalog, spelled: str, name: str, mebibytes: int, bandwidth: float
) -> None:
    """Memory.Total of nvidia-smi in public logs; bandwidth of the datasheets."""
    plans = table_from_rows("inference", list(SERVED), [["Llama-3.2-3B", spelled, 1, 1024, 128, 1, "vllm"]])
    row = catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")[0]
    table = catalog.tables["accelerators"]
    assert table["accelerator"][row] == name
    assert table["memory_capacity"][row] == pytest.approx(mebibytes * factor("MiB"), rel=1e-3)
    assert table["memory_bandwidth"][row] == pytest.approx(bandwidth * factor("TB/s"))


def test_cards_compute_less_with_wide_sums(catalog: Catalog) -> None:
    """Products of GeForce cards with FP32 accumulation, as engines run them: half the rate of workstation cards."""
    table = catalog.tables["accelerators"]
    names = table["accelerator"].tolist()
    peak = dict(
        zip(names, table["peak_flop_rate_bf16"] / table["num_multiprocessors"] / table["clock_rate"], strict=True)
    )
    for own, other in (("RTX 4090", "RTX 6000 Ada"), ("RTX 5090", "RTX PRO 6000 WS")):
        assert peak[own] == pytest.approx(peak[other] / 2.0, rel=0.02)


def test_moonlight_counts_as_published(catalog: Catalog) -> None:
    """Moonlight-16B-A3B: 15.96 G parameters, 2.24 G active without both embeddings (its paper)."""
    from xlperf.engine.catalog_arrays import catalog_models
    from xlperf.equations.model.operators import parameter_count

    models, reasons = catalog_models(catalog)
    row = catalog.tables["models"]["model"].tolist().index("Moonlight-16B-A3B")
    total, active = (float(parameter_count(models, experts_per_token=each)[row]) for each in (False, True))
    assert (reasons[row], total, active - 2 * 163840 * 2048) == ("", pytest.approx(15.96e9, rel=5e-3),
                                                                pytest.approx(2.24e9, rel=5e-3))  # fmt: skip
