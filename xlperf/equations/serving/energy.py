"""Power of serving from its work: operations of a token, bytes and weights of a decode step, sampling, messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, divide
from xlperf.equations.hardware.memory import resident_share
from xlperf.equations.hardware.power import Machine, WorkRates, accelerator_power, traffic_from_memory
from xlperf.equations.model.experts import Popularity, activated_experts
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.model.parameters import expert_parameters, matrix_parameters
from xlperf.equations.model.serving import SAMPLING_PASSES
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.kernels import wide_attention
from xlperf.equations.serving.phases import logit_size

# Results that add up to a decode step
STEP_PARTS = ("time_matrix", "time_attention", "time_vector", "time_communication", "time_overhead")


class ServedWork(NamedTuple):
    """What accelerators do while they serve: plans and their results."""

    model: Model  # served models, (rows,)
    plan: InferencePlan  # plans as the sheet has them, all accelerators, with the bytes of weights and inputs, (rows,)
    architecture: Architecture  # structure that the models share
    results: Mapping[str, Array]  # rates, times of a decode step, shares of pools, memory, (rows,)
    popularity: Popularity  # how unevenly routers visit experts, (rows,) [-]

    @property
    def step(self) -> Array:
        """Time of a decode step, (rows,). [s]"""
        parts = (self.results[name] for name in STEP_PARTS)
        return np.asarray(sum(parts, 0.0 * self.results["tokens_per_second"]))

    @property
    def busy(self) -> Array:
        """Share of the time in which anything runs, (rows,): below 1 at low rates of arrivals. [-]"""
        running = np.minimum(self.results["running_batch"], 1.0)
        return np.where(np.isnan(self.plan.request_rate), 1.0, running)

    @property
    def sampled(self) -> Array:
        """Bytes that choosing the tokens of a decode step takes, (rows,). [B]"""
        return sampling_traffic(self.model, self.plan, np.maximum(self.results["running_batch"], 1.0))

    @property
    def flop(self) -> Array:
        """Operations of a token that is generated, (rows,). [FLOP]"""
        return token_flop(self.model, self.plan.prompt_length + 0.5 * self.plan.output_length)


def token_flop(model: Model, context: Array) -> Array:
    r"""Operations of one token in a forward pass.

    .. math:: F = 2 N_a + 4 L h d\,s

    References
    ----------
    .. [1] J. Kaplan et al., "Scaling laws for neural language models", 2020, arXiv:2001.08361, table 1.

    Llama 3.1 8B at 1,000 tokens: 2 x 7,504,658,432 + 4 x 32 x 32 x 128 x 1000.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> token_flop(llama, np.array([1000.0])).tolist()
    [15533604864.0]
    """
    attended = 4.0 * model.num_layers * model.num_attention_heads * model.head_size * context
    return np.asarray(2.0 * matrix_parameters(model, True) + attended)


def feed_forward_flop(model: Model) -> Array:
    r"""Operations of one token in the feed-forward layers of a forward pass: what expert pools compute.

    .. math:: F = 2 \left(L_m \left(k\,P_e + P_s\right) + L_d\,P_d\right)

    References
    ----------
    .. [1] J. Kaplan et al., "Scaling laws for neural language models", 2020, arXiv:2001.08361, table 1.

    Llama 3.1 8B: 2 x 32 x 3 x 4096 x 14336.

    >>> llama = Model(*np.array([[32, 4096, 32, 8, 128, 14336, 128256, 1, 0, 0, 1, 0, 0, 0, 0, 0, 32.0]]).T)
    >>> feed_forward_flop(llama).tolist()
    [11274289152.0]
    """
    expert, shared, dense = (
        expert_parameters(width, size, model.gated_mlp)
        for width, size in (
            (model.expert_hidden_size, model.expert_ffn_hidden_size),
            (model.hidden_size, model.shared_ffn_hidden_size),
            (model.hidden_size, model.ffn_hidden_size),
        )
    )
    mixed = model.num_moe_layers * (model.top_k * expert + shared)
    return np.asarray(2.0 * (mixed + model.num_dense_layers * dense))


def visited_share(model: Model, batch: Array, popularity: Popularity) -> Array:
    r"""Share of the routed experts that a decode step reads, expected.

    .. math:: s = \frac{E_{hit}}{E}

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving mixture-of-experts at scale with disaggregated expert parallelism",
       2025, arXiv:2504.02263, section 2.3.
    """
    hit = _read_experts(model, batch, popularity)
    return np.where(model.num_experts > 0.0, divide(hit, model.num_experts), 1.0)


def _read_experts(model: Model, batch: Array, popularity: Popularity) -> Array:
    """Experts whose weights a decode step reads, expected, (rows,). [-]

    Without hot experts, which times have: with them the power of conversations on H100 is predicted 16 % too low,
    without them 7 % (ML.ENERGY, 12 runs of gpt-oss). The runs that hot experts are fitted on are of random tokens and
    print no power.
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
    r"""Bytes that an accelerator reads in a decode step: weights of the experts that are visited, and the cache.

    .. math:: T = W \frac{N_a + (N - N_a) \frac{E_{hit} - k}{E - k}}{N} + C \frac{s_p + s_o / 2}{s_p + s_o}

    Heuristic, this work.
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


def sampling_traffic(model: Model, plan: InferencePlan, running_batch: Array) -> Array:
    r"""Bytes that choosing the tokens of a decode step takes on an accelerator: every rank of a copy chooses all.

    .. math:: T = 2\,b\,V\,s

    Heuristic, this work.
    """
    return np.asarray(
        SAMPLING_PASSES * (running_batch / plan.data_parallel_attention) * (model.vocab_size * logit_size(plan))
    )


def mean_weight_size(model: Model, plan: InferencePlan, architecture: Architecture) -> Array:
    """Bytes of a weight, the mean over those of the plan's precision and attention layers that stay in 16 bits.

    By definition.
    """
    if not architecture.experts and not (plan.wide_attention > 0.0).any():
        return np.asarray(plan.weight_size)
    if architecture.experts:
        expert = expert_parameters(model.expert_hidden_size, model.expert_ffn_hidden_size, model.gated_mlp)
        experts = model.num_moe_layers * (model.num_experts * expert) / matrix_parameters(model, False)
    else:
        dense = expert_parameters(model.hidden_size, model.ffn_hidden_size, model.gated_mlp)
        experts = model.num_layers * dense / matrix_parameters(model, False)
    mixed = plan.activation_size + np.minimum(experts, 1.0) * (plan.weight_size - plan.activation_size)
    return np.where(wide_attention(model, plan, architecture), mixed, plan.weight_size)


def results_at_rate(results: Mapping[str, Array], rate: Array) -> dict[str, Array]:
    """Results of the same work at another token rate: a longer step is time in which the host waits.

    Heuristic, this work.

    Five parts of 1 s; at half the rate a step takes 5 s longer, in which the host waits.

    >>> results = {**dict.fromkeys(STEP_PARTS, np.ones(1)), "tokens_per_second": np.array([100.0])}
    >>> results_at_rate(results, np.array([50.0]))["time_overhead"].tolist()
    [6.0]
    """
    step = sum((results[name] for name in STEP_PARTS), 0.0 * rate)
    waits = results["time_overhead"] + step * (results["tokens_per_second"] / rate - 1.0)
    return {**results, "tokens_per_second": rate, "time_overhead": waits}


def serving_power(machines: tuple[Machine, Machine], work: ServedWork) -> tuple[Array, Array]:
    """Mean power of an accelerator while it decodes and while it prefills, or of the pools that do.

    Heuristic, this work: :func:`accelerator_power` of the work of a decode step, done at the rate of tokens, and of the
    prompts, whose operations bring a byte each ``compute_intensity`` of them.
    """
    model, plan, results, step, busy = work.model, work.plan, work.results, work.step, work.busy
    share, rate, running = results["prefill_share"], results["tokens_per_second"], results["running_batch"]
    each = rate / plan.num_accelerators
    decoding = np.maximum(1.0 - share, 1e-9)
    weights, cache = results["memory_weights"], results["memory_kv_cache"]
    sizes = weights, cache, running, work.popularity
    read, cached = decode_step_traffic(model, plan, work.architecture, *sizes)
    traffic, sampled = read + cached, work.sampled
    held = resident_share(weights + cache, machines[0].device.l2_capacity[:, 0])
    moved = traffic * (1.0 - held) + sampled
    decode = WorkRates(
        np.nan_to_num(each / decoding * work.flop),
        np.nan_to_num(busy * divide(read / mean_weight_size(model, plan, work.architecture), step)),
        np.nan_to_num(busy * divide(traffic + sampled, step)),
        divide(moved, traffic + sampled),
        np.nan_to_num(busy * divide(results["time_communication"], step)),
        busy,
    )
    prompts = each * divide(plan.prompt_length, plan.output_length)
    prompt_rate = np.nan_to_num(divide(prompts * token_flop(model, 0.5 * plan.prompt_length), share))
    read = prompt_rate / machines[1].constants["compute_intensity"][:, 0]
    size, nothing = plan.input_size, 0.0 * rate
    missing = prompt_traffic_from_memory(machines[1], model, plan)
    prefill = WorkRates(prompt_rate, nothing, read, missing, nothing, busy)
    return accelerator_power(*machines[0], size, decode), accelerator_power(*machines[1], size, prefill)


def prompt_traffic_from_memory(machine: Machine, model: Model, plan: InferencePlan) -> Array:
    """:func:`traffic_from_memory` of a prefill: its feed-forward products stand for all. Heuristic, this work."""
    width = np.where(model.ffn_hidden_size > 0.0, model.ffn_hidden_size, model.hidden_size) / plan.tensor_parallel
    return traffic_from_memory(machine.device, width, model.hidden_size, plan.prompt_length, plan.input_size)


def expert_pool_power(
    machines: tuple[Machine, Machine], work: ServedWork, counts: tuple[Array, Array]
) -> tuple[Array, Array]:
    """As :func:`serving_power`, of an accelerator of the attention pool and of the expert pool while they decode.

    Heuristic, this work: every micro-batch reads the weights of its pool; a pool is busy for its share of a step.
    """
    model, plan, results, step, loaded = work.model, work.plan, work.results, work.step, work.busy
    rate, running = results["tokens_per_second"], results["running_batch"]
    fed = feed_forward_flop(model)
    flop = work.flop - fed, fed
    batches = np.minimum(plan.ping_pong_batches, np.maximum(np.ceil(running), 1.0))
    experts = batches * results["expert_memory"] * visited_share(model, running / batches, work.popularity)
    weights, none = (batches * results["memory_weights"], experts), 0.0 * rate
    sizes_held = none, results["memory_kv_cache"], running, work.popularity
    _, cache = decode_step_traffic(model, plan, work.architecture, *sizes_held)
    others = cache + work.sampled, none
    wide = wide_attention(model, plan, work.architecture)
    sizes = np.where(wide, plan.activation_size, plan.weight_size), plan.weight_size
    sending = loaded * results["expert_link_share"]
    found = []
    for pool, name in enumerate(("attention_pool_share", "expert_pool_share")):
        rates = WorkRates(
            np.nan_to_num(divide(rate * flop[pool], counts[pool])),
            np.nan_to_num(loaded * divide(weights[pool] / sizes[pool], step)),
            np.nan_to_num(loaded * divide(weights[pool] + others[pool], step)),
            np.ones_like(rate),
            np.nan_to_num(sending),
            np.nan_to_num(loaded * np.minimum(results[name], 1.0)),
        )
        found.append(accelerator_power(*machines[pool], plan.input_size, rates))
    return found[0], found[1]
