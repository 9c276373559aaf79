"""What a training step depends on, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from xlperf.arrays import Array, ceil_div, total
from xlperf.hardware.device import Device
from xlperf.network.tiers import Network
from xlperf.parallel.plan import TrainingPlan
from xlperf.training.stages import StageLayers, stages_of
from xlperf.workload.model import Architecture, Model
from xlperf.workload.operators import Gemms

WORD = 4.0
"""Bytes of an FP32 element: logits, master weights, moments. [B]"""
MASK = 1.0
"""Bytes of an element of a dropout mask. [B]"""
STORED = 1.0 + WORD / 128.0
"""Bytes of an input of an activation function that waits in FP8, with an FP32 scale for each 128. [B]"""
STORED_OUTPUT = 1.5 + WORD / 128.0
"""Bytes of an element of the output of attention that waits in 12 bits (E5M6), with its share of a scale. [B]"""

Constants = Mapping[str, Mapping[str, Array]]


class Part(NamedTuple):
    """Operators of one phase: their names, the family that times them, calls per pass and seconds per call."""

    phase: str
    family: str
    names: tuple[str, ...]
    place: str
    calls: Array
    time: Array
    gemms: Gemms | None = None
    traffic: Array | None = None
    wide: bool = False

    @property
    def total_time(self) -> Array:
        """Time of one pass, (rows,). [s]"""
        return total(self.calls * self.time)

    def time_of(self, ending: str) -> Array:
        """Time of one pass of the operators whose name ends so; all of them for "", (rows,). [s]"""
        if not ending:
            return self.total_time
        index = [position for position, name in enumerate(self.names) if name.endswith(ending)]
        return total(self.calls[:, index] * self.time[:, index]) if index else 0.0 * self.total_time


@dataclass(frozen=True, eq=False)
class Setting:
    """What a step depends on: model, device, network, plan and calibration.

    ``device`` carries the peak of the products' precision, ``wide_device`` that of 16 bits (or wider), at which
    attention and the output projection run; ``constants`` maps a kernel family to its constants of shape (rows, 1),
    with ``gemm_wide`` for the products at that wider precision.
    """

    model: Model
    device: Device
    wide_device: Device
    network: Network
    plan: TrainingPlan
    constants: Constants
    architecture: Architecture

    @cached_property
    def stages(self) -> StageLayers:
        """Layers of the kinds of stages. [-]"""
        return stages_of(self.model, self.plan)

    @cached_property
    def heads(self) -> Array:
        """Heads of queries on a rank, (rows,). [-]"""
        return ceil_div(self.model.num_attention_heads, self.plan.tensor_parallel)

    @cached_property
    def key_heads(self) -> Array:
        """Heads of keys and values on a rank, latent attention apart, (rows,). [-]"""
        return ceil_div(self.model.num_query_groups, self.plan.tensor_parallel)
