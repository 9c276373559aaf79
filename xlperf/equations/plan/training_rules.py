"""Rules of legality of training plans, as data: the rows that break a rule, and the reason."""

from __future__ import annotations

import numpy as np

from xlperf.equations.model.model import Model
from xlperf.equations.plan.dimensions import (
    AXES,
    RANKS,
    TRAINING_DIMENSIONS,
    fraction,
    has_experts,
    product_of_words,
    whole_number,
)
from xlperf.equations.plan.records import OffloadTarget, PipelineSchedule, QuantizedCopies, Recompute, Rule
from xlperf.equations.plan.training_plan import FP32_SIZE, NO_MODULES, RECOMPUTE_MODULES, TrainingPlan


def _lacks_layers(plan: TrainingPlan, model: Model) -> np.ndarray:
    """Stages without given layers get less than one layer per chunk, or no stage takes the remaining layers."""
    rest = model.num_layers - plan.given_layers
    lacking = np.where(plan.open_stages > 0, rest < plan.open_stages * plan.virtual_pipeline, rest != 0)
    return np.asarray(plan.ends_given & (plan.pipeline_parallel >= 2) & lacking)


def _lacks_remainder(plan: TrainingPlan) -> np.ndarray:
    """The optimizer stores the low 16 bits of weights whose high 16 bits no rank has."""
    split = (plan.master_size > 0.0) & (plan.master_size < FP32_SIZE)
    primary = plan.quantized & (plan.quantized_copies == QuantizedCopies.PRIMARY)
    return np.asarray(split & (primary | (plan.element_size >= FP32_SIZE)))


TRAINING_RULES: tuple[Rule[TrainingPlan], ...] = (
    Rule(
        lambda plan, _: (plan.words("dimension_order") != "") & plan.misnamed_order,
        f"dimension order {{words.dimension_order}} must name {', '.join(AXES)} once each, joined by hyphens",
        "dimension_order",
    ),
    Rule(
        lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.INTERLEAVED) & (plan.virtual_pipeline < 2),
        "an interleaved schedule needs virtual pipeline of 2 or more, is {virtual_pipeline}",
        "pipeline_schedule",
    ),
    *(whole_number(each.size, "" if each.remainder else each.size) for each in TRAINING_DIMENSIONS if each.stated),
    whole_number("virtual_pipeline", "virtual_pipeline"),
    *map(whole_number, ("num_accelerators", "global_batch_size", "micro_batch_size", "sequence_length")),
    Rule(
        lambda plan, _: plan.ranks != plan.num_accelerators,
        f"{product_of_words(RANKS)} is {{ranks}} ranks, not the {{num_accelerators}} accelerators of the plan",
    ),
    *(rule for dimension in TRAINING_DIMENSIONS for rule in dimension.rules),
    Rule(
        lambda plan, model: ~has_experts(model) & ~np.isnan(plan.expert_capacity),
        "the model has no experts to give a capacity of {expert_capacity}",
        "expert_capacity",
    ),
    Rule(
        lambda plan, model: (
            has_experts(model) & np.isnan(plan.expert_capacity) & plan.captures_experts & ~plan.counts_in_memory
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
        lambda plan, _: (plan.pipeline_schedule == PipelineSchedule.ZERO_BUBBLE) & (plan.virtual_pipeline > 1),
        "the zero-bubble schedule has no virtual pipeline, plan asks for {virtual_pipeline}",
        "pipeline_schedule",
    ),
    Rule(
        lambda plan, _: plan.dualpipe & (fraction(plan.pipeline_parallel / 2.0) | (plan.virtual_pipeline > 1)),
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
            (plan.virtual_pipeline > 1)
            & fraction(plan.num_micro_batches / plan.pipeline_parallel)
            & ~fraction(plan.num_micro_batches)
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
        lambda plan, _: fraction(plan.num_micro_batches) | (plan.num_micro_batches < 1),
        "global batch {global_batch_size} is not a whole number of micro-batches of {micro_batch_size} on"
        " {data_parallel} replicas",
    ),
    Rule(
        lambda plan, _: np.isfinite(plan.zero_group_size) & (plan.zero_stage < 1),
        "zero group size {zero_group_size} needs ZeRO stage 1 or more",
        "zero_group_size",
    ),
    Rule(
        lambda plan, model: (
            fraction(plan.shards / plan.zero_shards)
            | (has_experts(model) & fraction(plan.expert_shards / plan.expert_zero_shards))
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
        lambda plan, _: _lacks_remainder(plan),
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
        lambda plan, model: (plan.again("moe") > 0) & ~has_experts(model),
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
        _lacks_layers,
        "first and last stage take {given_layers} of {model.num_layers} layers: what is left does not give each chunk"
        " of {open_stages} stages in between a layer",
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
"""Rules of a plan by itself and with its model, in the order of their sentences in ``reason``."""
