"""Folders that tests read: of the project, of tests, of their shared modules and of their data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
DATA = TESTS / "data"
ACCURACY_PAGE = ROOT / "workbooks" / "accuracy.md"
