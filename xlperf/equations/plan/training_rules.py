"""Rules of legality of training plans, as data: where a plan breaks each, and the reason."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array
from xlperf.equations.model.model import Model
from xlperf.equations.plan.records import (
    ContextMethod,
    OffloadTarget,
    PipelineSchedule,
    QuantizedCopies,
    Recompute,
    Rule,
)
from xlperf.equations.plan.training_plan import (
    DIMENSIONS,
    FP32_SIZE,
    NO_MODULES,
    PLACEHOLDERS,
    RECOMPUTE_MODULES,
    TrainingPlan,
)

_WHOLE = (
    "num_accelerators",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
)

_WHOLE_DEFAULT = {"virtual_pipeline", "context_parallel", "expert_parallel", "expert_tensor_parallel"}
"""Those whose default is 1 whatever the rest of the plan says."""


def _fraction(values: Array) -> np.ndarray:
    return np.asarray(values != np.floor(values))


def _experts(model: Model) -> np.ndarray:
    return np.asarray(model.num_experts > 0)


def _whole_number(name: str) -> Rule[TrainingPlan]:
    words = name.replace("_", " ")
    reason = f"{words} must be a whole number, is {{{name}}}"
    return Rule(lambda plan, _: _fraction(getattr(plan, name)), reason, name if name in _WHOLE_DEFAULT else "")


def _lacking_layers(plan: TrainingPlan, model: Model) -> np.ndarray:
    """Where the stages whose layers are not given have fewer than one for each chunk, or none take what is left."""
    rest = model.num_layers - plan.given_layers
    lacking = np.where(plan.open_stages > 0, rest < plan.open_stages * plan.virtual_pipeline, rest != 0)
    return np.asarray(plan.ends_given & (plan.pipeline_parallel >= 2) & lacking)


def _lacking_remainder(plan: TrainingPlan) -> np.ndarray:
    """Where the optimizer keeps 16 bits of weights that have no other 16 bits beside them."""
    split = (plan.master_size > 0.0) & (plan.master_size < FP32_SIZE)
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY)
    return np.asarray(split & (primary | (plan.element_size >= FP32_SIZE)))


TRAINING_RULES: tuple[Rule[TrainingPlan], ...] = (
    Rule(
        lambda plan, _: (plan.words("dimension_order") != "") & plan.misnamed_order,
        f"dimension order {{words.dimension_order}} must name {', '.join(DIMENSIONS)} once each, joined by hyphens",
        "dimension_order",
    ),
    Rule(
        lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.INTERLEAVED) & (plan.virtual_pipeline < 2),
        "an interleaved schedule needs virtual pipeline of 2 or more, is {virtual_pipeline}",
        "pipeline_schedule",
    ),
    *map(_whole_number, _WHOLE),
    Rule(
        lambda plan, _: plan.ranks != plan.num_accelerators,
        "tensor {tensor_parallel} x context {context_parallel} x pipeline {pipeline_parallel} x data {data_parallel}"
        " parallel is {ranks} ranks, not the {num_accelerators} accelerators of the plan",
    ),
    Rule(
        lambda plan, model: ~_experts(model) & ((plan.expert_parallel > 1) | (plan.expert_tensor_parallel > 1)),
        "the model has no experts: expert parallel {expert_parallel} and expert tensor parallel"
        " {expert_tensor_parallel} must be 1",
    ),
    Rule(
        lambda plan, model: _experts(model) & (plan.expert_parallel > model.num_experts),
        "expert parallel {expert_parallel} is more than the {model.num_experts} experts",
    ),
    Rule(
        lambda plan, model: _experts(model) & _fraction(plan.expert_replicas),
        "expert parallel {expert_parallel} x expert tensor parallel {expert_tensor_parallel} does not divide the"
        " {stage_ranks} ranks of a pipeline stage",
    ),
    Rule(
        lambda plan, model: ~_experts(model) & ~np.isnan(plan.expert_capacity),
        "the model has no experts to give a capacity of {expert_capacity}",
        "expert_capacity",
    ),
    Rule(
        lambda plan, model: (
            _experts(model) & np.isnan(plan.expert_capacity) & plan.captures_experts & ~plan.counts_in_memory
        ),
        "graphs {words.graphs} need an expert capacity (or products in mxfp8 or fp4): the host waits for the counts of"
        " tokens",
        "graphs",
    ),
    Rule(
        lambda plan, _: ~np.isnan(plan.expert_capacity) & (plan.expert_imbalance > 1),
        "experts with a capacity ({expert_capacity}) are filled alike: leave expert imbalance ({expert_imbalance}) out",
        "expert_capacity",
    ),
    Rule(
        lambda plan, _: (plan.expert_parallel > 1) & (plan.tensor_parallel > 1) & (plan.sequence_parallel < 1),
        "expert parallel {expert_parallel} with tensor parallel {tensor_parallel} needs sequence parallel",
    ),
    Rule(
        lambda plan, model: _experts(model) & _fraction(model.expert_ffn_hidden_size / plan.expert_tensor_parallel),
        "expert tensor parallel {expert_tensor_parallel} does not divide the width {model.expert_ffn_hidden_size} of"
        " an expert",
    ),
    Rule(
        lambda plan, _: (plan.context_parallel > 1) & _fraction(plan.sequence_length / (2.0 * plan.context_parallel)),
        "context parallel {context_parallel} needs a sequence length ({sequence_length}) that is a multiple of twice"
        " as much",
        "context_parallel",
    ),
    Rule(
        lambda plan, model: (
            (plan.context_method == ContextMethod.ULYSSES)
            & (plan.context_parallel > 1)
            & _fraction(model.num_query_groups / (plan.tensor_parallel * plan.context_parallel))
        ),
        "ulysses context parallel {context_parallel} x tensor parallel {tensor_parallel} does not divide the"
        " {model.num_query_groups} key and value heads",
        "context_method",
    ),
    Rule(
        lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.ZERO_BUBBLE) & (plan.virtual_pipeline > 1),
        "the zero-bubble schedule has no virtual pipeline, plan asks for {virtual_pipeline}",
        "pipeline_schedule",
    ),
    Rule(
        lambda plan, _: plan.dualpipe & (_fraction(plan.pipeline_parallel / 2.0) | (plan.virtual_pipeline > 1)),
        "dualpipe needs an even number of stages and no virtual pipeline, plan has {pipeline_parallel} and"
        " {virtual_pipeline}",
        "pipeline_schedule",
    ),
    Rule(
        lambda plan, _: plan.dualpipe & (plan.num_micro_batches < 2.0 * plan.pipeline_parallel),
        "dualpipe needs at least twice as many micro-batches ({num_micro_batches}) as stages ({pipeline_parallel})",
        "pipeline_schedule",
    ),
    Rule(
        lambda plan, _: (
            (plan.flash_attention < 1) & (plan.context_parallel > 1) & (plan.context_method == ContextMethod.RING)
        ),
        "standard attention needs whole rows of scores, a ring brings them in pieces: use flash, or context method"
        " all-gather or ulysses",
        "attention",
    ),
    Rule(
        lambda plan, model: _fraction(model.num_attention_heads / plan.tensor_parallel),
        "tensor parallel {tensor_parallel} does not divide the {model.num_attention_heads} attention heads",
    ),
    Rule(
        lambda plan, model: _fraction(model.ffn_hidden_size / plan.tensor_parallel),
        "tensor parallel {tensor_parallel} does not divide the feed-forward width {model.ffn_hidden_size}",
    ),
    Rule(
        lambda plan, model: plan.num_chunks > model.num_layers + PLACEHOLDERS,
        "pipeline {pipeline_parallel} x virtual pipeline {virtual_pipeline} needs more layers than the model's"
        " {model.num_layers}",
    ),
    Rule(
        lambda plan, _: (plan.virtual_pipeline > 1) & (plan.pipeline_parallel < 2),
        "virtual pipeline {virtual_pipeline} needs pipeline parallel of 2 or more",
        "virtual_pipeline",
    ),
    Rule(
        lambda plan, _: (
            (plan.virtual_pipeline > 1)
            & _fraction(plan.num_micro_batches / plan.pipeline_parallel)
            & ~_fraction(plan.num_micro_batches)
        ),
        "interleaving needs a number of micro-batches ({num_micro_batches}) that pipeline parallel"
        " {pipeline_parallel} divides",
        "virtual_pipeline",
    ),
    Rule(
        lambda plan, _: (plan.virtual_pipeline > 1) & (plan.pipeline_schedule == PipelineSchedule.GPIPE),
        "the gpipe schedule has no virtual pipeline, plan asks for {virtual_pipeline}",
        "pipeline_schedule",
    ),
    Rule(
        lambda plan, _: _fraction(plan.num_micro_batches) | (plan.num_micro_batches < 1),
        "global batch {global_batch_size} is not a whole number of micro-batches of {micro_batch_size} on"
        " {data_parallel} replicas",
    ),
    Rule(
        lambda plan, _: (plan.sequence_parallel > 0) & _fraction(plan.sequence_length / plan.tensor_parallel),
        "sequence parallel needs a sequence length ({sequence_length}) that tensor parallel {tensor_parallel} divides",
    ),
    Rule(
        lambda plan, _: np.isfinite(plan.zero_group_size) & (plan.zero_stage < 1),
        "zero group size {zero_group_size} needs ZeRO stage 1 or more",
        "zero_group_size",
    ),
    Rule(
        lambda plan, model: (
            _fraction(plan.shards / plan.zero_shards)
            | (_experts(model) & _fraction(plan.expert_shards / plan.expert_zero_shards))
        ),
        "zero group size {zero_group_size} does not divide the {shards} ranks that hold the same weights (of experts:"
        " {expert_shards})",
    ),
    Rule(
        lambda plan, _: (
            (plan.reshard_after_forward != np.where(plan.pipeline_parallel > 1, 0.0, 1.0)) & (plan.zero_stage < 3)
        ),
        "reshard after forward needs ZeRO stage 3, plan has {zero_stage}",
        "reshard_after_forward",
    ),
    Rule(
        lambda plan, _: (plan.offload_target == OffloadTarget.DRIVE) & (plan.offload_optimizer <= 0),
        "offload target drive needs optimizer state to offload: set offload optimizer",
        "offload_target",
    ),
    Rule(
        lambda plan, model: (plan.train_mtp > 0) & ~(model.num_mtp_layers > 0),
        "the model has no multi-token prediction modules to train",
        "train_mtp",
    ),
    Rule(
        lambda plan, _: (plan.mtp_layers > 0) & plan.frozen,
        "multi-token prediction modules are not trained beside adapters",
        "train_mtp",
    ),
    Rule(
        lambda plan, _: (plan.words("adapter_modules") != "") & ~plan.frozen,
        "adapter modules {words.adapter_modules} need an adapter rank",
        "adapter_modules",
    ),
    Rule(
        lambda plan, _: (plan.words("quantized_copies") != "") & ~plan.quantized,
        "quantized copies {words.quantized_copies} need products in FP8, INT8 or FP4",
        "quantized_copies",
    ),
    Rule(
        lambda plan, _: _lacking_remainder(plan),
        "master weights remainder need 16-bit weights beside them: not fp32, tf32 or quantized copies primary",
        "master_weights",
    ),
    Rule(
        lambda plan, _: (plan.wide_layers > 0) & ~plan.quantized,
        "wide layers {wide_layers} need products in FP8, INT8 or FP4",
        "wide_layers",
    ),
    Rule(
        lambda plan, model: plan.wide_layers > model.num_layers,
        "wide layers {wide_layers} are more than the model's {model.num_layers}",
        "wide_layers",
    ),
    Rule(
        lambda plan, _: plan.unknown_modules,
        f"recompute modules {{words.recompute_modules}} must be of {', '.join(RECOMPUTE_MODULES)}, with spaces between",
        "recompute_modules",
    ),
    Rule(
        lambda plan, _: plan.names_modules & (plan.recompute != Recompute.SELECTIVE),
        "recompute modules {words.recompute_modules} need recompute selective",
        "recompute_modules",
    ),
    Rule(
        lambda plan, _: (plan.words("recompute_modules") == NO_MODULES) & (plan.recompute == Recompute.SELECTIVE),
        "recompute selective needs modules: recompute modules are none",
        "recompute_modules",
    ),
    Rule(
        lambda plan, model: (plan.again("moe") > 0) & ~_experts(model),
        "the model has no experts to recompute",
        "recompute_modules",
    ),
    Rule(
        lambda plan, model: (plan.again("latent") > 0) & (model.latent_attention <= 0),
        "the model has no latent attention to recompute",
        "recompute_modules",
    ),
    Rule(
        lambda plan, _: np.isfinite(plan.recompute_layers) & (plan.recompute == Recompute.NONE),
        "recompute layers {recompute_layers} need recompute selective or full",
        "recompute_layers",
    ),
    Rule(
        lambda plan, _: (plan.recompute_group > 1) & (plan.recompute != Recompute.FULL),
        "recompute group {recompute_group} needs recompute full",
        "recompute_group",
    ),
    Rule(
        lambda plan, _: plan.split_by_cost & plan.ends_given,
        "stage dealing cost leaves no choice of the layers of the first or last stage",
        "stage_dealing",
    ),
    Rule(
        lambda plan, _: plan.split_by_cost & (plan.virtual_pipeline > 1),
        "stage dealing cost has no virtual pipeline, plan asks for {virtual_pipeline}",
        "stage_dealing",
    ),
    Rule(
        lambda plan, _: plan.split_by_cost & plan.dualpipe,
        "stage dealing cost has no dualpipe schedule",
        "stage_dealing",
    ),
    Rule(
        lambda plan, _: plan.split_by_cost & (plan.mtp_layers > 0),
        "stage dealing cost has no multi-token prediction modules",
        "stage_dealing",
    ),
    Rule(
        lambda plan, _: plan.ends_given & (plan.pipeline_parallel < 2),
        "layers of the first or last stage need pipeline parallel of 2 or more",
    ),
    Rule(
        _lacking_layers,
        "first and last stage take {given_layers} of {model.num_layers} layers: what is left does not give each chunk"
        " of {open_stages} stages in between a layer",
    ),
    Rule(
        lambda plan, model: (model.num_linear_layers > 0.0) & (plan.context_parallel > 1),
        "context parallel {context_parallel} is not modelled for layers of linear attention; use 1",
        "context_parallel",
    ),
    Rule(
        lambda plan, model: (
            (model.num_linear_layers > 0.0)
            & (
                _fraction(model.linear_key_heads / plan.tensor_parallel)
                | _fraction(model.linear_value_heads / plan.tensor_parallel)
            )
        ),
        "tensor parallel {tensor_parallel} does not divide the {model.linear_key_heads} key and"
        " {model.linear_value_heads} value heads of linear attention",
    ),
    Rule(
        lambda plan, model: (model.num_selected_layers > 0.0) & (plan.context_parallel > 1),
        "context parallel {context_parallel} is not modelled for sparse attention; use 1",
        "context_parallel",
    ),
    Rule(
        lambda plan, model: (model.num_selected_layers > 0.0) & (plan.flash_attention < 1),
        "sparse attention has no standard kernel; use flash",
        "attention",
    ),
    Rule(
        lambda plan, model: (model.num_selected_layers > 0.0) & plan.frozen,
        "adapters beside sparse attention are not modelled; train all weights",
        "adapter_rank",
    ),
    Rule(
        lambda plan, model: (model.num_linear_layers > 0.0) & plan.frozen,
        "adapters beside layers of linear attention are not modelled; train all weights",
        "adapter_rank",
    ),
)
"""Rules of a plan by itself and with its model, in the order in which they are said."""
