"""The notebooks of the guide run from the first cell to the last; they are stored without output."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from places import ROOT

from xlperf.base import resources

NOTEBOOKS = sorted(resources.table("guide").glob("*.ipynb"))


def test_there_is_a_notebook_for_each_reader_without_output() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["architect", "engineer", "planner"]
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
        assert len(text.splitlines()) < 260 and text.count("xlperf.") > 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_and_show_tables_and_plots(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [text for text in printed if "Warning" in text]
    assert sum("image/png" in data for data in shown) >= 2
    assert sum("<table" in data.get("text/html", "") for data in shown) >= 4
