"""Studies: questions that a report answers. Questions, settings and plans are the CSV files here; modules analyse."""

from xlperf.studies.outcome import NAMES, study

__all__ = ["NAMES", "study"]
