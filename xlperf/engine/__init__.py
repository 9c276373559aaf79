"""The one entrance to the equations: tables of plans, designs or servers and a catalog in, tables of results out."""

from xlperf.engine.tables import evaluate, explain

__all__ = ["cost_bridge", "evaluate", "evaluate_designs", "evaluate_ownership", "evaluate_servers", "explain"]


def __getattr__(name: str) -> object:
    """Cost functions load on first use: plans do not need them."""
    if name == "evaluate_designs":
        from xlperf.engine.devices import evaluate_designs

        return evaluate_designs
    if name == "evaluate_servers":
        from xlperf.engine.ownership import evaluate_servers

        return evaluate_servers
    if name == "evaluate_ownership":
        from xlperf.engine.ownership import evaluate_ownership

        return evaluate_ownership
    if name == "cost_bridge":
        from xlperf.engine.ownership import cost_bridge

        return cost_bridge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
