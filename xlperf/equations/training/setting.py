"""What a training step depends on, and the pieces that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, ceil_div, total
from xlperf.equations.hardware.kernels import Device
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.operators import Gemms
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.columns import derived
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.training.stages import (
    Pipeline,
    RankParameters,
    StageContents,
    StageParameters,
    fullest_parameters,
    pipeline_contents,
    rank_parameters,
)

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
        chosen = _ending(self.names, ending)
        if chosen is None:
            return 0.0 * self.total_time
        return total(self.calls[:, chosen] * self.time[:, chosen])


@lru_cache(maxsize=256)
def _ending(names: tuple[str, ...], ending: str) -> slice | list[int] | None:
    """Columns of the names that end so."""
    index = [position for position, name in enumerate(names) if name.endswith(ending)]
    if not index:
        return None
    whole = slice(index[0], index[-1] + 1)
    return whole if len(index) == whole.stop - whole.start else index


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

    @derived
    def pipeline(self) -> Pipeline:
        """What the stages of the pipeline hold. [-]"""
        return pipeline_contents(self.model, self.plan)

    @derived
    def contents(self) -> StageContents:
        """The same of the first, a middle and the last stage beside each other, (rows, 3). [-]"""
        return self.pipeline.stages()

    @derived
    def parameters(self) -> RankParameters:
        """Parameters of each block on one rank. [-]"""
        return rank_parameters(self.model, self.plan)

    @derived
    def fullest(self) -> StageParameters:
        """Parameters of the largest stage on one rank. [-]"""
        return fullest_parameters(self.model, self.plan, self.parameters, self.pipeline)

    @derived
    def stream_size(self) -> Array:
        """Bytes of the residual stream of a micro-batch on one rank of the context, (rows,). [B]"""
        return np.asarray(self.plan.tokens * self.model.hidden_size * self.plan.element_size)

    @derived
    def heads(self) -> Array:
        """Heads of queries on a rank, (rows,). [-]"""
        return ceil_div(self.model.num_attention_heads, self.plan.tensor_parallel)

    @derived
    def key_heads(self) -> Array:
        """Heads of keys and values on a rank without latent attention, (rows,). [-]"""
        return ceil_div(self.model.num_query_groups, self.plan.tensor_parallel)

    @derived
    def routed(self) -> tuple[Array, Array, Array]:
        """Tokens that a rank routes, their copies over all experts of the fullest rank, and experts of a rank. [-]"""
        model, plan = self.model, self.plan
        routed = plan.tokens / np.where(plan.sequence_parallel > 0, plan.tensor_parallel, 1.0)
        experts = model.num_experts / plan.expert_parallel
        filled = np.where(np.isnan(plan.expert_capacity), plan.expert_imbalance, plan.expert_capacity)
        copies = routed * model.top_k * plan.expert_tensor_parallel * filled
        return routed, copies, experts
