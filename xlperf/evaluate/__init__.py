"""The one door: a table of plans and a catalog in, a table of results out."""

from xlperf.evaluate.door import evaluate, explain

__all__ = ["evaluate", "explain"]
