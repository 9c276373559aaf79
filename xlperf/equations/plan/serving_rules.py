"""Rules that make an inference plan legal, as data, and what a reader of a legal one should know."""

from __future__ import annotations

import numpy as np

from xlperf.equations.plan.records import Mode, OffloadTarget, Rule
from xlperf.equations.plan.serving_plan import POOL_DEGREES, InferencePlan, LayerPart


def _fraction(values: np.ndarray) -> np.ndarray:
    return np.asarray(values != np.floor(values))


def _of_pools(name: str) -> Rule[InferencePlan]:
    """A column of the prefill or the expert pool, which only separate pools have."""

    def given(plan: InferencePlan) -> np.ndarray:
        if name.endswith(("_accelerator", "_network")):
            return np.asarray(plan.words(name) != "")
        return np.asarray(~np.isnan(getattr(plan, name)))

    return Rule(
        lambda plan, model: given(plan) & (plan.mode != Mode.DISAGGREGATED),
        f"{name.replace('_', ' ')} needs mode disaggregated",
        name,
    )


def _with_experts(name: str) -> Rule[InferencePlan]:
    """A column that says something of an expert pool only."""

    def given(plan: InferencePlan) -> np.ndarray:
        stated = ~np.isnan(plan.expert_bandwidth) if name == "expert_bandwidth" else plan.words(name) != ""
        return np.asarray(stated & np.isnan(plan.expert_accelerators))

    return Rule(lambda plan, model: given(plan), f"{name.replace('_', ' ')} needs expert accelerators", name)


def _whole(name: str) -> Rule[InferencePlan]:
    words = name.replace("_", " ")
    return Rule(lambda plan, model: _fraction(getattr(plan, name)), f"{words} must be a whole number, is {{{name}}}")


MODE_RULES: tuple[Rule[InferencePlan], ...] = (
    *map(_of_pools, ("prefill_accelerator", "prefill_accelerators", "prefill_network", "transfer_bandwidth")),
    *(_of_pools(f"prefill_{name}") for name in POOL_DEGREES),
    *map(_of_pools, ("expert_accelerator", "expert_accelerators", "expert_network", "expert_bandwidth")),
    *map(_with_experts, ("expert_accelerator", "expert_network", "expert_bandwidth")),
    Rule(
        lambda plan, model: (plan.prompt_variation > 0.0) & (plan.mode == Mode.STATIC),
        "prompt variation needs mode continuous or disaggregated",
    ),
    Rule(
        lambda plan, model: (plan.output_variation > 0.0) & (plan.mode == Mode.STATIC),
        "output variation needs mode continuous or disaggregated",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.run_requests) & (plan.mode == Mode.STATIC),
        "run requests needs mode continuous or disaggregated",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.max_running_batch) & (plan.mode == Mode.STATIC),
        "max running batch needs mode continuous or disaggregated: a static batch runs whole",
    ),
    Rule(
        lambda plan, model: (plan.polling_steps != 1.0) & (plan.mode != Mode.CONTINUOUS),
        "polling steps needs mode continuous",
    ),
    Rule(
        lambda plan, model: (plan.gathering_steps != 0.0) & (plan.mode != Mode.CONTINUOUS),
        "gathering steps needs mode continuous",
    ),
    Rule(
        lambda plan, model: (plan.prefill_first > 0.0) & (plan.mode != Mode.CONTINUOUS),
        "prefill first needs mode continuous",
    ),
    Rule(
        lambda plan, model: (plan.prefill_first > 0.0) & np.isnan(plan.run_requests) & (plan.mode == Mode.CONTINUOUS),
        "prefill first says something of a run only; set run requests",
    ),
    Rule(
        lambda plan, model: (plan.arrival_variation != 1.0) & np.isnan(plan.request_rate),
        "arrival variation needs a request rate: a constant number in flight has no arrivals of its own",
    ),
)
"""Columns that have a meaning in some modes only; of plans as the sheet has them."""

POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: (plan.decode_pool_size < 1.0) | (plan.prefill_pool_size < 1.0),
        "{num_accelerators} accelerators cannot be divided into a prefill pool and a decoding pool; "
        "set prefill accelerators",
    ),
    Rule(
        lambda plan, model: _with_pool(plan) & (plan.pipeline_parallel > 1.0),
        "expert accelerators and pipeline parallel {pipeline_parallel}: micro-batches of an expert pool pass all layers"
        " of one stage; use 1",
        "expert_accelerators",
    ),
    Rule(
        lambda plan, model: _with_pool(plan) & (plan.two_batch_overlap > 0.0),
        "two batch overlap beside expert accelerators: ping pong batches overlap already",
        "expert_accelerators",
    ),
    Rule(
        lambda plan, model: _with_pool(plan) & plan.sent_to_nodes,
        "expert dispatch nodes is not modelled with expert accelerators; use ranks",
        "expert_accelerators",
    ),
)
"""Of plans with separate pools, the sizes of their pools given."""


def _with_pool(plan: InferencePlan) -> np.ndarray:
    return np.asarray(~np.isnan(plan.expert_accelerators))


def _feeds(plan: InferencePlan) -> np.ndarray:
    """Where a pool computes the feed-forward layers."""
    own = plan.computes(LayerPart.EXPERTS)
    return np.ones(1, dtype=bool) if own is None else np.asarray(own > 0.0)


_EXPERTS_DIVIDE = Rule[InferencePlan](
    lambda plan, model: (model.num_experts > 0.0) & (plan.expert_parallel > model.num_experts + plan.redundant_experts),
    "expert parallel {expert_parallel} is more than the {model.num_experts} experts and their copies; set redundant"
    " experts",
)
_EXPERT_WIDTH = Rule[InferencePlan](
    lambda plan, model: (
        _feeds(plan) & (model.num_experts > 0.0) & _fraction(model.expert_ffn_hidden_size / plan.expert_tensor_parallel)
    ),
    "{expert_tensor_parallel} ranks that share an expert do not divide its width {model.expert_ffn_hidden_size}",
)
_DENSE_WIDTH = Rule[InferencePlan](
    lambda plan, model: (
        _feeds(plan) & (model.num_dense_layers > 0.0) & _fraction(model.ffn_hidden_size / plan.attention_parallel)
    ),
    "tensor parallel {attention_parallel} does not divide the feed-forward width {model.ffn_hidden_size}",
)
_EXPERT_PARALLEL = Rule[InferencePlan](
    lambda plan, model: (plan.expert_parallel > 1.0) & (model.num_experts == 0.0),
    "expert parallel {expert_parallel} needs a mixture of experts; use 1",
)

EXPERT_POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    _EXPERT_PARALLEL,
    Rule(
        lambda plan, model: _fraction(plan.tensor_parallel),
        "the replicas of attention do not divide its {num_accelerators} accelerators",
    ),
    Rule(
        lambda plan, model: _fraction(plan.expert_tensor_parallel),
        "expert parallel {expert_parallel} does not divide the {tensor_parallel} ranks of a replica",
    ),
    _EXPERTS_DIVIDE,
    _EXPERT_WIDTH,
    _DENSE_WIDTH,
)
"""Of expert pools, the ranks of a replica as its tensor parallel degree."""

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

SERVING_RULES: tuple[Rule[InferencePlan], ...] = (
    *map(
        _whole,
        (
            "num_accelerators",
            "tensor_parallel",
            "pipeline_parallel",
            "prompt_length",
            "output_length",
            "batch_size",
            "concurrency",
            "expert_parallel",
            "redundant_experts",
            "data_parallel_attention",
            "context_parallel",
        ),
    ),
    Rule(
        lambda plan, model: (model.num_linear_layers > 0.0) & (plan.context_parallel > 1.0),
        "context parallel {context_parallel} is not modelled for layers of linear attention; use 1",
    ),
    Rule(
        lambda plan, model: (model.num_selected_layers > 0.0) & (plan.context_parallel > 1.0),
        "context parallel {context_parallel} is not modelled for sparse attention; use 1",
    ),
    Rule(
        lambda plan, model: (
            (model.num_linear_layers > 0.0) & _fraction(model.linear_key_heads / plan.attention_parallel)
        ),
        "tensor parallel {attention_parallel} does not divide the {model.linear_key_heads} key heads of linear "
        "attention",
    ),
    Rule(
        lambda plan, model: (
            (model.num_linear_layers > 0.0) & _fraction(model.linear_value_heads / plan.attention_parallel)
        ),
        "tensor parallel {attention_parallel} does not divide the {model.linear_value_heads} value heads of linear "
        "attention",
    ),
    Rule(
        lambda plan, model: _fraction(plan.num_replicas) & (plan.context_parallel == 1.0),
        "tensor {tensor_parallel} x pipeline {pipeline_parallel} parallel is {replica_ranks} ranks, which do not "
        "divide the {num_accelerators} accelerators of the plan",
    ),
    Rule(
        lambda plan, model: _fraction(plan.num_replicas) & (plan.context_parallel != 1.0),
        "tensor {tensor_parallel} x context {context_parallel} x pipeline {pipeline_parallel} parallel is "
        "{replica_ranks} ranks, which do not divide the {num_accelerators} accelerators of the plan",
    ),
    Rule(
        lambda plan, model: 2.0 * plan.context_parallel > np.maximum(plan.prompt_length, 2.0),
        "context parallel {context_parallel} needs two tokens of the prompt on each rank, the prompt has "
        "{prompt_length}",
    ),
    Rule(
        lambda plan, model: _fraction(plan.attention_parallel),
        "data parallel attention {data_parallel_attention} does not divide tensor parallel {tensor_parallel}",
    ),
    _EXPERT_PARALLEL,
    Rule(
        lambda plan, model: (
            (plan.two_batch_overlap > 0.0) & ((model.num_experts == 0.0) | (plan.data_parallel_attention == 1.0))
        ),
        "two batch overlap needs a mixture of experts and data parallel attention above 1: else no token is sent",
    ),
    Rule(
        lambda plan, model: plan.sent_to_nodes & ((model.num_experts == 0.0) | (plan.data_parallel_attention == 1.0)),
        "expert dispatch nodes needs a mixture of experts and data parallel attention above 1: else no token is sent",
    ),
    Rule(
        lambda plan, model: _fraction(plan.expert_tensor_parallel),
        "expert parallel {expert_parallel} does not divide tensor parallel {tensor_parallel}",
    ),
    _EXPERTS_DIVIDE,
    Rule(
        lambda plan, model: ~np.isnan(plan.max_running_batch) & _fraction(plan.max_running_batch),
        "max running batch must be a whole number, is {max_running_batch}",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.state_slots) & _fraction(plan.state_slots),
        "state slots must be a whole number, is {state_slots}",
    ),
    Rule(
        lambda plan, model: ~np.isnan(plan.graph_tokens) & _fraction(plan.graph_tokens),
        "graph tokens must be a whole number, is {graph_tokens}",
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
    _EXPERT_WIDTH,
    Rule(
        lambda plan, model: _fraction(model.num_attention_heads / plan.attention_parallel),
        "tensor parallel {attention_parallel} does not divide the {model.num_attention_heads} attention heads",
    ),
    Rule(
        lambda plan, model: (
            (model.latent_attention == 0.0)
            & (model.shared_key_value == 0.0)
            & _fraction(model.num_query_groups / plan.attention_parallel)
            & _fraction(plan.attention_parallel / model.num_query_groups)
        ),
        "tensor parallel {attention_parallel} and the {model.num_query_groups} key and value heads do not divide one "
        "another",
    ),
    _DENSE_WIDTH,
    Rule(
        lambda plan, model: plan.pipeline_parallel > model.num_layers,
        "pipeline parallel {pipeline_parallel} needs more layers than the model's {model.num_layers}",
    ),
    Rule(
        lambda plan, model: ~_fraction(plan.num_replicas) & (plan.requests_of_fullest != plan.batch_size),
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
"""Of plans with their results: with as many requests the queue grows without end."""

WARNINGS: tuple[Rule[InferencePlan], ...] = (
    Rule(
        lambda plan, model: plan.context_length > plan.max_sequence_length,
        "prompt and output are {context_length} tokens, beyond the model's longest context of {max_sequence_length}",
    ),
    Rule(lambda plan, model: plan.output_length == 1.0, "one output token: there is no tpot"),
)
"""What a reader of a legal plan should know; of plans with the longest context of their models."""
