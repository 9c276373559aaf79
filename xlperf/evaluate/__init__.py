"""The one door: a table of plans, designs or servers and a catalog in, a table of results out."""

from xlperf.evaluate.door import evaluate, explain

__all__ = ["cost_bridge", "evaluate", "evaluate_designs", "evaluate_ownership", "evaluate_servers", "explain"]


def __getattr__(name: str) -> object:
    """Cost is loaded when it is first asked for: a plan does without it."""
    if name == "evaluate_designs":
        from xlperf.evaluate.designs import evaluate_designs

        return evaluate_designs
    if name == "evaluate_servers":
        from xlperf.evaluate.servers import evaluate_servers

        return evaluate_servers
    if name == "evaluate_ownership":
        from xlperf.evaluate.ownership import evaluate_ownership

        return evaluate_ownership
    if name == "cost_bridge":
        from xlperf.evaluate.bridge import cost_bridge

        return cost_bridge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
