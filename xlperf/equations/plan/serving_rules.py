"""Rules of legality of inference plans, as data, and warnings about legal ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.equations.model.model import Model
from xlperf.equations.plan.dimensions import (
    DENSE_WIDTH,
    EXPERT_WIDTH,
    EXPERTS_DIVIDE,
    EXPERTS_NEEDED,
    POOL_DEGREES,
    REPLICA,
    SERVING_DIMENSIONS,
    fraction,
    product_of_words,
    whole_number,
)
from xlperf.equations.plan.records import Mode, OffloadTarget, Rule
from xlperf.equations.plan.serving_plan import InferencePlan

_TEXTS = ("_accelerator", "_network")  # columns of words end so


def _stated(plan: InferencePlan, name: str) -> np.ndarray:
    return plan.words(name) != "" if name.endswith(_TEXTS) else np.asarray(~np.isnan(getattr(plan, name)))


def _of_pools(name: str) -> Rule[InferencePlan]:
    """The rule that only separate pools have a column."""
    return Rule(
        lambda plan, model: _stated(plan, name) & (plan.mode != Mode.DISAGGREGATED),
        f"{name.replace('_', ' ')} needs mode disaggregated",
        name,
    )


def _with_experts(name: str) -> Rule[InferencePlan]:
    """The rule that only plans with an expert pool have a column."""
    return Rule(
        lambda plan, model: _stated(plan, name) & np.isnan(plan.expert_accelerators),
        f"{name.replace('_', ' ')} needs expert accelerators",
        name,
    )


def _with_pool(broken: Callable[[InferencePlan], np.ndarray], reason: str) -> Rule[InferencePlan]:
    """A rule of plans with an expert pool."""
    return Rule(lambda plan, model: ~np.isnan(plan.expert_accelerators) & broken(plan), reason, "expert_accelerators")


def _in_mode(
    words: str, broken: Callable[[InferencePlan], np.ndarray], modes: str = "mode continuous or disaggregated"
) -> Rule[InferencePlan]:
    """The rule that a setting needs a mode other than static, or the mode continuous alone."""
    if modes == "mode continuous":
        return Rule(lambda plan, model: broken(plan) & (plan.mode != Mode.CONTINUOUS), f"{words} needs {modes}")
    return Rule(lambda plan, model: broken(plan) & (plan.mode == Mode.STATIC), f"{words} needs {modes}")


MODE_RULES: tuple[Rule[InferencePlan], ...] = (
    *map(_of_pools, ("prefill_accelerator", "prefill_accelerators", "prefill_network", "transfer_bandwidth")),
    *(_of_pools(f"prefill_{name}") for name in POOL_DEGREES),
    *map(_of_pools, ("expert_accelerator", "expert_accelerators", "expert_network", "expert_bandwidth")),
    *map(_with_experts, ("expert_accelerator", "expert_network", "expert_bandwidth")),
    _in_mode("prompt variation", lambda plan: plan.prompt_variation > 0.0),
    _in_mode("output variation", lambda plan: plan.output_variation > 0.0),
    _in_mode("run requests", lambda plan: ~np.isnan(plan.run_requests)),
    _in_mode(
        "max running batch",
        lambda plan: ~np.isnan(plan.max_running_batch),
        "mode continuous or disaggregated: a static batch runs whole",
    ),
    _in_mode("polling steps", lambda plan: plan.polling_steps != 1.0, "mode continuous"),
    _in_mode("gathering steps", lambda plan: plan.gathering_steps != 0.0, "mode continuous"),
    _in_mode("prefill first", lambda plan: plan.prefill_first > 0.0, "mode continuous"),
    Rule(
        lambda plan, model: (plan.prefill_first > 0.0) & np.isnan(plan.run_requests) & (plan.mode == Mode.CONTINUOUS),
        "prefill first applies to a run only; set run requests",
    ),
    Rule(
        lambda plan, model: (plan.arrival_variation != 1.0) & np.isnan(plan.request_rate),
        "arrival variation needs a request rate: a constant number in flight has no arrivals of its own",
    ),
)
"""Columns of some modes only; of plans as the sheet has them."""

POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: (plan.decode_pool_size < 1.0) | (plan.prefill_pool_size < 1.0),
        "{num_accelerators} accelerators cannot be divided into a prefill pool and a decoding pool; "
        "set prefill accelerators",
    ),
    _with_pool(
        lambda plan: plan.pipeline_parallel > 1.0,
        "expert accelerators and pipeline parallel {pipeline_parallel}: micro-batches of an expert pool pass all layers"
        " of one stage; use 1",
    ),
    _with_pool(
        lambda plan: plan.two_batch_overlap > 0.0,
        "two batch overlap beside expert accelerators: ping pong batches overlap already",
    ),
    _with_pool(
        lambda plan: plan.sent_to_nodes,
        "expert dispatch nodes is not modelled with expert accelerators; use ranks",
    ),
)
"""Of plans with separate pools of known sizes."""

EXPERT_POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    EXPERTS_NEEDED,
    Rule(
        lambda plan, model: fraction(plan.tensor_parallel),
        "the replicas of attention do not divide its {num_accelerators} accelerators",
    ),
    Rule(
        lambda plan, model: fraction(plan.expert_tensor_parallel),
        "expert parallel {expert_parallel} does not divide the {tensor_parallel} ranks of a replica",
    ),
    EXPERTS_DIVIDE,
    EXPERT_WIDTH,
    DENSE_WIDTH,
)
"""Of expert pools, whose tensor parallel degree is the ranks of a replica."""

REQUEST_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: ~np.isnan(plan.request_rate) & (plan.mode == Mode.STATIC),
        'request rate {request_rate} needs mode continuous or disaggregated, not "static"; '
        "or give a batch size or concurrency",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.request_rate) & ~(np.isnan(plan.batch_size) & np.isnan(plan.concurrency)),
        "request rate {request_rate} beside a batch size or concurrency: give one of them",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.activation_precision) & ~plan.multiplies,
        "activation precision {product_precision} does not go with weights in {weight_precision}; "
        "use {product_precisions}",
        "activation_precision",
    ),
)
"""Load and precisions; of plans as the sheet has them."""

_WHOLE = ("num_accelerators", "prompt_length", "output_length", "batch_size", "concurrency", "redundant_experts",
          "max_running_batch", "state_slots", "graph_tokens")  # fmt: skip


def _sends_no_token(plan: InferencePlan, model: Model) -> np.ndarray:
    """No token is sent to experts: the model has none, or all ranks hold the same tokens."""
    return np.asarray((model.num_experts == 0.0) | (plan.data_parallel_attention == 1.0))


SERVING_RULES: tuple[Rule[InferencePlan], ...] = (
    *map(whole_number, (*_WHOLE, *POOL_DEGREES)),
    Rule(
        lambda plan, model: fraction(plan.num_replicas),
        f"{product_of_words(REPLICA)} is {{replica_ranks}} ranks, which do not divide the {{num_accelerators}}"
        " accelerators of the plan",
    ),
    *(rule for dimension in SERVING_DIMENSIONS for rule in dimension.rules),
    Rule(
        lambda plan, model: (plan.two_batch_overlap > 0.0) & _sends_no_token(plan, model),
        "two batch overlap needs a mixture of experts and data parallel attention above 1: else no token is sent",
    ),
    Rule(
        lambda plan, model: plan.sent_to_nodes & _sends_no_token(plan, model),
        "expert dispatch nodes needs a mixture of experts and data parallel attention above 1: else no token is sent",
    ),
    Rule(
        lambda plan, model: (plan.graph_tokens > 0.0) & (plan.graphs == 0.0),
        "graph tokens {graph_tokens} beside graphs no: the host launches every kernel; leave one of them blank",
    ),
    Rule(
        lambda plan, model: (plan.offload_target == OffloadTarget.DRIVE) & (plan.kv_offload <= 0.0),
        "offload target drive needs a share of the cache to offload: set kv offload",
        "offload_target",
    ),
    Rule(
        lambda plan, model: (plan.redundant_experts > 0.0) & (model.num_experts == 0.0),
        "redundant experts {redundant_experts} need a mixture of experts; use 0",
        "redundant_experts",
    ),
    Rule(
        lambda plan, model: ~fraction(plan.num_replicas) & (plan.requests_of_fullest != plan.batch_size),
        "batch size {batch_size} does not agree with concurrency {concurrency} on {num_replicas} replicas; give one of "
        "the two",
    ),
)
"""Degrees, lengths and batch; of a pool or of all replicas, defaults filled in."""

CAPACITY_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: np.isinf(plan.ttft),
        "request rate {request_rate} is more than the deployment can serve: at most {max_request_rate} requests/s",
    ),
    Rule(
        lambda plan, model: np.isinf(plan.ttft) & (plan.max_batch_size < 1.0),
        "the memory has no room for one request: that rate is of one at a time; evaluate a concurrency to see what is "
        "needed",
    ),
)
"""Of plans with their results: at such a request rate the queue grows without end."""

WARNINGS: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: plan.context_length > plan.max_sequence_length,
        "prompt and output are {context_length} tokens, beyond the model's longest context of {max_sequence_length}",
    ),
    Rule(lambda plan, model: plan.output_length == 1.0, "one output token: there is no tpot"),
)
"""Remarks on legal plans; of plans with the longest context of their models."""
