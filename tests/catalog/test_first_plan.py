"""What a first plan waits for: tables that were read before, devices that it names, nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xlperf.addin import client
from xlperf.base.files import cache_folder
from xlperf.base.resources import workbook
from xlperf.catalog import catalog as catalogs
from xlperf.catalog.catalog import MOST_FILES, Catalog, cache_tables, cached_tables
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.read import read_catalog_tables
from xlperf.engine import devices, evaluate


def test_kept_tables_are_those_that_were_read(tmp_path: Path) -> None:
    tables, faults = read_catalog_tables(workbook(), required=True)
    assert not faults
    assert cached_tables(workbook(), tmp_path) is None
    cache_tables(workbook(), tables, tmp_path)
    again = cached_tables(workbook(), tmp_path)
    assert again is not None
    assert [table.kind for table in again] == [table.kind for table in tables]
    for old, new in zip(tables, again, strict=True):
        assert list(new.columns) == list(old.columns)
        for name, values in old.columns.items():
            assert new[name].dtype == values.dtype
            assert new[name].tolist() == values.tolist() or values.tobytes() == new[name].tobytes(), name
        for name in (*old.columns, "", "no such column"):
            for row in range(-1, len(old)):
                assert new.place(row, name) == old.place(row, name)


def test_a_changed_workbook_and_changed_readers_are_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Path(shutil.copy(workbook(), tmp_path))
    folder = tmp_path / "kept"
    tables = read_catalog_tables(book, required=True)[0]
    cache_tables(book, tables, folder)
    assert cached_tables(book, folder)
    state = book.stat()
    changed = bytearray(book.read_bytes())
    changed[len(changed) // 2] ^= 1
    book.write_bytes(bytes(changed))
    os.utime(book, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert cached_tables(book, folder) is None
    shutil.copy(workbook(), book)
    assert cached_tables(book, folder)
    readers = tmp_path / "xlperf" / "catalog"
    shutil.copytree(Path(catalogs.__file__).parent, readers)
    shutil.copytree(Path(catalogs.__file__).parents[1] / "base", readers.parent / "base")
    monkeypatch.setattr(catalogs, "__file__", str(readers / "catalog.py"))
    assert cached_tables(book, folder)  # copies keep their times
    os.utime(readers / "cells.py")
    assert cached_tables(book, folder) is None


def test_what_is_damaged_or_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    tables = read_catalog_tables(workbook(), required=True)[0][:2]
    cache_tables(workbook(), tables, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    file.write_text(whole.replace("1.0", "2.0", 1))
    assert cached_tables(workbook(), tmp_path) is None
    file.write_text(whole)
    assert cached_tables(workbook(), tmp_path)
    for content in ("", "[", "{}", '[{"kind": "accelerators"}]', '[{"kind": "no such"}]', "\x00"):
        file.write_text(content)
        assert cached_tables(workbook(), tmp_path) is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache_tables(workbook(), tables, blocked / "folder")
    assert cached_tables(workbook(), blocked / "folder") is None


def test_a_user_without_a_home_folder_reads_the_workbook(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(catalogs, "_installed", {})
    assert cached_tables(workbook()) is None
    assert len(catalogs.load_catalog().tables["accelerators"]) > 0


def test_few_files_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    for number in range(MOST_FILES + 3):
        (folder / f"{number}.json").write_text("[]")
        os.utime(folder / f"{number}.json", (number, number))
    cache_tables(workbook(), read_catalog_tables(workbook(), required=True)[0][:1], folder)
    assert len(list(folder.iterdir())) == MOST_FILES
    assert cached_tables(workbook(), folder)


def test_the_shipped_catalog_is_the_same_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(catalogs, "_installed", {})
    read = catalogs.load_catalog()
    files = list((cache_folder() / "workbooks").iterdir())
    assert len(files) == 1
    monkeypatch.setattr(catalogs, "_installed", {})
    kept_before = catalogs.load_catalog()
    assert kept_before is not read
    assert kept_before.fingerprint == read.fingerprint
    assert kept_before.origin == read.origin
    assert kept_before.networks == read.networks
    for kind, table in read.tables.items():
        assert len(kept_before.tables[kind]) == len(table)
        assert all(
            np.array_equal(values, kept_before.tables[kind][name], equal_nan=values.dtype != object)
            for name, values in table.columns.items()
        )


def test_the_client_of_hosts_knows_the_same_folder() -> None:
    assert client.cache_folder() == cache_folder()


@pytest.mark.parametrize("output", ["results.csv", "results.parquet"])
def test_plans_of_a_file_are_computed_without_pandas_and_openpyxl(output: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text("model,accelerator,num accelerators,tensor parallel\nLlama3-70B,H100-SXM-80GB,64,8\n")
    code = (
        "import sys; from xlperf.cli import run; code = run(sys.argv[1:]);"
        "print([name for name in ('pandas', 'openpyxl', 'scipy', 'xlwings') if name in sys.modules]); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "evaluate", str(plans), "-o", str(tmp_path / output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert (done.returncode, done.stderr) == (0, f"{tmp_path / output}: 1 training plan\n")
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_device_is_derived_only_for_a_plan_that_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = catalogs.load_catalog().with_tables([])
    header = ["model", "accelerator", "num accelerators"]
    plain = table_from_rows("training", header, [["Llama3-8B", "H100-SXM-80GB", 8]])
    named = table_from_rows("training", header, [["Llama3-8B", "2 nm HBM4e (derived)", 1]])
    both = table_from_rows(
        "training", header, [["Llama3-8B", "H100-SXM-80GB", 8], ["Llama3-8B", named["accelerator"][0], 1]]
    )
    asked: list[Catalog] = []
    derive = devices.accelerators_of
    monkeypatch.setattr(devices, "accelerators_of", lambda catalog: (asked.append(catalog), derive(catalog))[1])
    alone = evaluate(plain, fresh)
    assert not asked
    derived = evaluate(named, fresh)
    assert asked == [fresh]
    together = evaluate(both, fresh)
    for name, values in together.columns.items():
        assert values.tolist()[0] == alone[name].tolist()[0] or values[0] != values[0]
        assert values.tolist()[1] == derived[name].tolist()[0] or values[1] != values[1]
    assert derived["step_time"][0] > 0.0


def test_a_first_plan_does_not_wait_for_the_equations_of_owners() -> None:
    code = (
        "import sys; from xlperf.catalog.catalog import load_catalog\n"
        "from xlperf.catalog.parse import table_from_rows\n"
        "from xlperf.engine.tables import evaluate\n"
        "row = ['Llama3-8B', 'H100-SXM-80GB', 8, 8]\n"
        "names = ['model', 'accelerator', 'num accelerators', 'tensor parallel']\n"
        "evaluate(table_from_rows('training', names, [row]), load_catalog())\n"
        "print([name for name in sys.modules if name in ('xlperf.engine.ownership', 'xlperf.equations.cost.designs')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=1100)
    assert done.stdout.strip() == "[]"
