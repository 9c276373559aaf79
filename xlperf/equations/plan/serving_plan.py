"""An inference plan: the columns of the sheet, their defaults, and what follows from them."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, array, divide, known_or, power
from xlperf.equations.plan.records import (
    PRECISION_CODES,
    PRECISIONS,
    ContextMethod,
    ExpertDispatch,
    PlanColumns,
    derived,
)

SERVED_PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4", "fp8-block", "fp8-tensor")
"""Precisions of weights and, but for kinds of FP8, of the key-value cache, in the order of the sheet's choices."""
_SERVED = [PRECISIONS[name] for name in SERVED_PRECISIONS]
_WEIGHT_SIZES = np.array([each.served_size for each in _SERVED])
_INPUT_SIZES = np.array([each.input_size for each in _SERVED])
_ELEMENT_SIZES = np.array([each.element_size for each in _SERVED])
_CACHES = np.array([SERVED_PRECISIONS.index(each.cache) for each in _SERVED])
_IN_TABLE = np.array([PRECISION_CODES[name] for name in SERVED_PRECISIONS])
_PRODUCTS = np.array([[name in each.products for name in SERVED_PRECISIONS] for each in _SERVED])
_FOUR_BITS = np.array([each.weight_size < 1.0 for each in _SERVED])
_NARROW_FLOAT = np.array([name.startswith("fp8") or name == "fp4" for name in SERVED_PRECISIONS])
_NAMES = np.array(SERVED_PRECISIONS, dtype=object)
_MULTIPLIED = np.array([", ".join(each.products) for each in _SERVED], dtype=object)
_FP32, _BF16, _FP8 = (SERVED_PRECISIONS.index(name) for name in ("fp32", "bf16", "fp8"))
POOL_DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "data_parallel_attention",
)
"""Degrees that the prefill pool of separate pools has by itself."""


class LayerPart:
    """Which part of each layer a pool computes: all of it, attention, or the feed-forward part."""

    WHOLE, ATTENTION, EXPERTS = 0.0, 1.0, 2.0


class InferencePlan(PlanColumns):
    """Columns of inference plans as the sheet ``inference`` has them, (rows,), and what follows from them.

    Attributes
    ----------
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
    prompts_together : Array
        Prompts that a prefill takes while others are decoded; 0 where the whole batch is prefilled. [-]
    layer_part : Array
        Part of the layers that a pool computes, a code of :class:`LayerPart`; only where
        some plans have an expert pool. [-]
    """

    def computes(self, part: float) -> Array | None:
        """1 where a pool computes a part of its layers, 0 where not, (rows,); None where every pool computes all."""
        own = self.__dict__["_columns"].get("layer_part")
        return None if own is None else np.where((own == LayerPart.WHOLE) | (own == part), 1.0, 0.0)

    @derived
    def weight_codes(self) -> np.ndarray:
        """Precision of the weights, a position in SERVED_PRECISIONS. [-]"""
        return np.asarray(self.precision.astype(np.int64))

    @derived
    def product_codes(self) -> np.ndarray:
        """Precision of the matrix products: that of the activations where it is given, else that of the weights. [-]"""
        given = self.activation_precision
        return np.where(np.isnan(given), self.precision, given).astype(np.int64)

    @derived
    def cache_codes(self) -> np.ndarray:
        """Precision of the key-value cache: as given, else FP8 with products in FP8 and FP4, else 16 bits. [-]"""
        given = self.kv_precision
        return np.where(np.isnan(given), _CACHES[self.product_codes], given).astype(np.int64)

    @derived
    def attention_codes(self) -> np.ndarray:
        """Precision of attention: FP8 where both products and cache are narrow floats, else 16 bits. [-]"""
        narrow = _NARROW_FLOAT[self.cache_codes] & _NARROW_FLOAT[self.product_codes]
        return np.where(narrow, _FP8, np.where(self.product_codes == _FP32, _FP32, _BF16))

    @property
    def weight_precision(self) -> np.ndarray:
        """Name of the precision of the weights. [-]"""
        return np.asarray(_NAMES[self.weight_codes])

    @property
    def product_precision(self) -> np.ndarray:
        """Name of the precision of the matrix products. [-]"""
        return np.asarray(_NAMES[self.product_codes])

    @property
    def product_precisions(self) -> np.ndarray:
        """Names of the precisions that the weights can be multiplied in. [-]"""
        return np.asarray(_MULTIPLIED[self.weight_codes])

    @property
    def multiplies(self) -> np.ndarray:
        """Where weights can be multiplied in the precision of the products: widened to it, never narrowed. [-]"""
        return np.asarray(_PRODUCTS[self.weight_codes, self.product_codes])

    @derived
    def four_bits(self) -> np.ndarray:
        """Where weights are stored in 4 bits. [-]"""
        return np.asarray(_FOUR_BITS[self.weight_codes])

    @property
    def stored_in_table(self) -> np.ndarray:
        """Precision of the weights, a position in the table of precisions. [-]"""
        return np.asarray(_IN_TABLE[self.weight_codes])

    @property
    def attention_in_table(self) -> np.ndarray:
        """Precision of attention, a position in the table of precisions. [-]"""
        return np.asarray(_IN_TABLE[self.attention_codes])

    @derived
    def ring(self) -> Array:
        """1 where keys and values go round a ring behind the attention, 0 where they are gathered first. [-]"""
        return np.where(self.context_method == ContextMethod.RING, 1.0, 0.0)

    @derived
    def sent_to_nodes(self) -> np.ndarray:
        """Where a token is sent once to each node of its experts, and inside it to their ranks. [-]"""
        return np.asarray(self.expert_dispatch == ExpertDispatch.NODES)

    @derived
    def tokens_after_first(self) -> Array:
        """Output tokens after the first one. [-]"""
        return np.asarray(np.maximum(self.output_length - 1.0, 0.0))

    @derived
    def context_length(self) -> Array:
        """Tokens of prompt and output. [-]"""
        return np.asarray(self.prompt_length + self.output_length)

    @derived
    def requests_of_fullest(self) -> Array:
        """Requests in flight on the replica that has most of them. [-]"""
        return np.asarray(np.ceil(self.concurrency / np.maximum(self.num_replicas, 1.0)))

    @derived
    def attention_parallel(self) -> Array:
        """Ranks that share the heads of one attention replica. [-]"""
        return np.asarray(self.tensor_parallel / self.data_parallel_attention)

    @property
    def expert_tensor_parallel(self) -> Array:
        """Ranks that share each routed expert. [-]"""
        return np.asarray(self.tensor_parallel / self.expert_parallel)

    @derived
    def new_tokens(self) -> Array:
        """Tokens of a prompt that are not in the cache: the last one has to be computed. [-]"""
        return np.asarray(np.maximum(self.prompt_length * (1.0 - self.prefix_hit_rate), 1.0))

    @derived
    def prefix_tokens(self) -> Array:
        """Tokens of a prompt that are in the cache already: a prefix that all requests have in common. [-]"""
        return np.asarray(self.prompt_length - self.new_tokens)

    @derived
    def drafted_tokens(self) -> Array:
        """Tokens drafted for a decode step: no more than the output has beside its first token and the step's. [-]"""
        return np.asarray(np.minimum(self.draft_tokens, np.maximum(self.output_length - 2.0, 0.0)))

    @derived
    def tokens_per_step(self) -> Array:
        """Tokens that a sequence gains in a decode step, expected: the step's own and those accepted. [-]"""
        return accepted_tokens(self.drafted_tokens, self.acceptance_rate)

    @derived
    def own_tokens(self) -> Array:
        """New tokens of a prompt on each of the ranks that share it. [-]"""
        return np.asarray(self.new_tokens / self.context_parallel)

    @derived
    def chunks(self) -> Array:
        """Chunks that a prompt is prefilled in, mean: full passes, whose rest the next prompt fills. [-]"""
        return np.asarray(np.maximum(self.own_tokens / self.prefill_tokens, 1.0))

    @derived
    def chunk_context(self) -> Array:
        r"""Keys that a chunk attends to at its end, the cache and those so far: mean over k equal chunks of a prompt.

        .. math:: \bar s = \frac{1}{k} \sum_{i=1}^{k} \left(s - n + \frac{i n}{k}\right) = s - \frac{n (k - 1)}{2 k}
        """
        return np.asarray(self.prompt_length - 0.5 * self.new_tokens * (1.0 - 1.0 / self.chunks))

    @derived
    def running_output(self) -> Array:
        r"""Mean output of the requests in flight at a moment: long ones run longer, so that more of them are in flight.

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

    @derived
    def replica_ranks(self) -> Array:
        """Ranks of a replica of the model. [-]"""
        return np.asarray(self.stage_ranks * self.pipeline_parallel)

    @derived
    def num_replicas(self) -> Array:
        """Replicas of the model that serve side by side. [-]"""
        return np.asarray(self.num_accelerators / self.replica_ranks)

    @derived
    def num_micro_batches(self) -> Array:
        """Parts of the batch that follow each other through the stages. [-]"""
        return np.asarray(np.minimum(self.pipeline_parallel, self.batch_size))

    @derived
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
    series = (1.0 - power(rate, drafted + 1.0)) / np.where(refused == 0.0, 1.0, refused)
    return np.asarray(np.where(refused == 0.0, drafted + 1.0, series))


def with_defaults(plan: InferencePlan) -> InferencePlan:
    """Fill the blanks whose default follows from other columns, and look up bytes per element.

    Parameters
    ----------
    plan : InferencePlan
        As the sheet has it, (rows,).

    Returns
    -------
    InferencePlan
        Batch size: what the concurrency asks of a replica, else 1. Concurrency: batch size x replicas. Cache: in FP8
        with products in FP8 and FP4, else in 16 bits. Attention: in FP8 where both are, else in 16 bits.

    Examples
    --------
    100 requests in flight over 8 / 2 replicas; with FP8 products the cache is in FP8 as well:

    >>> from ideal_machine import inference_plan
    >>> plan = with_defaults(inference_plan(num_accelerators=8, tensor_parallel=2, concurrency=100, precision="fp8"))
    >>> plan.batch_size.tolist(), plan.kv_size.tolist()
    ([25.0], [1.0])
    """
    ranks = plan.tensor_parallel * plan.context_parallel * plan.pipeline_parallel
    replicas = np.maximum(plan.num_accelerators / ranks, 1.0)
    asked = plan.concurrency
    share = np.where(np.isnan(asked), 1.0, np.ceil(asked / replicas))
    batch = np.where(np.isnan(plan.batch_size), share, plan.batch_size)
    return plan.replaced(
        batch_size=batch,
        concurrency=np.where(np.isnan(asked), batch * replicas, asked),
        prompts_together=np.zeros_like(batch),
        weight_size=_WEIGHT_SIZES[plan.weight_codes],
        input_size=_INPUT_SIZES[plan.product_codes],
        activation_size=_ELEMENT_SIZES[plan.product_codes],
        kv_size=_WEIGHT_SIZES[plan.cache_codes],
        attention_size=_WEIGHT_SIZES[plan.attention_codes],
    )


def pool_plans(plan: InferencePlan) -> tuple[InferencePlan, Array, np.ndarray]:
    """Separate pools as plans of their own, and the requests in flight over all of them.

    Accelerators are divided in half unless a plan says how many prefill. A pool in which no token is sent to experts
    leaves out how they are sent. Batches are 1: the load on a pool follows from that on all. Where there is an expert
    pool, the pool that decodes computes what is not feed-forward: its degrees are those of attention, and its experts
    are split over the ranks that the expert pool has for each replica.

    Parameters
    ----------
    plan : InferencePlan
        As the sheet has it, (rows,).

    Returns
    -------
    pools : InferencePlan
        The pools that decode, then those that prefill, then expert pools, (2 x rows + expert pools,), each with its
        own accelerators and degrees.
    requests : Array
        Requests in flight over all pools, (rows,). [-]
    split : np.ndarray
        Plans with an expert pool, (expert pools,).

    Examples
    --------
    Four accelerators, one of which prefills: a replica each, one request in flight for each of the three that decode.

    >>> from ideal_machine import inference_plan
    >>> stated = inference_plan(num_accelerators=4, prefill_accelerators=1, mode="disaggregated")
    >>> pools, requests, _ = pool_plans(stated)
    >>> pools.num_accelerators.tolist(), requests.tolist()
    ([3.0, 1.0], [3.0])
    """
    total, asked = plan.num_accelerators, plan.prefill_accelerators
    prefill = np.where(np.isnan(asked), np.floor(0.5 * total), asked)
    experts = known_or(plan.expert_accelerators, 0.0) + 0.0 * total
    decode = total - prefill - experts
    own = {name: getattr(plan, name) for name in POOL_DEGREES}
    given = {name: getattr(plan, f"prefill_{name}") for name in POOL_DEGREES}
    other = {name: np.where(np.isnan(values), own[name], values) for name, values in given.items()}
    degrees = {name: np.concatenate([own[name], other[name]]) for name in POOL_DEGREES}
    decoders = decode / (own["tensor_parallel"] * own["context_parallel"] * own["pipeline_parallel"])
    batch, concurrency = plan.batch_size, plan.concurrency
    requests = np.where(np.isnan(concurrency), np.where(np.isnan(batch), 1.0, batch) * decoders, concurrency)
    here, there = own["data_parallel_attention"] > 1.0, other["data_parallel_attention"] > 1.0
    sends = np.concatenate([here | ~there, there | ~here])
    rows = np.arange(len(total))
    both = plan.take(np.concatenate([rows, rows]))
    pools = both.replaced(
        **degrees,
        num_accelerators=np.concatenate([decode, prefill]),
        expert_dispatch=np.where(sends, both.expert_dispatch, ExpertDispatch.RANKS),
        two_batch_overlap=np.where(sends, both.two_batch_overlap, 0.0),
        batch_size=np.ones(2 * len(total)),
        concurrency=np.full(2 * len(total), np.nan),
    )
    split = np.flatnonzero(experts > 0.0)
    return (pools if not len(split) else _with_expert_pools(pools, split, experts)), np.asarray(requests), split


def _with_expert_pools(pools: InferencePlan, split: np.ndarray, experts: Array) -> InferencePlan:
    """Pools with those of the experts behind them, a replica's share of their ranks as one group."""
    number = len(experts)
    every = pools.take(np.concatenate([np.arange(2 * number), split]))
    part = np.full(len(every), LayerPart.WHOLE)
    part[split], part[2 * number :] = LayerPart.ATTENTION, LayerPart.EXPERTS
    own, one = slice(2 * number, None), np.ones(len(split))
    ranks = divide(experts[split], pools.num_replicas[split], np.nan)
    of_experts = {
        "num_accelerators": experts[split],
        "tensor_parallel": ranks,
        "data_parallel_attention": pools.expert_parallel[split],  # what all tokens pass is shared as an expert is
        "pipeline_parallel": one,
        "context_parallel": one,
    }
    columns = {name: getattr(every, name).copy() for name in (*of_experts, "expert_parallel")}
    for name, values in of_experts.items():
        columns[name][own] = values
    columns["expert_parallel"][split] = 1.0
    return every.replaced(**columns, layer_part=part)
