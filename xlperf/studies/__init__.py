"""Studies: questions that a report answers, each with its settings, its plans in a workbook, tables and findings."""

from xlperf.studies.shelf import NAMES, study

__all__ = ["NAMES", "study"]
