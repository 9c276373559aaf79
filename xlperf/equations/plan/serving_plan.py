"""An inference plan: the columns of the sheet, their defaults, and quantities that follow from them."""

from __future__ import annotations

import numpy as np

from xlperf.base.arrays import Array, array, divide, known_or, power
from xlperf.equations.plan.dimensions import POOL_DEGREES, REPLICA, product
from xlperf.equations.plan.records import (
    PRECISION_CODES,
    PRECISIONS,
    ContextMethod,
    ExpertDispatch,
    PlanColumns,
    derived,
)

SERVED_PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4", "fp8-block", "fp8-tensor")
"""Precisions of weights, in the order of the sheet's choices; except for kinds of FP8 also of the key-value cache."""
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


class LayerPart:
    """Part of each layer that a pool computes: all of it, attention, or the feed-forward part."""

    WHOLE, ATTENTION, EXPERTS = 0.0, 1.0, 2.0


class InferencePlan(PlanColumns):
    """Columns of inference plans as the sheet ``inference`` has them, (rows,), and quantities that follow from them."""

    # Filled in by :func:`with_defaults`.
    weight_size: Array  # bytes of a weight of the layers, its share of the scales included [B]
    input_size: Array  # bytes of an element of the other GEMM input [B]
    activation_size: Array  # bytes of an activation between GEMMs, of embeddings and of logits [B]
    kv_size: Array  # bytes of an element of the key-value cache [B]
    attention_size: Array  # bytes of an element of queries, keys and values in prefill attention [B]
    layer_part: Array  # :class:`LayerPart` of a pool; a column only if some plans have an expert pool [-]
    prompts_together: Array  # prompts per prefill pass beside decoding; 0: the whole batch is prefilled [-]

    def computes(self, part: float) -> Array | None:
        """1 for pools that compute a :class:`LayerPart`, else 0, (rows,); None if no plan has an expert pool."""
        layer_part = self.__dict__["_columns"].get("layer_part")
        if layer_part is None:
            return None
        return np.where((layer_part == LayerPart.WHOLE) | (layer_part == part), 1.0, 0.0)

    @property
    def ffn_part(self) -> Array:
        """1 for pools that compute the feed-forward layers. [-]"""
        part = self.computes(LayerPart.EXPERTS)
        return np.ones(1) if part is None else part

    @derived
    def weight_codes(self) -> np.ndarray:
        """Position of the weight precision in SERVED_PRECISIONS. [-]"""
        return np.asarray(self.precision.astype(np.int64))

    @derived
    def product_codes(self) -> np.ndarray:
        """Position of the GEMM precision: the activation precision if given, else the weight precision. [-]"""
        given = self.activation_precision
        return np.where(np.isnan(given), self.precision, given).astype(np.int64)

    @derived
    def cache_codes(self) -> np.ndarray:
        """Position of the cache precision: as given, else FP8 with GEMMs in FP8 and FP4, else 16 bits. [-]"""
        given = self.kv_precision
        return np.where(np.isnan(given), _CACHES[self.product_codes], given).astype(np.int64)

    @derived
    def attention_codes(self) -> np.ndarray:
        """Position of the attention precision: FP8 if GEMMs and cache are narrow floats, else 16 bits. [-]"""
        narrow = _NARROW_FLOAT[self.cache_codes] & _NARROW_FLOAT[self.product_codes]
        return np.where(narrow, _FP8, np.where(self.product_codes == _FP32, _FP32, _BF16))

    @property
    def weight_precision(self) -> np.ndarray:
        """Name of the precision of the weights. [-]"""
        return np.asarray(_NAMES[self.weight_codes])

    @property
    def product_precision(self) -> np.ndarray:
        """Name of the GEMM precision. [-]"""
        return np.asarray(_NAMES[self.product_codes])

    @property
    def product_precisions(self) -> np.ndarray:
        """Names of the GEMM precisions that the weights allow. [-]"""
        return np.asarray(_MULTIPLIED[self.weight_codes])

    @property
    def multiplies(self) -> np.ndarray:
        """The weights allow the GEMM precision: they may be widened, never narrowed. [-]"""
        return np.asarray(_PRODUCTS[self.weight_codes, self.product_codes])

    @derived
    def four_bits(self) -> np.ndarray:
        """Weights are stored in 4 bits. [-]"""
        return np.asarray(_FOUR_BITS[self.weight_codes])

    @property
    def stored_in_table(self) -> np.ndarray:
        """Position of the weight precision in PRECISIONS. [-]"""
        return np.asarray(_IN_TABLE[self.weight_codes])

    @property
    def attention_in_table(self) -> np.ndarray:
        """Position of the attention precision in PRECISIONS. [-]"""
        return np.asarray(_IN_TABLE[self.attention_codes])

    @derived
    def ring(self) -> Array:
        """1 for ring attention, which overlaps the exchange of keys and values; 0 if they are gathered first. [-]"""
        return np.where(self.context_method == ContextMethod.RING, 1.0, 0.0)

    @derived
    def sent_to_nodes(self) -> np.ndarray:
        """A token is sent once to each node of its experts, which forwards it to their ranks. [-]"""
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
        """Requests in flight on the busiest replica. [-]"""
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
        """Prompt tokens to prefill: without the cached prefix, at least the last one. [-]"""
        return np.asarray(np.maximum(self.prompt_length * (1.0 - self.prefix_hit_rate), 1.0))

    @derived
    def prefix_tokens(self) -> Array:
        """Prompt tokens in the cache already: a prefix shared by all requests. [-]"""
        return np.asarray(self.prompt_length - self.new_tokens)

    @derived
    def drafted_tokens(self) -> Array:
        """Tokens drafted per decode step, at most the output without its first token and the token of the step. [-]"""
        return np.asarray(np.minimum(self.draft_tokens, np.maximum(self.output_length - 2.0, 0.0)))

    @derived
    def tokens_per_step(self) -> Array:
        """Expected tokens of a sequence per decode step: one, and the accepted drafts. [-]"""
        return accepted_tokens(self.drafted_tokens, self.acceptance_rate)

    @derived
    def own_tokens(self) -> Array:
        """New tokens of a prompt per context-parallel rank. [-]"""
        return np.asarray(self.new_tokens / self.context_parallel)

    @derived
    def chunks(self) -> Array:
        """Mean prefill chunks per prompt; a prompt shares its last pass with the next prompt. [-]"""
        return np.asarray(np.maximum(self.own_tokens / self.prefill_tokens, 1.0))

    @derived
    def chunk_context(self) -> Array:
        r"""Keys that the last token of a chunk attends to: mean over k equal chunks of a prompt. [-]

        .. math:: \bar s = \frac{1}{k} \sum_{i=1}^{k} \left(s - n + \frac{i n}{k}\right) = s - \frac{n (k - 1)}{2 k}
        """
        return np.asarray(self.prompt_length - 0.5 * self.new_tokens * (1.0 - 1.0 / self.chunks))

    @derived
    def running_output(self) -> Array:
        r"""Mean output length of the requests in flight, of which long ones are a larger share. [-]

        .. math:: \frac{E[N^2]}{E[N]} = \bar N (1 + v^2)
        """
        return np.asarray(self.output_length * (1.0 + self.output_variation * self.output_variation))

    @property
    def layers_drafted(self) -> Array:
        """Layers of the draft model on a replica. [-]"""
        return np.asarray(np.where(self.draft_tokens > 0.0, self.draft_layers, 0.0))

    @property
    def stage_ranks(self) -> Array:
        """Ranks of one stage. [-]"""
        return product(self, (each for each in REPLICA if each.axis != "pp"))

    @derived
    def replica_ranks(self) -> Array:
        """Ranks of a replica of the model. [-]"""
        return product(self, REPLICA)

    @derived
    def num_replicas(self) -> Array:
        """Replicas of the model. [-]"""
        return np.asarray(self.num_accelerators / self.replica_ranks)

    @derived
    def num_micro_batches(self) -> Array:
        """Micro-batches of the batch in the pipeline. [-]"""
        return np.asarray(np.minimum(self.pipeline_parallel, self.batch_size))

    @derived
    def micro_batch_size(self) -> Array:
        """Sequences of the largest micro-batch. [-]"""
        return np.asarray(np.ceil(self.batch_size / self.num_micro_batches))


def accepted_tokens(draft_tokens: Array, acceptance_rate: Array) -> Array:
    r"""Expected tokens of a verified draft: the accepted prefix, and one token from the verification.

    .. math:: N = 1 + \sum_{i=1}^{n} a^i = \frac{1 - a^{n+1}}{1 - a}

    Parameters
    ----------
    draft_tokens : Array
        Tokens drafted n. [-]
    acceptance_rate : Array
        Probability a that a drafted token is accepted if all tokens before it are. [-]

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
    """Fill the blanks that follow from other columns, and look up bytes per element.

    Batch size: the concurrency per replica, else 1. Concurrency: batch size x replicas.

    100 requests in flight over 8 / 2 replicas; with FP8 GEMMs the cache is in FP8 as well:

    >>> from ideal_machine import inference_plan
    >>> plan = with_defaults(inference_plan(num_accelerators=8, tensor_parallel=2, concurrency=100, precision="fp8"))
    >>> plan.batch_size.tolist(), plan.kv_size.tolist()
    ([25.0], [1.0])
    """
    replicas = np.maximum(plan.num_accelerators / plan.replica_ranks, 1.0)
    concurrency = plan.concurrency
    share = np.where(np.isnan(concurrency), 1.0, np.ceil(concurrency / replicas))
    batch = np.where(np.isnan(plan.batch_size), share, plan.batch_size)
    return plan.replaced(
        batch_size=batch,
        concurrency=np.where(np.isnan(concurrency), batch * replicas, concurrency),
        prompts_together=np.zeros_like(batch),
        weight_size=_WEIGHT_SIZES[plan.weight_codes],
        input_size=_INPUT_SIZES[plan.product_codes],
        activation_size=_ELEMENT_SIZES[plan.product_codes],
        kv_size=_WEIGHT_SIZES[plan.cache_codes],
        attention_size=_WEIGHT_SIZES[plan.attention_codes],
    )


def pool_plans(plan: InferencePlan) -> tuple[InferencePlan, Array, np.ndarray]:
    """Separate pools as plans of batch 1, the requests in flight over all of them, and the rows with expert pools.

    The plans are the decode pools, then the prefill pools, then the expert pools. Half of the accelerators prefill
    unless the plan says how many. Beside an expert pool the decode pool computes attention alone.

    Four accelerators, one of which prefills: a replica each, one request in flight for each decode replica.

    >>> from ideal_machine import inference_plan
    >>> stated = inference_plan(num_accelerators=4, prefill_accelerators=1, mode="disaggregated")
    >>> pools, requests, _ = pool_plans(stated)
    >>> pools.num_accelerators.tolist(), requests.tolist()
    ([3.0, 1.0], [3.0])
    """
    total = plan.num_accelerators
    prefill = known_or(plan.prefill_accelerators, np.floor(0.5 * total))
    experts = known_or(plan.expert_accelerators, 0.0) + 0.0 * total
    decode = total - prefill - experts

    # degrees of the decode pools and of the prefill pools behind them
    decoding = {name: getattr(plan, name) for name in POOL_DEGREES}
    prefilling = {name: known_or(getattr(plan, f"prefill_{name}"), values) for name, values in decoding.items()}
    degrees = {name: np.concatenate([decoding[name], prefilling[name]]) for name in POOL_DEGREES}
    requests = known_or(plan.concurrency, known_or(plan.batch_size, 1.0) * (decode / plan.replica_ranks))

    # a pool without attention replicas sends no token to experts, unless neither pool has them
    here, there = decoding["data_parallel_attention"] > 1.0, prefilling["data_parallel_attention"] > 1.0
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
    """Pools followed by expert pools, whose ranks per decode replica are one tensor-parallel group."""
    number = len(experts)
    every = pools.take(np.concatenate([np.arange(2 * number), split]))
    part = np.full(len(every), LayerPart.WHOLE)
    part[split], part[2 * number :] = LayerPart.ATTENTION, LayerPart.EXPERTS
    ones = np.ones(len(split))
    of_experts = {
        "num_accelerators": experts[split],
        "tensor_parallel": divide(experts[split], pools.num_replicas[split], np.nan),
        "data_parallel_attention": pools.expert_parallel[split],  # dense layers are split over the ranks of an expert
        "pipeline_parallel": ones,
        "context_parallel": ones,
    }
    columns = {name: getattr(every, name).copy() for name in (*of_experts, "expert_parallel")}
    for name, values in of_experts.items():
        columns[name][2 * number :] = values
    columns["expert_parallel"][split] = 1.0
    return every.replaced(**columns, layer_part=part)
