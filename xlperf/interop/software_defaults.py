"""What training software does where a plan does not say: ``software_defaults.csv``."""

from __future__ import annotations

from functools import cache

from xlperf.base import resources

_OTHERS = {"cross_entropy": "parallel"}
"""Choices of software without a row of its own, by column: Megatron-LM's."""


@cache
def _stated(column: str) -> dict[tuple[str, str], str]:
    """Choices of a column by software and the word of its column ``compiled``."""
    table = resources.rows("interop/software_defaults.csv")
    return {(row["software"], row["compiled"]): row["value"] for row in table if row["column"] == column}


def software_default(column: str, software: str, compiled: bool = False) -> str:
    """Choice that software takes in a column that a plan leaves blank.

    ``compiled``: whether the plan states that its kernels are compiled.

    >>> [software_default("cross_entropy", *how) for how in (("nemo",), ("torchtitan",), ("torchtitan", True))]
    ['fused', 'plain', 'fused']
    """
    stated, name = _stated(column), software.strip().casefold()
    plain = stated.get((name, ""), _OTHERS[column])
    return stated.get((name, "yes"), plain) if compiled else plain
