"""Machines beyond NVIDIA: fitted by line with pooling, sources left out; nothing else moves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from documented import documented, without_documented
from fit_samples import differing, sample_coarsely, with_other_last_digits
from published_samples import rows_of_fit_set
from shipped import shipped_measured

from xlperf.calibrate.fit_machines import MACHINE_SOURCE, fit_machines
from xlperf.calibrate.fitter import FittedConstant
from xlperf.calibrate.pooled_kernels import fit_machine_kernels
from xlperf.calibrate.published_errors import Measured, errors_of, plans_of, plans_to_fit, rows_of_machines
from xlperf.catalog.calibration import ANY
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_columns
from xlperf.engine import evaluate
from xlperf.measurements.comparison import predicted
from xlperf.measurements.kernels import machine_lines, measurements, predicted_time

DATE = "2026-01-31"
LINES = {"cdna", "gaudi", "tpu", "trainium"}


@cache
def catalog() -> Catalog:
    return load_catalog()


@cache
def measured() -> Measured:
    return shipped_measured()


@cache
def kernel_rows() -> tuple[Mapping[str, object], ...]:
    names = {"MI355X", "MI325X", "MI300X", "Gaudi2", "Gaudi3", "Trainium1"}
    kinds = ("gemm", "gemm_max", "collective")
    return tuple(row for row in measured().kernels if row["gpu"] in names and row["kind"] in kinds)


@cache
def kernels() -> tuple[FittedConstant, ...]:
    return tuple(fit_machine_kernels(kernel_rows(), catalog(), DATE))


@pytest.mark.slow
def test_the_last_digit_of_a_measurement_decides_no_constant() -> None:
    """Logarithms differ between processors there: rates of products on MI355X came out up to 1.26 times others."""
    assert differing(kernels(), fit_machine_kernels(with_other_last_digits(kernel_rows()), catalog(), DATE)) == {}


def test_lines_are_those_of_other_makers() -> None:
    lines = machine_lines(catalog())
    assert set(lines.values()) == LINES | {"ascend"}  # no published run was fitted
    assert lines["cdna3"] == "cdna" and lines["tpu6"] == "tpu"
    assert not set(lines) & {"hopper", "blackwell", "ampere", "ada", "volta"}


def test_products_of_amd_reach_what_was_measured_under_the_power_limit() -> None:
    """54 % of the peak on MI300X, 64 % on MI325X and 63 % on MI355X: the power limit tells the first two apart."""
    result = measurements([row for row in measured().kernels if str(row["gpu"]).startswith("MI3")], catalog())
    held = result.families["gemm"]
    own = catalog().calibration.constants(
        "gemm", *(np.array(part, dtype=object) for part in (held.generation, held.precision, held.software))
    )[0]
    error = predicted_time(held, own)[:, 0] / held.time - 1.0
    long = (held.time > 2e-4) & np.array([precision == "bf16" for precision in held.precision])
    for name, bar in (("MI300X", 0.08), ("MI325X", 0.08), ("MI355X", 0.05)):
        mine = long & np.array([one == name for one in held.accelerator])
        assert mine.any() and np.median(np.abs(error[mine])) < bar


def test_few_rows_are_pulled_to_what_holds_for_any_machine() -> None:
    generations = {one.generation for one in kernels()}
    assert "cdna" in generations and generations <= set(machine_lines(catalog())) | LINES
    key = (np.array([part], dtype=object) for part in (ANY, "bf16", ANY))
    usual = float(catalog().calibration.constants("gemm", *key)[0]["compute_efficiency"][0, 0])
    own = {one.calibration: one.value for one in kernels()}
    assert fit_machine_kernels([], catalog(), DATE) == []
    many = own["gemm/cdna/bf16/any/compute_efficiency"]
    assert many < usual
    line, generation = (own[f"gemm/{name}/bf16/any/energy_per_flop"] for name in ("cdna", "cdna3"))
    assert abs(line / generation - 1.0) < 0.15  # few machines tell a generation from its line


def test_lines_without_a_sweep_take_the_best_rate_half_the_way_to_what_others_reach() -> None:
    best = {one.calibration: one for one in kernels() if one.kind == "estimate"}
    gaudi = best["gemm/gaudi2/bf16/any/compute_efficiency"]
    assert 0.6 < gaudi.value < 418.7 / 432.0 and "half the way" in gaudi.notes
    none = next(one for one in kernels() if one.calibration == "gemm/trainium/bf16/any/compute_efficiency")
    assert none.kind == "assumption" and none.num_rows == 0


def test_published_rows_of_machines_are_in_no_other_fit() -> None:
    for rows in (measured().training, measured().inference):
        groups = plans_to_fit(rows, catalog()).published.text["group"]
        assert groups and not any(group.startswith("other-") for group in groups)
        assert all(group.startswith("other-") for group in rows_of_machines(rows).text["group"])


def test_every_published_row_of_machines_is_a_prediction() -> None:
    for rows in measured().machines:
        plans = plans_of(rows, catalog())
        assert not any(plans.reasons.tolist())
        assert set(errors_of(plans).row_ids.tolist()) == set(rows.text["row_id"])


def test_a_source_moves_its_own_line_only() -> None:
    served = measured().machines[1]
    gaudi = served.take([row for row, gpu in enumerate(served.text["gpu"]) if gpu.startswith("Gaudi")])
    result = fit_machines([gaudi], catalog(), DATE)
    fitted = [one for one in result if one.kind == "measured"]
    assert fitted and {one.generation for one in fitted} <= {"gaudi", "gaudi2", "gaudi3"}
    assert all(one.source == MACHINE_SOURCE for one in result)


def test_fit_sets_are_neighbours_of_one_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant names the rows of its own sheet, and no run goes over a row that was not fitted."""
    sample_coarsely(monkeypatch)
    sheets = [
        rows.take([row for row, gpu in enumerate(rows.text["gpu"]) if gpu.startswith("Gaudi") or row % 100 == 0])
        for rows in (measured().training, measured().inference)
    ]
    machines = {name for rows in sheets for name in rows_of_machines(rows).text["row_id"]}
    sheets_named = set()
    for one in fit_machines(sheets, catalog(), DATE):
        named = [rows_of_fit_set(one.fit_set, rows.text["row_id"]) for rows in sheets]
        assert sum(map(len, named)) == one.num_rows, one.fit_set
        assert machines.issuperset(named[0] + named[1])
        assert not all(named), one.fit_set
        sheets_named.update(number for number, names in enumerate(named) if names)
    assert sheets_named == {0, 1}


def test_decode_attention_of_amd_reaches_what_its_paged_kernel_was_measured_at() -> None:
    """AITER's paged attention reads 2.7 of 8 TB/s on MI350X, under half of what the kernels of Hopper reach."""
    rows = [row for row in measured().kernels if row["source_id"] == "tlx_paged_decode"]
    held = measurements(rows, catalog()).families["attention_decode"]
    own = catalog().calibration.constants(
        "attention_decode", *(np.array(part, dtype=object) for part in (held.generation, held.precision, held.software))
    )[0]
    error = predicted_time(held, own)[:, 0] / held.time - 1.0
    assert len(held) == 25 and np.median(np.abs(error)) < 0.1
    assert 0.3 < own["memory_efficiency"][0, 0] < 0.45


def test_collectives_of_neuron_are_a_ring_over_one_link() -> None:
    """nccom-test: 51 GB/s over 64 ranks of two trn1.32xlarge, though a chip has four links of 51 GB/s each way."""
    rows = [row for row in measured().kernels if row["source_id"] == "neuron_nccom" and row["op"] == "all_reduce"]
    held = measurements(rows, catalog()).families["all_reduce"]
    own = catalog().calibration.constants(
        "all_reduce", *(np.array(part, dtype=object) for part in (held.generation, held.precision, held.software))
    )[0]
    error = predicted_time(held, own)[:, 0] / held.time - 1.0
    large = (held.arguments["group_size"] == 32.0) & (held.arguments["message_size"] > 6e7)
    assert large.sum() == 5 and (np.abs(error[large]) < 0.3).all()
    within = (held.arguments["group_size"] == 2.0) & (held.arguments["message_size"] > 2e6)
    assert not within.any()  # the two cores of a chip


@pytest.mark.parametrize("line", ["tpu6", "gaudi3", "trainium1"])
@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8"])
def test_no_clock_follows_from_watts_that_were_estimated(line: str, precision: str) -> None:
    key = (np.array([part], dtype=object) for part in (line, precision, ANY))
    assert catalog().calibration.constants("gemm", *key)[0]["energy_per_flop"][0, 0] == 0.0


def test_cores_of_a_chip_keep_copies_of_what_tensor_parallelism_does_not_split() -> None:
    """Llama 3.1 on 16 Trainium1: 32 ranks keep a whole group each and compute all norms, 16 ranks half of that."""
    assert [one.value for one in documented("ranks") if one.generation == "trainium1"] == [2.0]
    served = measured().machines[1]
    rows = served.take([row for row, name in enumerate(served.text["row_id"]) if name in ("UI0144", "UI0145")])
    whole = without_documented(catalog(), "ranks")
    one, two = (predicted(plans_of(rows, known)) for known in (whole, catalog()))
    assert two.number("memory_kv_cache").tolist() == (2.0 * one.number("memory_kv_cache")).tolist()
    longer = two.number("ttft") / one.number("ttft")
    assert (longer > 1.02).all() and (longer < 1.2).all()


def test_servers_of_cores_pad_heads_that_their_ranks_do_not_divide() -> None:
    """40 heads of Llama 4 Scout on 16 Trainium2 of four ranks: 64 are kept, as Neuron's engines do; GPUs refuse."""
    row = {"model": "Llama-4-Scout-17B-16E-Instruct", "num_accelerators": 16, "tensor_parallel": 16,
           "prompt_length": 1000, "output_length": 100, "precision": "bf16", "batch_size": 1}  # fmt: skip
    rows = [{**row, "accelerator": name} for name in ("Trainium2", "H100-SXM-80GB")]
    cells = {name: np.array([each[name] for each in rows], dtype=object) for name in rows[0]}
    served = evaluate(table_from_columns("inference", cells, lambda _, column: column), catalog())
    padded, refused = served.text("reason")
    assert "does not divide" not in padded and served.number("tpot")[0] > 0.0
    assert "tensor parallel 16 does not divide the 40 attention heads" in refused
