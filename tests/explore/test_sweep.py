"""Long sweeps: any number of plans in blocks, samples, catalogs by row, and runs that are killed and go on."""

from __future__ import annotations

import csv
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import csv_rows
from explore.test_solve import H100, SERVE, TRAIN, table, varied

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog
from xlperf.engine import evaluate
from xlperf.explore.changed_catalogs import changed_catalog
from xlperf.explore.sweep import BLOCK, Sweep, sweep
from xlperf.explore.vary import LATIN_HYPERCUBE, RANDOM, Sampling, uniforms

LINES = (
    "accelerators.memory bandwidth=x0.5,x1",
    "networks.link bandwidth=x1,x2",
    "prices.rental price=x1,x2",
    "models.num layers=x1,x2",
)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_rows_with_catalogs_of_their_own_are_those_of_edited_sheets(catalog: Catalog, kind: str) -> None:
    pools = {"num accelerators": 16, "tensor parallel": 8, "mode": "disaggregated", "prefill accelerators": 8,
             "prefill accelerator": H100}  # fmt: skip
    serving = {**SERVE, "prefill accelerators": "", "prefill accelerator": ""}
    rows = (TRAIN, {**TRAIN, "tensor parallel": 4}) if kind == "training" else (serving, {**serving, **pools})
    plans, asked = table(*rows), varied(kind, *LINES)
    result = sweep(Sweep(plans, catalog, {}, asked.varied))
    points = list(product(*(one.values for one in asked.varied)))
    assert len(result.results) == len(plans) * len(points)
    for number, point in enumerate(points):
        edited = changed_catalog(catalog, plans, list(zip(asked.varied, point, strict=True)))
        shown = slice(number * len(plans), (number + 1) * len(plans))
        own = result.plans.take(shown)
        assert own.text("accelerator").tolist() == plans.text("accelerator").tolist()
        for name, values in evaluate(own, edited).columns.items():
            same = result.results[name][shown]
            if name == "reason":  # that of auto is said before
                assert all(one.endswith(other) for one, other in zip(same.tolist(), values.tolist(), strict=True))
            else:
                assert same.tolist() == values.tolist() or np.array_equal(same, values, equal_nan=True), name


BOUGHT = (
    "servers.energy price=x1,x3",
    "servers.accelerator price=20000,40000",
    "chiplets.margin share=x0.9,x1",
    "packages.substrate price=x1,x20",
    "process_nodes.wafer price=x1,x2",
    "calibration.training_software.kernel_slowdown=x1,x1.2",
)


@pytest.mark.parametrize("line", BOUGHT)
def test_what_an_accelerator_is_bought_as_and_constants_can_be_varied(catalog: Catalog, line: str) -> None:
    """Its hour then follows from server and chiplets, whatever the sheet prices has; as in sheets edited so."""
    plans, asked = table(TRAIN, {**TRAIN, "tensor parallel": 4}), varied("training", line)
    result = sweep(Sweep(plans, catalog, {}, asked.varied))
    for number, value in enumerate(asked.varied[0].values):
        edited = changed_catalog(catalog, plans, [(asked.varied[0], float(value))])
        shown = slice(2 * number, 2 * number + 2)
        for name, values in evaluate(result.plans.take(shown), edited).columns.items():
            if values.dtype != object:
                assert np.array_equal(result.results[name][shown], values, equal_nan=True), name
    cost = result.results["cost_per_million_tokens"]
    assert (cost[2:] > cost[:2]).all()
    assert result.varied[0][0].name.startswith(line.partition(".")[0])


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_what_a_machine_is_made_of_can_be_varied(catalog: Catalog, kind: str) -> None:
    """Node, memory, core, package and budgets of a derived device, node and memory of a product: as edited sheets."""
    row = TRAIN if kind == "training" else {**SERVE, "tensor parallel": 8}
    plans = table({**row, "accelerator": "3 nm HBM4 (derived)", "network": "NVL72-GB200"}, {**row, "accelerator": H100})
    asked = varied(kind, "technology.flop energy=x0.5,x2", "memories.energy=x1,x3", "technology.static power=x1,x4")
    lines = [asked, varied(kind, "devices.cache share=0.2,0.8", "cores.clock rate=x0.8",
                           "process nodes.wafer price=x2", "links.energy=x2")]  # fmt: skip
    changed = []
    for number, one in enumerate(lines):
        chosen = plans.take(slice(0, 2 - number))
        result = sweep(Sweep(chosen, catalog, {}, one.varied))
        for place, point in enumerate(product(*(each.values for each in one.varied))):
            edited = changed_catalog(catalog, chosen, list(zip(one.varied, point, strict=True)))
            shown = slice(place * len(chosen), (place + 1) * len(chosen))
            for name, values in evaluate(chosen, edited).columns.items():
                same = result.results[name][shown]
                if name not in ("reason", "trust", "trust_reason") and not name.endswith(("_low", "_high")):
                    assert same.tolist() == values.tolist() or np.array_equal(same, values, equal_nan=True), name
        changed.append(result.results["energy_per_token"])
    assert len(set(changed[0][::2].tolist())) > 4
    assert len(set(changed[0][1::2].tolist())) > 2


# --- samples


@pytest.mark.parametrize("number", [1, 7, 64, 1000, 4097])
def test_each_part_of_a_latin_hypercube_has_one_sample(number: int) -> None:
    sampling = Sampling(number, LATIN_HYPERCUBE, 5)
    index = np.arange(number)
    first, second = (uniforms(sampling, column, index) for column in (0, 1))
    for shares in (first, second):
        assert np.sort(np.floor(shares * number)).tolist() == index.tolist()
    if number > 100:
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.0 / np.sqrt(number)
        assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 4.0 / np.sqrt(number)


def test_samples_depend_on_seed_and_position_alone() -> None:
    for method in (RANDOM, LATIN_HYPERCUBE):
        whole = uniforms(Sampling(1000, method, 1), 3, np.arange(1000))
        assert uniforms(Sampling(1000, method, 1), 3, np.arange(400, 500)).tolist() == whole[400:500].tolist()
        assert (uniforms(Sampling(1000, method, 2), 3, np.arange(1000)) != whole).all()
    shares = uniforms(Sampling(100_000), 0, np.arange(100_000))
    assert shares.mean() == pytest.approx(0.5, abs=0.005)
    assert shares.var() == pytest.approx(1.0 / 12.0, abs=0.002)


def test_samples_are_drawn_from_ranges_and_lists(catalog: Catalog) -> None:
    asked = varied("training", "micro batch size=1..4", "precision=bf16,fp8", "accelerators.memory bandwidth=2..4",
                   "networks.latency=x1,x3")  # fmt: skip
    plans = table(TRAIN, {**TRAIN, "name": "b"})
    result = sweep(Sweep(plans, catalog, asked.values, asked.varied, Sampling(300)))
    assert result.plans["name"].tolist() == ["a"] * 300 + ["b"] * 300
    assert set(result.plans["micro_batch_size"].tolist()) == {1.0, 2.0, 3.0, 4.0}
    assert set(result.plans["precision"].tolist()) == {"bf16", "fp8"}
    (_, bandwidth), (_, latency) = result.varied
    assert 2e12 < bandwidth.min() < 2.1e12 < 3.9e12 < bandwidth.max() < 4e12
    assert set(latency.tolist()) == {1.0, 3.0}
    assert bandwidth[:300].tolist() == bandwidth[300:].tolist()  # plans are compared under the same samples
    assert result.results["step_time"][:300].tolist() == result.results["step_time"][300:].tolist()


# --- long runs

LONG = ("--vary", f"global batch size=1..{BLOCK * 3 // 2}", "--vary", "micro batch size=1,2,4,8,16,32,64,128",
        "--result", "step time", "--result", "fits")  # fmt: skip


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    path = tmp_path / "plans.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([TRAIN.keys(), TRAIN.values()])
    return path


def _parts(folder: Path) -> dict[str, int]:
    """Blocks that are done, and when each was written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.glob("0*.parquet")}


@pytest.mark.slow
def test_a_sweep_killed_twice_goes_on_and_ends_the_same(
    plans: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    moments = random.Random(17)
    output, folder = tmp_path / "grid.parquet", tmp_path / "grid.parquet.parts"
    line = [sys.executable, "-m", "xlperf", "evaluate", str(plans), *LONG, "--processes", "2", "-o", str(output)]
    before: dict[str, int] = {}
    for more in (0, 1):
        with subprocess.Popen(line, stderr=subprocess.DEVNULL) as running:
            # on a loaded machine up to five blocks are written together: from the fifth on it is killed as it starts
            wanted = len(before) + (more if len(before) < 5 else 0)
            while running.poll() is None and len(_parts(folder)) < wanted:
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.5))
            running.send_signal(signal.SIGKILL)
        assert not output.exists()
        now = _parts(folder)
        assert before.items() <= now.items()  # none is lost, none is computed again
        before = now
    assert before
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert f"{len(before)} of 12 blocks are there from before" in done.stderr
    assert not folder.exists()
    whole = tmp_path / "whole.parquet"
    assert command("evaluate", plans, *LONG, "--processes", "1", "-o", whole).code == 0
    assert output.read_bytes() == whole.read_bytes()


def test_blocks_of_csv_and_parquet_are_the_rows_of_one_table(
    plans: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    from pyarrow import parquet

    lines = (*LONG[:1], f"global batch size=1..{BLOCK // 2}", *LONG[2:3], "micro batch size=1,2,4", *LONG[4:])
    csv_file, parquet_file = tmp_path / "grid.csv", tmp_path / "grid.parquet"
    assert command("evaluate", plans, *lines, "-o", csv_file).err == f"{csv_file}: 49,152 plans\n"
    assert command("evaluate", plans, *lines, "-o", parquet_file).code == 0
    printed = command("evaluate", plans, *lines, "-o", "-").out
    assert csv_file.read_text(encoding="utf-8") == printed
    rows = list(csv.reader(printed.splitlines()))
    stored = parquet.read_table(parquet_file)
    assert rows[0] == stored.column_names == ["name", "global batch size", "micro batch size", "step time (s)", "fits"]
    assert len(rows) == 49_153
    times = ["" if value is None else repr(value) for value in stored.column("step time (s)").to_pylist()]
    assert [row[3] for row in rows[1:]] == [time.removesuffix(".0") for time in times]
    sizes = [(float(row[1]), float(row[2])) for row in rows[1:]]
    assert sizes == [(float(size), micro) for size in range(1, BLOCK // 2 + 1) for micro in (1.0, 2.0, 4.0)]


def test_blocks_of_another_sweep_are_left_out_and_other_folders_stay(
    plans: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    output, folder = tmp_path / "grid.csv", tmp_path / "grid.csv.parts"
    folder.mkdir()
    (folder / "mine.txt").write_text("kept", encoding="utf-8")
    refused = command("evaluate", plans, "--vary", "tensor parallel=1,2", "-o", output)
    assert refused.code == 2
    assert "but it holds other files; remove it or rename the output" in refused.err
    assert (folder / "mine.txt").read_text(encoding="utf-8") == "kept"
    os.remove(folder / "mine.txt")
    (folder / ".xlperf-0123456789abcdef.part.json").write_text("{", encoding="utf-8")  # killed at the first file
    assert command("evaluate", plans, "--vary", "tensor parallel=1,2", "-o", output).code == 0
    folder.mkdir()
    (folder / "sweep.json").write_text('{"sweep": "another"}', encoding="utf-8")
    (folder / "00000000.csv").write_text("name\nwrong\n", encoding="utf-8")
    assert command("evaluate", plans, "--vary", "tensor parallel=1,2", "-o", output).code == 0
    assert "wrong" not in output.read_text(encoding="utf-8")


def test_a_second_sweep_into_the_same_output_is_refused_and_says_who_writes_it(
    plans: Path, tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /cases/faults/two_sweeps_one_output_mixed.sh: rows of both were mixed, and the first one exited 0."""
    output, folder = tmp_path / "grid.csv", tmp_path / "grid.csv.parts"
    others: list[Any] = []

    def disturbed(work: Callable[[Any], Any], tasks: Any, *_: Any) -> Any:
        for number, task in enumerate(tasks):
            yield work(task)
            if not number:
                for name in ("tensor parallel=1,2", "tensor parallel=2,4"):
                    others.append(command("evaluate", plans, "--vary", name, "-o", output))

    folder.mkdir()
    (folder / ".xlperf-lock").write_text("process 1 since 2001-01-01 00:00:00", encoding="utf-8")  # its holder died
    monkeypatch.setattr("xlperf.cli.blocks.worked", disturbed)
    assert command("evaluate", plans, "--vary", "tensor parallel=1,2", "-o", output).code == 0
    for other in others:
        assert other.code == 2
        holder = rf"process {os.getpid()} since \d{{4}}-\d\d-\d\d [\d:]{{8}}"
        words = rf"is being written by {holder}; wait until it ends, or give the output another name"
        assert re.fullmatch(rf"{re.escape(str(output))}: {words}\n", other.err), other.err
    assert [row["tensor_parallel"] for row in csv_rows(output.read_text(encoding="utf-8"))] == ["1", "2"]
    assert not folder.exists()


@pytest.mark.parametrize(("name", "sheet"), [("H200-SXM-141GB", "chiplets"), ("L40S", "servers")])
def test_the_sheet_that_a_cost_would_follow_from_is_named(catalog: Catalog, name: str, sheet: str) -> None:
    """A wafer price reaches the cost of an accelerator through its chiplets and its server: without them none."""
    plans, asked = table({**TRAIN, "accelerator": name}), varied("training", "process nodes.wafer price=x1,x2")
    with pytest.raises(InputError, match=f'"{name}" has no row in the sheet {sheet}'):
        changed_catalog(catalog, plans, [(asked.varied[0], 2.0)])
