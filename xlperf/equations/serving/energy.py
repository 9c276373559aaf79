"""Power of serving: FLOP per token, traffic of decode steps and sampling, communication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide, finite
from xlperf.equations.hardware.power import Machine, WorkRates, accelerator_power, traffic_from_memory
from xlperf.equations.hardware.roofline import resident_share
from xlperf.equations.model.blocks import EXPERTS, MLP, SHARED_EXPERT, weights
from xlperf.equations.model.model import Architecture, Model, Popularity, activated_experts
from xlperf.equations.model.operators import SAMPLING_PASSES, matrix_parameters, whole_model
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.kernels import wide_attention
from xlperf.equations.serving.phases import logit_size

# Result columns that add up to a decode step
STEP_PARTS = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")


class ServedWork(NamedTuple):
    """Served plans with their results, (rows,)."""

    model: Model
    plan: InferencePlan  # of all accelerators, with the bytes of weights and inputs
    architecture: Architecture  # common structure of the models
    results: Mapping[str, Array]  # rates, parts of a decode step, shares of pools, memory
    popularity: Popularity  # routing imbalance over experts [-]

    @property
    def step(self) -> Array:
        """Time of a decode step. [s]"""
        parts = (self.results[name] for name in STEP_PARTS)
        return np.asarray(sum(parts, 0.0 * self.results["tokens_per_second"]))

    @property
    def busy(self) -> Array:
        """Fraction of the time with running requests, below 1 at low arrival rates. [-]"""
        running = np.minimum(self.results["running_batch"], 1.0)
        return np.where(np.isnan(self.plan.request_rate), 1.0, running)

    @property
    def sampled(self) -> Array:
        """Traffic of sampling the tokens of a decode step, on each accelerator. [B] Heuristic, this work."""
        tokens = np.maximum(self.results["running_batch"], 1.0) / self.plan.data_parallel_attention
        return np.asarray(SAMPLING_PASSES * tokens * (self.model.vocab_size * logit_size(self.plan)))

    @property
    def flop(self) -> Array:
        """FLOP per generated token. [FLOP]"""
        return token_flop(self.model, self.plan.prompt_length + 0.5 * self.plan.output_length)


def token_flop(model: Model, context: Array) -> Array:
    r"""FLOP of one token in a forward pass: N_a active matmul parameters, L layers of h heads of size d, context s.

    .. math:: F = 2 N_a + 4 L h d\,s

    Llama 3.1 8B at 1,000 tokens: 2 x 7,504,658,432 + 4 x 32 x 32 x 128 x 1000. Source: J. Kaplan et al., "Scaling laws
    for neural language models", 2020, arXiv:2001.08361, table 1.

    >>> from ideal_machine import LLAMA as llama
    >>> token_flop(llama, np.array([1000.0])).tolist()
    [15533604864.0]
    """
    attention = 4.0 * model.num_layers * model.num_attention_heads * model.head_size * context
    return np.asarray(2.0 * matrix_parameters(model, True) + attention)


def feed_forward_flop(model: Model) -> Array:
    r"""FLOP of one token in the feed-forward layers, which expert pools compute.

    .. math:: F = 2 \left(L_m \left(k\,P_e + P_s\right) + L_d\,P_d\right)

    L_m layers have experts of P_e parameters (k active) and shared experts of P_s; L_d layers have an MLP of P_d.
    Source: J. Kaplan et al., "Scaling laws for neural language models", 2020, arXiv:2001.08361, table 1.
    """
    shard = whole_model(model)
    expert, shared, dense = (weights(block, shard) for block in (EXPERTS, SHARED_EXPERT, MLP))
    mixed = model.num_moe_layers * (model.top_k * expert + shared)
    return np.asarray(2.0 * (mixed + model.num_dense_layers * dense))


def _read_experts(model: Model, batch: Array, popularity: Popularity) -> Array:
    """Expected number of experts whose weights a decode step reads, (rows,). [-] Power omits the hot experts of the
    step times. With them, the power of conversations on H100 is 16 % too low, without them 7 % (ML.ENERGY, 12 runs of
    gpt-oss); the runs that fit hot experts use random tokens and no power.
    """
    spread = popularity._replace(hot_share=0.0 * popularity.hot_share)
    return activated_experts(model.num_experts, model.top_k, np.maximum(batch, 1.0), spread)


def decode_step_traffic(
    model: Model,
    plan: InferencePlan,
    architecture: Architecture,
    weights_size: Array,
    cache_size: Array,
    running_batch: Array,
    popularity: Popularity,
) -> tuple[Array, Array]:
    r"""Bytes of weights and of KV cache that an accelerator reads in a decode step.

    .. math:: T = W \frac{N_a + (N - N_a) \frac{E_{hit} - k}{E - k}}{N} + C \frac{s_p + s_o / 2}{s_p + s_o}

    Weights W count the active parameters N_a of N and the experts hit beyond top-k; cache C holds prompt s_p and output
    s_o. Heuristic, this work.
    """
    mean = divide(plan.prompt_length + 0.5 * plan.output_length, plan.prompt_length + plan.output_length)
    read = weights_size
    if architecture.experts:
        whole, active = matrix_parameters(model, False), matrix_parameters(model, True)
        hit = _read_experts(model, running_batch, popularity)
        share = np.clip(divide(hit - model.top_k, model.num_experts - model.top_k), 0.0, 1.0)
        share = np.where(model.num_experts > 0.0, share, 1.0)
        read = weights_size * (active + (whole - active) * share) / whole
    return np.asarray(read), np.asarray(cache_size * mean)


def mean_weight_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Mean bytes of a weight, over weights in the plan's precision and attention layers in 16 bits. By definition."""
    own = plan.part_sizes("attention")
    if not architecture.experts and own is None and not (plan.wide_attention > 0.0).any():
        return np.asarray(plan.weight_size)
    if architecture.experts:
        expert = weights(EXPERTS, whole_model(model))
        experts = model.num_moe_layers * (model.num_experts * expert) / matrix_parameters(model, False)
    else:
        experts = model.num_layers * weights(MLP, whole_model(model)) / matrix_parameters(model, False)
    mixed = plan.activation_size + np.minimum(experts, 1.0) * (plan.weight_size - plan.activation_size)
    mean = np.where(wide_attention(model, plan, architecture), mixed, plan.weight_size)
    if own is None:
        return mean
    return np.where(np.isnan(own[0]), mean, own[0] + np.minimum(experts, 1.0) * (plan.weight_size - own[0]))


def results_at_rate(results: Mapping[str, Array], rate: Array) -> dict[str, Array]:
    """Results of the same work at a lower token rate: the difference is host time in each step (heuristic, this work).

    Five parts of 1 s; at half the rate a step takes 5 s longer.

    >>> results = {**dict.fromkeys(STEP_PARTS, np.ones(1)), "tokens_per_second": np.array([100.0])}
    >>> results_at_rate(results, np.array([50.0]))["time_overhead"].tolist()
    [6.0]
    """
    step = sum((results[name] for name in STEP_PARTS), 0.0 * rate)
    waits = results["time_overhead"] + step * (results["tokens_per_second"] / rate - 1.0)
    return {**results, "tokens_per_second": rate, "time_overhead": waits}


def serving_power(machines: tuple[Machine, Machine], work: ServedWork) -> tuple[Array, Array]:
    """Mean power of an accelerator while it decodes and while it prefills, or of each pool. [W]
    :func:`accelerator_power` of a decode step's work at the token rate, and of prompts, which read one byte per
    ``compute_intensity`` FLOP. Heuristic, this work.
    """
    model, plan, results, step, busy = work.model, work.plan, work.results, work.step, work.busy
    share, rate, running = results["prefill_share"], results["tokens_per_second"], results["running_batch"]
    token_rate = rate / plan.num_accelerators
    decoding = np.maximum(1.0 - share, 1e-9)
    # Decoding: FLOP at the token rate; traffic of a step, of which the last-level cache serves a part.
    weights, cache = results["memory_weights"], results["memory_kv_cache"]
    read, cached = decode_step_traffic(model, plan, work.architecture, weights, cache, running, work.popularity)
    traffic, sampled = read + cached, work.sampled
    resident = resident_share(weights + cache, machines[0].device.l2_capacity[:, 0])
    from_memory = traffic * (1.0 - resident) + sampled
    decode = WorkRates(
        finite(token_rate / decoding * work.flop),
        finite(busy * divide(read / mean_weight_size(model, plan, work.architecture), step)),
        finite(busy * divide(traffic + sampled, step)),
        divide(from_memory, traffic + sampled),
        finite(busy * divide(results["time_communication"], step)),
        busy,
    )
    # Prefill: FLOP of the prompts; the share of traffic from memory is that of the feed-forward GEMM.
    prompts = token_rate * divide(plan.prompt_length, plan.output_length)
    prompt_rate = finite(divide(prompts * token_flop(model, 0.5 * plan.prompt_length), share))
    read = prompt_rate / machines[1].constants["compute_intensity"][:, 0]
    size, zeros = plan.input_size, 0.0 * rate
    width = np.where(model.ffn_hidden_size > 0.0, model.ffn_hidden_size, model.hidden_size) / plan.tensor_parallel
    missing = traffic_from_memory(machines[1].device, width, model.hidden_size, plan.prompt_length, size)
    prefill = WorkRates(prompt_rate, zeros, read, missing, zeros, busy)
    return accelerator_power(*machines[0], size, decode), accelerator_power(*machines[1], size, prefill)


def expert_pool_power(
    machines: tuple[Machine, Machine], work: ServedWork, counts: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Power of an accelerator of the attention and of the expert pool that decode, as :func:`serving_power`."""
    model, plan, results, step, loaded = work.model, work.plan, work.results, work.step, work.busy
    rate, running = results["tokens_per_second"], results["running_batch"]
    feed_forward, zeros = feed_forward_flop(model), 0.0 * rate
    flop = work.flop - feed_forward, feed_forward
    # Bytes of a step: weights of both pools; cache and sampling in the attention pool.
    batches = np.minimum(plan.ping_pong_batches, np.maximum(np.ceil(running), 1.0))
    # routed experts that a decode step reads (arXiv:2504.02263, section 2.3)
    hit = _read_experts(model, running / batches, work.popularity)
    visited = np.where(model.num_experts > 0.0, divide(hit, model.num_experts), 1.0)
    experts = batches * results["expert_memory"] * visited
    weights, cached = (batches * results["memory_weights"], experts), results["memory_kv_cache"]
    _, cache = decode_step_traffic(model, plan, work.architecture, zeros, cached, running, work.popularity)
    further = cache + work.sampled, zeros
    wide = wide_attention(model, plan, work.architecture)
    sizes = np.where(wide, plan.activation_size, plan.weight_size), plan.weight_size
    # Rates of each pool: FLOP, weights and traffic a second; shares of the time with messages and with kernels.
    sending = loaded * results["expert_link_share"]
    powers = []
    for pool, name in enumerate(("attention_pool_share", "expert_pool_share")):
        rates = WorkRates(
            finite(divide(rate * flop[pool], counts[pool])),
            finite(loaded * divide(weights[pool] / sizes[pool], step)),
            finite(loaded * divide(weights[pool] + further[pool], step)),
            np.ones_like(rate),
            finite(sending),
            finite(loaded * np.minimum(results[name], 1.0)),
        )
        powers.append(accelerator_power(*machines[pool], plan.input_size, rates))
    return powers[0], powers[1]
