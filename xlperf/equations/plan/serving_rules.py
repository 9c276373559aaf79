"""Rules that make an inference plan legal, and what a reader of a legal one should know."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, array
from xlperf.equations.model.model import Model
from xlperf.equations.plan.precisions import PRECISIONS
from xlperf.equations.plan.rules import Remark
from xlperf.equations.plan.serving_plan import InferencePlan


def _fraction(values: Array) -> np.ndarray:
    return np.asarray(values != np.floor(values))


def serving_rules(plan: InferencePlan, model: Model) -> list[Remark]:
    """Rules that a served model must keep.

    Parameters
    ----------
    plan : InferencePlan
        Degrees, lengths and batch, (rows,).
    model : Model
        Shapes, (rows,).

    Returns
    -------
    list of Remark
        Each with a sentence that says what is wrong.
    """
    whole = (
        ("num accelerators", plan.num_accelerators),
        ("tensor parallel", plan.tensor_parallel),
        ("pipeline parallel", plan.pipeline_parallel),
        ("prompt length", plan.prompt_length),
        ("output length", plan.output_length),
        ("batch size", plan.batch_size),
        ("concurrency", plan.num_requests),
        ("expert parallel", plan.expert_parallel),
        ("data parallel attention", plan.attention_replicas),
        ("context parallel", plan.context_parallel),
    )
    tensor, pipeline = plan.tensor_parallel, plan.pipeline_parallel
    heads_split, experts_split = plan.attention_parallel, plan.expert_parallel
    experts = model.num_experts + 0.0 * tensor
    each_expert = np.where(experts > 0.0, model.expert_ffn_hidden_size, 0.0)
    heads, groups = model.num_attention_heads, model.num_query_groups
    ranks, context = plan.replica_ranks, plan.context_parallel
    replicas = plan.num_replicas
    fullest = np.ceil(plan.num_requests / np.maximum(replicas, 1.0))
    rules = [Remark(_fraction(values), f"{name} must be a whole number, is {{}}", (values,)) for name, values in whole]
    if np.any(model.num_linear_layers > 0.0):
        rules += _linear_rules(plan, model)
    return [
        *rules,
        Remark(
            _fraction(replicas) & (context == 1.0),
            "tensor {} x pipeline {} parallel is {} ranks, which do not divide the {} accelerators of the plan",
            (tensor, pipeline, ranks, plan.num_accelerators),
        ),
        Remark(
            _fraction(replicas) & (context != 1.0),
            "tensor {} x context {} x pipeline {} parallel is {} ranks, which do not divide the {} accelerators of "
            "the plan",
            (tensor, context, pipeline, ranks, plan.num_accelerators),
        ),
        Remark(
            2.0 * context > np.maximum(plan.prompt_length, 2.0),
            "context parallel {} needs two tokens of the prompt on each rank, the prompt has {}",
            (context, plan.prompt_length),
        ),
        Remark(
            _fraction(heads_split),
            "data parallel attention {} does not divide tensor parallel {}",
            (plan.attention_replicas, tensor),
        ),
        Remark(
            (experts_split > 1.0) & (experts == 0.0),
            "expert parallel {} needs a mixture of experts; use 1",
            (experts_split,),
        ),
        *(
            Remark(
                (asked > 0.0) & ((experts == 0.0) | (plan.attention_replicas == 1.0)),
                f"{words} needs a mixture of experts and data parallel attention above 1: else no token is sent",
            )
            for words, asked in (("two batch overlap", plan.two_batches), ("expert dispatch nodes", plan.by_node))
        ),
        Remark(
            _fraction(plan.expert_tensor_parallel),
            "expert parallel {} does not divide tensor parallel {}",
            (experts_split, tensor),
        ),
        Remark(
            (experts > 0.0) & _fraction(experts / experts_split),
            "expert parallel {} does not divide the {} experts",
            (experts_split, experts),
        ),
        Remark(
            (experts > 0.0) & _fraction(each_expert / plan.expert_tensor_parallel),
            "{} ranks that share an expert do not divide its width {}",
            (plan.expert_tensor_parallel, each_expert),
        ),
        Remark(
            _fraction(heads / heads_split),
            "tensor parallel {} does not divide the {} attention heads",
            (heads_split, heads),
        ),
        Remark(
            (model.latent_attention == 0.0) & _fraction(groups / heads_split) & _fraction(heads_split / groups),
            "tensor parallel {} and the {} key and value heads do not divide one another",
            (heads_split, groups),
        ),
        Remark(
            (model.num_dense_layers > 0.0) & _fraction(model.ffn_hidden_size / heads_split),
            "tensor parallel {} does not divide the feed-forward width {}",
            (heads_split, model.ffn_hidden_size),
        ),
        Remark(
            pipeline > model.num_layers,
            "pipeline parallel {} needs more layers than the model's {}",
            (pipeline, model.num_layers),
        ),
        Remark(
            ~_fraction(replicas) & (fullest != plan.batch_size),
            "batch size {} does not agree with concurrency {} on {} replicas; give one of the two",
            (plan.batch_size, plan.num_requests, replicas),
        ),
    ]


def _linear_rules(plan: InferencePlan, model: Model) -> list[Remark]:
    """Rules for models with layers of linear attention, whose state no ranks share but by heads."""
    linear, ranks = model.num_linear_layers > 0.0, plan.attention_parallel
    return [
        Remark(
            linear & (plan.context_parallel > 1.0),
            "context parallel {} is not modelled for layers of linear attention; use 1",
            (plan.context_parallel,),
        ),
        *(
            Remark(
                linear & _fraction(heads / ranks),
                f"tensor parallel {{}} does not divide the {{}} {words} heads of linear attention",
                (ranks, heads),
            )
            for words, heads in (("key", model.linear_key_heads), ("value", model.linear_value_heads))
        ),
    ]


def unmodelled_rules(mode: np.ndarray, request_rate: Array, batch_size: Array, concurrency: Array) -> list[Remark]:
    """Rules for what a plan may ask for in the sheet and the equations do not cover.

    Parameters
    ----------
    mode : np.ndarray
        How requests are batched, (rows,).
    request_rate : Array
        Requests that arrive per second, (rows,); NaN where blank. [request/s]
    batch_size : Array
        Requests of a replica, (rows,); NaN where blank. [-]
    concurrency : Array
        Requests in flight, (rows,); NaN where blank. [-]

    Returns
    -------
    list of Remark
        Each with a sentence that says what is not modelled and what would do.
    """
    rated = ~np.isnan(array(request_rate))
    counted = ~(np.isnan(array(batch_size)) & np.isnan(array(concurrency)))
    return [
        Remark(
            rated & np.asarray(mode == "static"),
            'request rate {} needs mode continuous or disaggregated, not "{}"; or give a batch size or concurrency',
            (request_rate, mode),
        ),
        Remark(
            rated & counted,
            "request rate {} beside a batch size or concurrency: give one of them",
            (request_rate,),
        ),
    ]


def precision_rules(activation_precision: np.ndarray, precision: np.ndarray) -> list[Remark]:
    """Rules for the precisions of weights and activations: weights are widened to the product, never narrowed.

    Parameters
    ----------
    activation_precision : np.ndarray
        Of the plans, (rows,); "" where blank.
    precision : np.ndarray
        Precision of the weights, (rows,).

    Returns
    -------
    list of Remark
        None where no plan gives a precision of its activations.
    """
    if not (activation_precision != "").any():
        return []
    pairs = list(zip(activation_precision.tolist(), precision.tolist(), strict=True))
    wrong = np.array([bool(given) and given not in PRECISIONS[name].products for given, name in pairs])
    known = np.array([", ".join(PRECISIONS[name].products) for _, name in pairs], dtype=object)
    return [
        Remark(
            wrong,
            "activation precision {} does not go with weights in {}; use {}",
            (activation_precision, precision, known),
        )
    ]


def serving_warnings(plan: InferencePlan, max_sequence_length: Array) -> list[Remark]:
    """Sentences for legal plans that a reader should know about.

    Parameters
    ----------
    plan : InferencePlan
        Lengths, (rows,).
    max_sequence_length : Array
        Longest context of the models, (rows,); NaN where it is not known. [-]

    Returns
    -------
    list of Remark
        Not a cause to refuse the plan.
    """
    context = plan.prompt_length + plan.output_length
    return [
        Remark(
            np.asarray(context > max_sequence_length),
            "prompt and output are {} tokens, beyond the model's longest context of {}",
            (context, max_sequence_length),
        ),
        Remark(plan.output_length == 1.0, "one output token: there is no tpot"),
    ]
