"""An inference plan as arrays: what a row of the sheet means for the equations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from xlperf.base.arrays import Array, Numeric, array
from xlperf.equations.plan.precisions import PRECISIONS


def _none() -> Array:
    return np.zeros(())


def _one() -> Array:
    return np.ones(())


@dataclass(frozen=True, eq=False)
class InferencePlan:
    """Columns of inference plans, one entry per plan; every field has shape (rows,).

    Attributes
    ----------
    num_accelerators : Array
        Accelerators of the deployment. [-]
    tensor_parallel : Array
        Ranks that share each matrix. [-]
    pipeline_parallel : Array
        Stages. [-]
    prompt_length : Array
        Tokens of a prompt. [-]
    output_length : Array
        Tokens that are generated for a request. [-]
    batch_size : Array
        Requests that run together on the fullest replica. [-]
    num_requests : Array
        Requests in flight on all replicas together. [-]
    weight_size : Array
        Bytes of a weight of the layers, its share of the scales included. [B]
    input_size : Array
        Bytes of an element of the other input of a matrix product. [B]
    activation_size : Array
        Bytes of an activation between the products, of embeddings and of logits. [B]
    kv_size : Array
        Bytes of an element of the key-value cache. [B]
    attention_size : Array
        Bytes of an element of queries, keys and values in the attention of the prefill. [B]
    prefill_tokens : Array
        Tokens of one pass of the prefill at most; a longer prefill takes several passes. [-]
    expert_parallel : Array
        Ranks, of those that share a stage, that the routed experts are dealt out to; the rest share each expert. [-]
    attention_replicas : Array
        Copies of the attention layers on the ranks that share a stage, each with its part of the batch. [-]
    prefix_hit_rate : Array
        Share of a prompt whose keys and values are in the cache already. [-]
    draft_tokens : Array
        Tokens that are drafted for a step to check; 0 without speculation. [-]
    acceptance_rate : Array
        Probability that a drafted token is accepted, given that those before it are. [-]
    draft_layers : Array
        Layers that a drafted token passes. [-]
    prompts_together : Array
        Prompts that a prefill takes while others are decoded; 0 where the whole batch is prefilled. [-]
    context_parallel : Array
        Ranks that share a prompt in the prefill and the cache of each sequence in decoding; each holds all weights
        of its stage and tensor-parallel rank. [-]
    ring : Array
        1 where keys and values of a prompt go round in a ring behind the attention, 0 where they are gathered first.
        [-]
    output_variation : Array
        Coefficient of variation of the output lengths. [-]
    four_bits : Array
        1 where weights are stored in 4 bits. [-]
    prompt_variation : Array
        Coefficient of variation of the prompt lengths. [-]
    by_node : Array
        1 where a token is sent to a node of the innermost tier once and passed on inside it to its experts, 0 where
        it is sent to each of their ranks. [-]
    two_batches : Array
        1 where each batch is cut in two and one half computes while the other is sent to experts, 0 where not. [-]
    graphs : Array
        1 where a step of decoding is launched as a whole, 0 where the host launches each kernel. [-]
    memory_fraction : Array
        Share of the memory that the engine takes; NaN: the engine's default. [-]
    """

    num_accelerators: Array
    tensor_parallel: Array
    pipeline_parallel: Array
    prompt_length: Array
    output_length: Array
    batch_size: Array
    num_requests: Array
    weight_size: Array
    input_size: Array
    activation_size: Array
    kv_size: Array
    attention_size: Array
    prefill_tokens: Array
    expert_parallel: Array = field(default_factory=_one)
    attention_replicas: Array = field(default_factory=_one)
    prefix_hit_rate: Array = field(default_factory=_none)
    draft_tokens: Array = field(default_factory=_none)
    acceptance_rate: Array = field(default_factory=_none)
    draft_layers: Array = field(default_factory=_one)
    prompts_together: Array = field(default_factory=_none)
    context_parallel: Array = field(default_factory=_one)
    ring: Array = field(default_factory=_one)
    output_variation: Array = field(default_factory=_none)
    four_bits: Array = field(default_factory=_none)
    prompt_variation: Array = field(default_factory=_none)
    by_node: Array = field(default_factory=_none)
    two_batches: Array = field(default_factory=_none)
    graphs: Array = field(default_factory=_one)
    memory_fraction: Array = field(default_factory=lambda: np.full((), np.nan))

    @cached_property
    def attention_parallel(self) -> Array:
        """Ranks that share the heads of one copy of the attention layers. [-]"""
        return np.asarray(self.tensor_parallel / self.attention_replicas)

    @property
    def expert_tensor_parallel(self) -> Array:
        """Ranks that share each routed expert. [-]"""
        return np.asarray(self.tensor_parallel / self.expert_parallel)

    @cached_property
    def new_tokens(self) -> Array:
        """Tokens of a prompt that are not in the cache: the last one has to be computed. [-]"""
        return np.asarray(np.maximum(self.prompt_length * (1.0 - self.prefix_hit_rate), 1.0))

    @cached_property
    def prefix_tokens(self) -> Array:
        """Tokens of a prompt that are in the cache already: a prefix that all requests have in common. [-]"""
        return np.asarray(self.prompt_length - self.new_tokens)

    @cached_property
    def tokens_per_step(self) -> Array:
        """Tokens that a sequence gains in a step of decoding, expected: the step's own and those accepted. [-]"""
        return accepted_tokens(self.draft_tokens, self.acceptance_rate)

    @cached_property
    def own_tokens(self) -> Array:
        """New tokens of a prompt on each of the ranks that share it. [-]"""
        return np.asarray(self.new_tokens / self.context_parallel)

    @cached_property
    def chunks(self) -> Array:
        """Chunks that a prompt is prefilled in, mean: full passes, whose rest the next prompt fills. [-]"""
        return np.asarray(np.maximum(self.own_tokens / self.prefill_tokens, 1.0))

    @cached_property
    def chunk_context(self) -> Array:
        r"""Keys that a chunk attends to at its end, the cache and those so far: mean over k equal chunks of a prompt.

        .. math:: \bar s = \frac{1}{k} \sum_{i=1}^{k} \left(s - n + \frac{i n}{k}\right) = s - \frac{n (k - 1)}{2 k}
        """
        return np.asarray(self.prompt_length - 0.5 * self.new_tokens * (1.0 - 1.0 / self.chunks))

    @cached_property
    def running_output(self) -> Array:
        r"""Mean output of the requests that run at a moment: long ones run longer, so that they are met more often.

        .. math:: \frac{E[N^2]}{E[N]} = \bar N (1 + v^2)
        """
        return np.asarray(self.output_length * (1.0 + self.output_variation * self.output_variation))

    @property
    def layers_drafted(self) -> Array:
        """Layers that a replica holds to draft with. [-]"""
        return np.asarray(np.where(self.draft_tokens > 0.0, self.draft_layers, 0.0))

    @property
    def stage_ranks(self) -> Array:
        """Ranks of one stage. [-]"""
        return np.asarray(self.tensor_parallel * self.context_parallel)

    @cached_property
    def replica_ranks(self) -> Array:
        """Ranks of one copy of the model. [-]"""
        return np.asarray(self.stage_ranks * self.pipeline_parallel)

    @cached_property
    def num_replicas(self) -> Array:
        """Copies of the model that serve side by side. [-]"""
        return np.asarray(self.num_accelerators / self.replica_ranks)

    @cached_property
    def num_micro_batches(self) -> Array:
        """Parts of the batch that follow each other through the stages. [-]"""
        return np.asarray(np.minimum(self.pipeline_parallel, self.batch_size))

    @cached_property
    def micro_batch_size(self) -> Array:
        """Sequences of the largest part. [-]"""
        return np.asarray(np.ceil(self.batch_size / self.num_micro_batches))


def accepted_tokens(draft_tokens: Array, acceptance_rate: Array) -> Array:
    r"""Tokens that a checked draft yields: those accepted in a row, and one from the check itself.

    .. math:: N = 1 + \sum_{i=1}^{n} a^i = \frac{1 - a^{n+1}}{1 - a}

    Parameters
    ----------
    draft_tokens : Array
        Tokens drafted n. [-]
    acceptance_rate : Array
        Probability a that a drafted token is accepted, given that those before it are. [-]

    Returns
    -------
    Array
        Between 1 and n + 1. [-]

    References
    ----------
    .. [1] Y. Leviathan, M. Kalman and Y. Matias, "Fast inference from transformers via speculative decoding", 2023,
       arXiv:2211.17192, equation 1.

    >>> accepted_tokens(np.array([3.0, 3.0, 3.0]), np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 1.875, 4.0]
    """
    drafted, rate = array(draft_tokens), array(acceptance_rate)
    refused = 1.0 - rate
    series = (1.0 - np.power(rate, drafted + 1.0)) / np.where(refused == 0.0, 1.0, refused)
    return np.asarray(np.where(refused == 0.0, drafted + 1.0, series))


def distinct_names(*names: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows of names that differ, each once, and which of them every row is.

    Parameters
    ----------
    *names : np.ndarray
        Columns of names, (rows,).

    Returns
    -------
    tuple of np.ndarray and list of np.ndarray
        Position of each row among the rows that differ, and those, column by column.

    >>> codes, (first, second) = distinct_names(np.array(["a", "b", "a"]), np.array(["", "", ""]))
    >>> codes.tolist(), first.tolist(), second.tolist()
    ([0, 1, 0], ['a', 'b'], ['', ''])
    """
    rows = list(zip(*(column.tolist() for column in names), strict=True))
    seen = {row: code for code, row in enumerate(dict.fromkeys(rows))}
    codes = list(map(seen.__getitem__, rows))
    columns = zip(*seen, strict=True) if seen else [()] * len(names)
    return np.array(codes, dtype=np.int64), [np.array(column, dtype=object) for column in columns]


def sizes(field: str, precision: np.ndarray) -> Array:
    """Bytes per element for a column of precisions.

    Parameters
    ----------
    field : str
        Field of the table: weight_size, input_size or element_size.
    precision : np.ndarray
        Names, (rows,).

    Returns
    -------
    Array
        NaN for a name that is not in the table. [B]

    >>> sizes("weight_size", np.array(["fp8", "int4"])).tolist()
    [1.0, 0.5625]
    """
    found = map(PRECISIONS.get, precision.tolist())
    return np.array([np.nan if one is None else getattr(one, field) for one in found], dtype=np.float64)


def product_precision(activation_precision: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Precision of the products of a plan: that of its activations where they are given, else that of its weights.

    Parameters
    ----------
    activation_precision : np.ndarray
        Of the plans, (rows,); "" where blank: as the weights, 16 bits with INT4.
    precision : np.ndarray
        Precision of the weights, (rows,).

    Returns
    -------
    np.ndarray
        Object array of names.

    >>> product_precision(np.array(["", "fp8", "bf16"]), np.array(["fp4", "int4", "fp8"])).tolist()
    ['fp4', 'fp8', 'bf16']
    """
    pairs = zip(activation_precision.tolist(), precision.tolist(), strict=True)
    return np.array([str(given) or str(name) for given, name in pairs], dtype=object)


def cache_precision(kv_precision: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Precision of the key-value cache: as given, else FP8 with products in FP8 and FP4, else 16 bits.

    Parameters
    ----------
    kv_precision : np.ndarray
        Of the plans, (rows,); "" where blank.
    precision : np.ndarray
        Precision of the products, (rows,).

    Returns
    -------
    np.ndarray
        Object array of names.

    >>> cache_precision(np.array(["", "fp8", ""]), np.array(["fp4", "bf16", "fp16"])).tolist()
    ['fp8', 'fp8', 'bf16']
    """
    pairs = zip(kv_precision.tolist(), precision.tolist(), strict=True)
    return np.array([str(given) or PRECISIONS[str(name)].cache for given, name in pairs], dtype=object)


def attention_precision(kv_precision: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Precision that attention computes in: FP8 where both products and cache are narrow floats, else 16 bits.

    Parameters
    ----------
    kv_precision : np.ndarray
        Precision of the cache as :func:`cache_precision` has it, (rows,).
    precision : np.ndarray
        Precision of weights and products, (rows,).

    Returns
    -------
    np.ndarray
        Object array of names: fp32 bf16 fp8.

    >>> attention_precision(np.array(["fp8", "fp8", "bf16"]), np.array(["fp4", "bf16", "fp8"])).tolist()
    ['fp8', 'bf16', 'bf16']
    """
    narrow = ("fp8", "fp4")
    pairs = zip(kv_precision.tolist(), precision.tolist(), strict=True)
    names = [
        "fp8" if cache in narrow and name in narrow else "fp32" if name == "fp32" else "bf16" for cache, name in pairs
    ]
    return np.array(names, dtype=object)


def inference_plan(
    num_accelerators: Array,
    tensor_parallel: Array,
    pipeline_parallel: Array,
    prompt_length: Array,
    output_length: Array,
    batch_size: Array,
    concurrency: Array,
    precision: np.ndarray,
    kv_precision: np.ndarray,
    prefill_tokens: Numeric = 8192.0,
    expert_parallel: Numeric = 1.0,
    attention_replicas: Numeric = 1.0,
    prefix_hit_rate: Numeric = 0.0,
    draft_tokens: Numeric = 0.0,
    acceptance_rate: Numeric = 0.0,
    draft_layers: Numeric = 1.0,
    activation_precision: np.ndarray | None = None,
    context_parallel: Numeric = 1.0,
    ring: Numeric = 1.0,
    output_variation: Numeric = 0.0,
    prompt_variation: Numeric = 0.0,
    by_node: Numeric = 0.0,
    two_batches: Numeric = 0.0,
    graphs: Numeric = 1.0,
    memory_fraction: Numeric = np.nan,
    named: np.ndarray | None = None,
) -> InferencePlan:
    """Resolve the columns of inference plans into what the equations need.

    Parameters
    ----------
    num_accelerators : Array
        Accelerators of the deployment, (rows,). [-]
    tensor_parallel : Array
        Ranks that share each matrix, (rows,). [-]
    pipeline_parallel : Array
        Stages, (rows,). [-]
    prompt_length : Array
        Tokens of a prompt, (rows,). [-]
    output_length : Array
        Tokens generated for a request, (rows,). [-]
    batch_size : Array
        Requests that run together on a replica, (rows,); NaN: what concurrency asks for, else 1. [-]
    concurrency : Array
        Requests in flight over all replicas, (rows,); NaN: batch size x replicas. [-]
    precision : np.ndarray
        Precision of the weights, (rows,).
    kv_precision : np.ndarray
        Precision of the cache, (rows,); "" where blank.
    prefill_tokens : numeric, default 8192
        Tokens of one pass of the prefill at most: what vLLM and TensorRT-LLM admit unless told otherwise. [-]
    expert_parallel : numeric, default 1
        Ranks that the experts are dealt out to. [-]
    attention_replicas : numeric, default 1
        Copies of the attention layers on the ranks that share a stage. [-]
    prefix_hit_rate : numeric, default 0
        Share of a prompt that is in the cache already. [-]
    draft_tokens : numeric, default 0
        Tokens drafted per step. [-]
    acceptance_rate : numeric, default 0
        Probability that a drafted token is accepted, given that those before it are. [-]
    draft_layers : numeric, default 1
        Layers that a drafted token passes. [-]
    activation_precision : np.ndarray, optional
        Precision that activations enter products in, (rows,); "" where blank: as the weights.
    context_parallel : numeric, default 1
        Ranks that share a prompt and its cache. [-]
    ring : numeric, default 1
        1 where they pass keys and values on behind the attention, 0 where these are gathered first. [-]
    output_variation : numeric, default 0
        Coefficient of variation of the output lengths. [-]
    prompt_variation : numeric, default 0
        Coefficient of variation of the prompt lengths. [-]
    by_node : numeric, default 0
        1 where tokens are sent to nodes once, 0 where to each rank of their experts. [-]
    two_batches : numeric, default 0
        1 where one half of a batch computes while the other is sent, 0 where not. [-]
    graphs : numeric, default 1
        1 where a step of decoding is launched as a whole, 0 where kernel by kernel. [-]
    memory_fraction : numeric, default NaN
        Share of the memory that the engine takes; NaN: the engine's default. [-]
    named : np.ndarray, optional
        Which of the names of precisions each row has, where :func:`distinct_names` has found them already; default:
        there is one for each row.

    Returns
    -------
    InferencePlan
        With the batch of the fullest replica and bytes per element.
    """
    ranks = array(tensor_parallel) * array(context_parallel) * array(pipeline_parallel)
    replicas = np.maximum(array(num_accelerators) / ranks, 1.0)
    asked = array(concurrency)
    share = np.where(np.isnan(asked), 1.0, np.ceil(asked / replicas))
    batch = np.where(np.isnan(array(batch_size)), share, array(batch_size))
    if activation_precision is None:
        activation_precision = np.full(len(precision), "", dtype=object)
    codes, weights, caches, given = named, precision, kv_precision, activation_precision
    if codes is None:
        codes, (weights, caches, given) = distinct_names(precision, kv_precision, activation_precision)
    product = product_precision(given, weights)
    cache = cache_precision(caches, product)
    attention = attention_precision(cache, product)
    return InferencePlan(
        num_accelerators=array(num_accelerators),
        tensor_parallel=array(tensor_parallel),
        pipeline_parallel=array(pipeline_parallel),
        prompt_length=array(prompt_length),
        output_length=array(output_length),
        batch_size=batch,
        num_requests=np.where(np.isnan(asked), batch * replicas, asked),
        weight_size=sizes("weight_size", weights)[codes],
        input_size=sizes("input_size", product)[codes],
        activation_size=sizes("element_size", product)[codes],
        kv_size=sizes("weight_size", cache)[codes],
        attention_size=sizes("weight_size", attention)[codes],
        prefill_tokens=array(prefill_tokens) + 0.0 * batch,
        expert_parallel=array(expert_parallel) + 0.0 * batch,
        attention_replicas=array(attention_replicas) + 0.0 * batch,
        prefix_hit_rate=array(prefix_hit_rate) + 0.0 * batch,
        draft_tokens=array(draft_tokens) + 0.0 * batch,
        acceptance_rate=array(acceptance_rate) + 0.0 * batch,
        draft_layers=array(draft_layers) + 0.0 * batch,
        context_parallel=array(context_parallel) + 0.0 * batch,
        ring=array(ring) + 0.0 * batch,
        output_variation=array(output_variation) + 0.0 * batch,
        four_bits=(sizes("weight_size", weights) < 1.0).astype(np.float64)[codes],
        prompt_variation=array(prompt_variation) + 0.0 * batch,
        by_node=array(by_node) + 0.0 * batch,
        two_batches=array(two_batches) + 0.0 * batch,
        graphs=array(graphs) + 0.0 * batch,
        memory_fraction=array(memory_fraction) + 0.0 * batch,
    )
