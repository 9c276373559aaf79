"""Command line: commands, progress, messages."""

from __future__ import annotations

from xlperf.cli.start import main, run

__all__ = ["main", "run"]
