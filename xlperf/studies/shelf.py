"""The studies by name; a study is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from xlperf.base.errors import Fault, InputError, nearest

if TYPE_CHECKING:
    from xlperf.studies.outcome import Study

NAMES = (
    "a100-to-b200",
    "recompute",
    "technology-nodes",
    "gemm-bounds",
    "dram",
    "topologies",
    "flash-attention",
    "moe",
    "chiplets",
    "cost-performance",
)


def study(name: str) -> Study:
    """The study of a name, without regard to case.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`.

    Returns
    -------
    Study

    Raises
    ------
    InputError
        When there is none of that name.

    >>> study("Recompute").name
    'recompute'
    """
    wanted = name.strip().casefold()
    if wanted not in NAMES:
        raise InputError(Fault("--study", f'no study is named "{name}"; {nearest(name, NAMES)}'))
    found: Study = import_module(f"xlperf.studies.{wanted.replace('-', '_')}").STUDY
    return found
