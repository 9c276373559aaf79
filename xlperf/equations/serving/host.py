"""Weights in the host's memory: processors multiply them there, or the link moves them to the accelerator each step."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, side_by_side, total
from xlperf.equations.hardware.roofline import exposed_offload_time
from xlperf.equations.model.operators import PREFILL, ServingGemms, ServingShape
from xlperf.equations.plan.records import HostCompute, HostExperts
from xlperf.equations.serving.deployment import Deployment
from xlperf.equations.serving.kernels import KernelTimes, by_phase, stored_sizes


def rarest_visits(held: Numeric, favoured_share: Numeric, hot_share: Numeric) -> Array:
    r"""Share of the visits of experts that the least used ones receive.

    Routers prefer a share s of the experts; the others receive a share (1 - s)^3 of the visits that do not go to a few
    hot ones. The host holds the others first.

    .. math:: v = (1 - h) \left(\frac{\min(x, 1 - s)}{1 - s} (1 - s)^3
              + \frac{\max(x - (1 - s), 0)}{s} \left(1 - (1 - s)^3\right)\right),\quad v(1) = 1

    Heuristic, this work.

    Half of the experts of an even router; the half that is not preferred; the same where 0.2 of the visits go to a few:

    >>> rarest_visits(0.5, [1.0, 0.5, 0.5], [0.0, 0.0, 0.2]).tolist()
    [0.5, 0.125, 0.1]

    Parameters
    ----------
    held : Share x of the experts that the host holds. [-]
    favoured_share : Share s of the experts that routers prefer, above 0; 1: no preference. [-]
    hot_share : Share h of the visits that goes to the same few experts. [-]

    Returns
    -------
    share : Share of the visits, at most the share of the experts. [-]
    """
    share, favoured = array(held), array(favoured_share)
    rare = 1.0 - favoured
    within, beyond = np.minimum(share, rare), np.maximum(share - rare, 0.0)
    visits = within * rare * rare + beyond / favoured * (1.0 - rare * rare * rare)
    shown = (1.0 - array(hot_share)) * visits
    return np.asarray(np.where(share < 1.0, shown, share + 0.0 * shown))


def processor_time(weights_size: Numeric, flop: Numeric, memory_bandwidth: Numeric, flop_rate: Numeric) -> Array:
    r"""Time of matrix products on the processors of a host: they read the weights once, from memory.

    .. math:: t = \max\left(\frac{S}{B}, \frac{F}{P}\right)

    Source: S. Williams, A. Waterman and D. Patterson, "Roofline", 2009, doi:10.1145/1498765.1498785.

    >>> processor_time(2e9, [4e9, 4e12], 50e9, 1e12).tolist()  # 2 GB at 50 GB/s; 4 TFLOP at 1 TFLOP/s
    [0.04, 4.0]

    Parameters
    ----------
    weights_size : Bytes S of the weights. [B]
    flop : Operations F. [FLOP]
    memory_bandwidth : Bandwidth B of the host's memory. [B/s]
    flop_rate : Rate P of the processors. [FLOP/s]

    Returns
    -------
    time : Time of the products. [s]
    """
    return np.asarray(np.maximum(array(weights_size) / array(memory_bandwidth), array(flop) / array(flop_rate)))


def handover_time(passed_size: Numeric, bandwidth: Numeric, start_time: Numeric) -> Array:
    r"""Time in which activations go to the host and come back: twice their size over the link, and a fixed time.

    .. math:: t = t_0 + \frac{2 S}{B}

    Heuristic, this work.

    >>> float(handover_time(1e6, 50e9, 1e-5))
    5e-05

    Parameters
    ----------
    passed_size : Bytes S of the activations, one way. [B]
    bandwidth : Bandwidth B of the link, one direction. [B/s]
    start_time : Time t_0 in which both sides notice each other. [s]

    Returns
    -------
    time : Time of both ways. [s]
    """
    return np.asarray(array(start_time) + 2.0 * array(passed_size) / array(bandwidth))


def _work_shares(deployment: Deployment) -> tuple[Array, Array, Array]:
    """Shares of the work of routed experts and of other products on host weights, and handovers of a layer, (rows,)."""
    plan, model = deployment.plan, deployment.model
    held, others = plan.host_experts_share, plan.host_weights_share
    rarest = plan.host_experts == HostExperts.RAREST
    work = np.where(rarest, rarest_visits(held, *deployment.popularity), held)
    mixed = model.num_moe_layers / model.num_layers
    # Layers next to each other on the host hand over once; with some experts of each layer there, each layer does.
    handovers = np.maximum(mixed * np.where(rarest & (held > 0.0), 1.0, held), others)
    return work, others, handovers


def with_host_weights(
    deployment: Deployment,
    shape: ServingShape,
    products: ServingGemms,
    gemms: KernelTimes,
    parts: Array,
    phases: tuple[int, ...],
) -> tuple[KernelTimes, Array]:
    """Products that stay on the accelerator, and the time of a layer, (rows, phases), for weights on the host.

    The processors multiply them where they are, or they move over the link and the accelerator multiplies. With
    prefetch they move while it computes; routed experts of a decode step are known only after the router, so their
    move is exposed.
    """
    plan, device, software, number = deployment.plan, deployment.device, deployment.software, len(phases)
    experts, others, handovers = _work_shares(deployment)
    own = len(gemms.names) - gemms.once
    shapes, grouped = products.gemms, products.grouped[: len(gemms.names)][:own]
    share = np.where(grouped, experts[:, None], others[:, None])[:, None]
    calls = share * gemms.calls[..., :own]
    weights = by_phase(shapes.batch * shapes.k * shapes.n * stored_sizes(deployment, products), number)[..., :own]
    flop = by_phase(2.0 * shapes.batch * shapes.m * shapes.n * shapes.k, number)[..., :own]
    # The ranks of an accelerator share its host.
    memory, link, rate = (
        values / software["ranks"]
        for values in (
            software["offload_efficiency"] * device.host_memory_bandwidth,
            device.host_bandwidth,
            device.host_flop_rate,
        )
    )
    tokens = side_by_side(*(shape.of(phase)[0] for phase in phases))
    passed = tokens * (deployment.model.hidden_size * plan.activation_size)[:, None]
    there = total(calls * processor_time(weights, flop, memory[..., None], rate[..., None]))
    there = there + handovers[:, None] * handover_time(passed, link, software["handover_time"])
    moved = total(calls * weights)
    late = np.where(np.array(phases) == PREFILL, 0.0, total(np.where(grouped, calls * weights, 0.0)))
    behind = np.where(plan.host_prefetch[:, None] > 0.0, total(parts[:, :, 0]), 0.0)
    waits = exposed_offload_time(moved - late, link, behind) + late / link
    saved = total(calls * gemms.time[..., :own])
    how = plan.host_compute[:, None]
    faster = (how == HostCompute.FASTER) & (there - saved < waits)
    computes = (how == HostCompute.CPU) | faster
    kept = gemms.calls.copy(order="K")
    kept[..., :own] = kept[..., :own] - np.where(computes[..., None], calls, 0.0)
    return gemms._replace(calls=kept), np.where(computes, there, waits)
