"""The one entrance to the equations: tables of plans, designs or servers and a catalog in, tables of results out."""

from xlperf.engine.devices import evaluate_designs
from xlperf.engine.ownership import cost_bridge, evaluate_ownership, evaluate_servers
from xlperf.engine.tables import evaluate, explain

__all__ = ["cost_bridge", "evaluate", "evaluate_designs", "evaluate_ownership", "evaluate_servers", "explain"]
