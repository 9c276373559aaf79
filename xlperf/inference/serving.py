"""Everything that the equations of serving need of a block of plans, and the requests that they serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from xlperf.arrays import Array
from xlperf.hardware.device import Device
from xlperf.inference.bound import serving_bound
from xlperf.inference.results import Room, room_of, serving_results
from xlperf.inference.work import ServingWork, serving_work
from xlperf.network.tiers import Network
from xlperf.parallel.serving_plan import InferencePlan
from xlperf.workload.model import Architecture, Model
from xlperf.workload.serving import BOTH_PHASES

Bundle = TypeVar("Bundle", Model, Device, Network, InferencePlan, "Stream")
Rows = np.ndarray | slice


def _some(values: Array, rows: Rows) -> Array:
    """Rows of an array that has one for each plan; others as they are."""
    return values[rows] if values.ndim else values


def _some_rows(bundle: Bundle, rows: Rows) -> Bundle:
    """Some plans of a bundle of arrays."""
    return type(bundle)(*(_some(getattr(bundle, field.name), rows) for field in fields(bundle)))


@dataclass(frozen=True)
class Serving:
    """Everything that the equations need of a block of plans: the arguments of ``serving_results``."""

    model: Model
    device: Device
    attention_device: Device
    wide_device: Device
    network: Network
    plan: InferencePlan
    kernels: Mapping[str, Mapping[str, Array]]
    software: Mapping[str, Array]
    reserved_memory: Array
    architecture: Architecture

    def with_batch(self, batch: Array, prompts: Array) -> Serving:
        """The same with other requests decoded together and other prompts prefilled together."""
        return replace(self, plan=replace(self.plan, batch_size=batch, prompts_together=prompts))

    def take(self, rows: Rows) -> Serving:
        """Some of the plans; a plan may be taken several times."""
        return Serving(
            _some_rows(self.model, rows),
            _some_rows(self.device, rows),
            _some_rows(self.attention_device, rows),
            _some_rows(self.wide_device, rows),
            _some_rows(self.network, rows),
            _some_rows(self.plan, rows),
            {name: {key: _some(v, rows) for key, v in family.items()} for name, family in self.kernels.items()},
            {name: _some(values, rows) for name, values in self.software.items()},
            _some(self.reserved_memory, rows),
            self.architecture,
        )

    def results(self) -> dict[str, Array]:
        """As :func:`xlperf.inference.serving_results`."""
        return serving_results(
            self.model,
            self.device,
            self.attention_device,
            self.wide_device,
            self.network,
            self.plan,
            self.kernels,
            self.software,
            self.reserved_memory,
            self.architecture,
        )

    def room(self) -> Room:
        """As :func:`xlperf.inference.results.room_of`."""
        return room_of(
            self.model, self.device, self.plan, self.software, self.reserved_memory, self.architecture
        )

    def work(self, phases: tuple[int, ...] = BOTH_PHASES) -> ServingWork:
        """As :func:`xlperf.inference.serving_work`."""
        return serving_work(
            self.model,
            self.device,
            self.attention_device,
            self.wide_device,
            self.network,
            self.plan,
            self.kernels,
            self.software,
            self.architecture,
            phases,
        )

    def bound(self, work: ServingWork) -> Array:
        """As :func:`xlperf.inference.serving_bound`."""
        return serving_bound(
            work, self.device, self.attention_device, self.kernels, self.architecture.latent_attention
        )


@dataclass(frozen=True)
class Stream:
    """Requests, (rows,).

    Rate over the deployment (NaN: constant number in flight), variation, targets (NaN: none), share of those in
    flight whose prefills are waited for, requests of a run (NaN: without end).
    """

    request_rate: Array
    prompt_variation: Array
    first_target: Array
    token_target: Array
    waiting_share: Array
    run_requests: Array

    def take(self, rows: Rows) -> Stream:
        """Those of some of the plans."""
        return _some_rows(self, rows)
