"""An inference plan: the columns of the sheet, their defaults, and quantities that follow from them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from xlperf.base.arrays import Array, array, divide, known_or, power, some
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
    product,
    product_of_words,
    whole_number,
)
from xlperf.equations.plan.records import (
    PRECISION_CODES,
    PRECISIONS,
    Codes,
    ContextMethod,
    ExpertDispatch,
    Mode,
    OffloadTarget,
    PlanColumns,
    Rule,
    derived,
    mask,
    quantity,
)

SERVED_PRECISIONS = ("fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4", "fp8-block", "fp8-tensor", "mxfp4",
                     "int4-128", "int4-64", "int8-128")  # fmt: skip
"""Precisions of weights, in the order of the sheet's choices, whose last one is ``auto``; the first seven also of the
key-value cache."""
PARTS = ("attention", "mlp", "shared", "head")
"""Parts of a checkpoint with a precision of their own beside the plan's, which is that of routed experts or, in a dense
model, of the feed-forward layers: attention, dense feed-forward layers of a mixture, shared experts, output head."""
_SERVED = [PRECISIONS[name] for name in SERVED_PRECISIONS]
_WEIGHT_SIZES = np.array([each.served_size for each in _SERVED])
_INPUT_SIZES = np.array([each.input_size for each in _SERVED])
_ELEMENT_SIZES = np.array([each.element_size for each in _SERVED])
_CACHES = np.array([SERVED_PRECISIONS.index(each.cache) for each in _SERVED])
_IN_TABLE = np.array([PRECISION_CODES[name] for name in SERVED_PRECISIONS])
_PRODUCTS = np.array([[name in each.products for name in SERVED_PRECISIONS] for each in _SERVED])
_FOUR_BITS = np.array([each.weight_size < 1.0 for each in _SERVED])
_NARROW_FLOAT = np.array([name.startswith("fp8") or name.endswith("fp4") for name in SERVED_PRECISIONS])
_NAMES = np.array(SERVED_PRECISIONS, dtype=object)
_MULTIPLIED = np.array([", ".join(each.products) for each in _SERVED], dtype=object)
_FP32, _BF16, _FP8 = (SERVED_PRECISIONS.index(name) for name in ("fp32", "bf16", "fp8"))


LayerPart = Codes("WHOLE ATTENTION EXPERTS")
"""Part of each layer that a pool computes: all of it, attention, or the feed-forward part."""


class InferencePlan(PlanColumns):
    """Columns of inference plans as the sheet ``inference`` has them, (rows,), and quantities that follow from them."""

    # Filled in by :func:`with_defaults`.
    weight_size: Array  # bytes of a weight of the layers, its share of the scales included [B]
    input_size: Array  # bytes of an element of the other GEMM input [B]
    activation_size: Array  # bytes of an activation between GEMMs, of embeddings and of logits [B]
    kv_size: Array  # bytes of an element of the key-value cache [B]
    attention_size: Array  # bytes of an element of queries, keys and values in prefill attention [B]
    layer_part: Array  # :class:`LayerPart` of a pool; a column only if some plans have an expert pool [-]
    # Columns only if some plans take the formats of their checkpoint part by part, NaN for other plans. For each of
    # PARTS: ``attention_weight_size``, bytes of a weight; ``attention_product_size``, of the other GEMM input [B];
    # ``attention_product``, position of the GEMM precision in PRECISIONS. ``main_weight_size``: of routed experts [B]
    prompts_together: Array  # prompts per prefill pass beside decoding; 0: the whole batch is prefilled [-]

    def computes(self, part: float) -> Array | None:
        """1 for pools that compute a :class:`LayerPart`, else 0, (rows,); None if no plan has an expert pool."""
        layer_part = self.__dict__["_columns"].get("layer_part")
        if layer_part is None:
            return None
        return np.where((layer_part == LayerPart.WHOLE) | (layer_part == part), 1.0, 0.0)

    def part_sizes(self, part: str) -> tuple[Array, Array] | None:
        """Bytes of a weight and of the other GEMM input of one of PARTS, (rows,); None if no plan has its own."""
        columns = self.__dict__["_columns"]
        name = f"{part}_weight_size"
        return (columns[name], columns[f"{part}_product_size"]) if name in columns else None

    @property
    def ffn_part(self) -> Array:
        """1 for pools that compute the feed-forward layers. [-]"""
        part = self.computes(LayerPart.EXPERTS)
        return np.ones(1) if part is None else part

    # Position of the weight precision in SERVED_PRECISIONS; 16 bits if the formats of a checkpoint are not looked up
    weight_codes = mask(lambda plan: np.where(plan.precision < len(_SERVED), plan.precision, _BF16).astype(np.int64))

    @derived
    def product_codes(self) -> np.ndarray:
        """Position of the GEMM precision: the activation precision if given, else the weight precision. [-]"""
        given = self.activation_precision
        return np.where(np.isnan(given), self.weight_codes, given).astype(np.int64)

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

    # Name of the precision of the weights
    weight_precision = mask(lambda plan: _NAMES[plan.weight_codes])
    # Name of the GEMM precision
    product_precision = mask(lambda plan: _NAMES[plan.product_codes])
    # Names of the GEMM precisions that the weights allow
    product_precisions = mask(lambda plan: _MULTIPLIED[plan.weight_codes])
    # The weights allow the GEMM precision: they may be widened, never narrowed
    multiplies = mask(lambda plan: _PRODUCTS[plan.weight_codes, plan.product_codes])
    # Weights are stored in 4 bits
    four_bits = mask(lambda plan: _FOUR_BITS[plan.weight_codes])
    # Weights are stored in FP8 or FP4
    is_float = mask(lambda plan: _NARROW_FLOAT[plan.weight_codes])
    # Position of the weight precision in PRECISIONS
    stored_in_table = mask(lambda plan: _IN_TABLE[plan.weight_codes])
    # Position of the attention precision in PRECISIONS
    attention_in_table = mask(lambda plan: _IN_TABLE[plan.attention_codes])
    # Products of the plan that matrix units usually compute in the time of one in 16 bits [-]
    products_in_time = quantity(lambda plan: np.maximum(np.round(2.0 / _INPUT_SIZES[plan.product_codes]), 1.0))
    # 1 for ring attention, which overlaps the exchange of keys and values; 0 if they are gathered first [-]
    ring = quantity(lambda plan: np.where(plan.context_method == ContextMethod.RING, 1.0, 0.0))
    # A token is sent once to each node of its experts, which forwards it to their ranks
    sent_to_nodes = mask(lambda plan: plan.expert_dispatch == ExpertDispatch.NODES)
    # Output tokens after the first one [-]
    tokens_after_first = quantity(lambda plan: np.maximum(plan.output_length - 1.0, 0.0))
    # Tokens of prompt and output [-]
    context_length = quantity(lambda plan: plan.prompt_length + plan.output_length)
    # Requests in flight on the busiest replica [-]
    requests_of_fullest = quantity(lambda plan: np.ceil(plan.concurrency / np.maximum(plan.num_replicas, 1.0)))
    # Ranks that share the heads of one attention replica [-]
    attention_parallel = quantity(lambda plan: plan.tensor_parallel / plan.data_parallel_attention)
    # Ranks that share each routed expert [-]
    expert_tensor_parallel = quantity(lambda plan: plan.tensor_parallel / plan.expert_parallel)
    # Prompt tokens to prefill: without the cached prefix, at least the last one [-]
    new_tokens = quantity(lambda plan: np.maximum(plan.prompt_length * (1.0 - plan.shared_prefix), 1.0))
    # Prompt tokens in the cache already: a prefix shared by all requests [-]
    prefix_tokens = quantity(lambda plan: plan.prompt_length - plan.new_tokens)
    # Tokens drafted per decode step, at most the output without its first token and the token of the step [-]
    drafted_tokens = quantity(lambda plan: np.minimum(plan.draft_tokens, np.maximum(plan.output_length - 2.0, 0.0)))
    # Expected tokens of a sequence per decode step: one, and the accepted drafts [-]
    tokens_per_step = quantity(lambda plan: accepted_tokens(plan.drafted_tokens, plan.acceptance_rate))
    # New tokens of a prompt per context-parallel rank [-]
    own_tokens = quantity(lambda plan: plan.new_tokens / plan.context_parallel)
    # Mean prefill chunks per prompt; a prompt shares its last pass with the next prompt [-]
    chunks = quantity(lambda plan: np.maximum(plan.own_tokens / plan.prefill_tokens, 1.0))

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

    # Layers of the draft model on a replica [-]
    layers_drafted = quantity(lambda plan: np.where(plan.draft_tokens > 0.0, plan.draft_layers, 0.0))
    # Ranks of one stage [-]
    stage_ranks = quantity(lambda plan: product(plan, (each for each in REPLICA if each.axis != "pp")))
    # Ranks of a replica of the model [-]
    replica_ranks = quantity(lambda plan: product(plan, REPLICA))
    # Replicas of the model [-]
    num_replicas = quantity(lambda plan: plan.num_accelerators / plan.replica_ranks)
    # Micro-batches of the batch in the pipeline [-]
    num_micro_batches = quantity(lambda plan: np.minimum(plan.pipeline_parallel, plan.batch_size))
    # Sequences of the largest micro-batch [-]
    micro_batch_size = quantity(lambda plan: np.ceil(plan.batch_size / plan.num_micro_batches))


def holds_weights(plan: InferencePlan) -> bool:
    """Whether any plan keeps weights in the host's memory."""
    return some(plan.host_experts_share > 0.0) or some(plan.host_weights_share > 0.0)


def accepted_tokens(draft_tokens: Array, acceptance_rate: Array) -> Array:
    r"""Expected tokens of a verified draft: the accepted prefix, and one token from the verification.

    .. math:: N = 1 + \sum_{i=1}^{n} a^i = \frac{1 - a^{n+1}}{1 - a}

    Source: Y. Leviathan, M. Kalman and Y. Matias, "Fast inference from transformers via speculative decoding", 2023,
    arXiv:2211.17192, equation 1.

    >>> accepted_tokens(np.array([3.0, 3.0, 3.0]), np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 1.875, 4.0]

    Parameters
    ----------
    draft_tokens : Tokens drafted n. [-]
    acceptance_rate : Probability a that a drafted token is accepted if all tokens before it are. [-]

    Returns
    -------
    Array : Between 1 and n + 1. [-]
    """
    drafted, rate = array(draft_tokens), array(acceptance_rate)
    refused = 1.0 - rate
    series = (1.0 - power(rate, drafted + 1.0)) / np.where(refused == 0.0, 1.0, refused)
    return np.asarray(np.where(refused == 0.0, drafted + 1.0, series))


def with_defaults(plan: InferencePlan) -> InferencePlan:
    """Fill the blanks that follow from other columns, and look up bytes per element.

    Batch size: the concurrency per replica, else 1. Concurrency: batch size x replicas. 100 requests in flight over 8 /
    2 replicas; with FP8 GEMMs the cache is in FP8 as well:

    >>> from ideal_machine import inference_plan
    >>> plan = with_defaults(inference_plan(num_accelerators=8, tensor_parallel=2, concurrency=100, precision="fp8"))
    >>> plan.batch_size.tolist(), plan.kv_size.tolist()
    ([25.0], [1.0])
    """
    replicas = np.maximum(plan.num_accelerators / plan.replica_ranks, 1.0)
    concurrency = plan.concurrency
    share = np.where(np.isnan(concurrency), 1.0, np.ceil(concurrency / replicas))
    batch = np.where(np.isnan(plan.batch_size), share, plan.batch_size)
    stored = plan.__dict__["_columns"].get("main_weight_size", np.full(1, np.nan))
    return plan.replaced(
        batch_size=batch,
        concurrency=np.where(np.isnan(concurrency), batch * replicas, concurrency),
        prompts_together=np.zeros_like(batch),
        weight_size=known_or(stored, _WEIGHT_SIZES[plan.weight_codes]),
        input_size=_INPUT_SIZES[plan.product_codes],
        activation_size=_ELEMENT_SIZES[plan.product_codes],
        kv_size=_WEIGHT_SIZES[plan.cache_codes],
        attention_size=_WEIGHT_SIZES[plan.attention_codes],
    )


def pool_plans(plan: InferencePlan) -> tuple[InferencePlan, Array, np.ndarray]:
    """Separate pools as plans of batch 1, the requests in flight over all of them, and the rows with expert pools.

    The plans are the decode pools, then the prefill pools, then the expert pools. Half of the accelerators prefill
    unless the plan says how many. Beside an expert pool the decode pool computes attention alone. Four accelerators,
    one of which prefills: a replica each, one request in flight for each decode replica.

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


# fmt: off
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
    Rule(lambda plan, model: (plan.prefill_first > 0.0) & np.isnan(plan.run_requests) & (plan.mode == Mode.CONTINUOUS),
         "prefill first applies to a run only; set run requests"),
    Rule(lambda plan, model: (plan.arrival_variation != 1.0) & np.isnan(plan.request_rate),
         "arrival variation needs a request rate: a constant number in flight has no arrivals of its own"),
)
# fmt: on
"""Columns of some modes only; of plans as the sheet has them."""

# fmt: off
POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(lambda plan, model: (plan.decode_pool_size < 1.0) | (plan.prefill_pool_size < 1.0),
         "{num_accelerators} accelerators cannot be divided into a prefill pool and a decoding pool; set prefill"
         " accelerators"),
    _with_pool(lambda plan: plan.pipeline_parallel > 1.0,
               "expert accelerators and pipeline parallel {pipeline_parallel}: micro-batches of an expert pool pass all"
               " layers of one stage; use 1"),
    _with_pool(lambda plan: plan.two_batch_overlap > 0.0,
               "two batch overlap beside expert accelerators: ping pong batches overlap already"),
    _with_pool(lambda plan: plan.host_experts_share + plan.host_weights_share > 0.0,
               "weights in the host's memory beside expert accelerators are not modelled; leave host experts share and"
               " host weights share at 0"),
    _with_pool(lambda plan: plan.adapters > 0.0,
               "adapters beside expert accelerators are not modelled; use adapters 0"),
    _with_pool(lambda plan: plan.sent_to_nodes,
               "expert dispatch nodes is not modelled with expert accelerators; use ranks"),
)
# fmt: on
"""Of plans with separate pools of known sizes."""

# fmt: off
EXPERT_POOL_RULES: tuple[Rule[InferencePlan], ...] = (
    EXPERTS_NEEDED,
    Rule(lambda plan, model: fraction(plan.tensor_parallel),
         "the replicas of attention do not divide its {num_accelerators} accelerators"),
    Rule(lambda plan, model: fraction(plan.expert_tensor_parallel),
         "expert parallel {expert_parallel} does not divide the {tensor_parallel} ranks of a replica"),
    EXPERTS_DIVIDE,
    EXPERT_WIDTH,
    DENSE_WIDTH,
)
# fmt: on
"""Of expert pools, whose tensor parallel degree is the ranks of a replica."""

# fmt: off
REQUEST_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(lambda plan, model: plan.context_length > plan.max_context,
         "prompt and output are {context_length} tokens, beyond max context {max_context}", "max_context"),
    Rule(lambda plan, model: ~np.isnan(plan.request_rate) & (plan.mode == Mode.STATIC),
         'request rate {request_rate} needs mode continuous or disaggregated, not "static"; or give a batch size or'
         ' concurrency'),
    Rule(lambda plan, model: ~np.isnan(plan.request_rate) & ~(np.isnan(plan.batch_size) & np.isnan(plan.concurrency)),
         "request rate {request_rate} beside a batch size or concurrency: give one of them"),
    Rule(lambda plan, model: ~np.isnan(plan.host_weights) & (plan.host_experts_share + plan.host_weights_share > 0.0),
         "host weights beside host experts share or host weights share: give bytes or shares", "host_weights"),
    Rule(lambda plan, model: ~np.isnan(plan.activation_precision) & ~plan.multiplies,
         "activation precision {product_precision} does not go with weights in {weight_precision}; use"
         " {product_precisions}", "activation_precision"),
)
# fmt: on
"""Load and precisions; of plans as the sheet has them."""

_WHOLE = ("num_accelerators", "prompt_length", "output_length", "batch_size", "concurrency", "redundant_experts",
          "max_running_batch", "max_context", "state_slots", "graph_tokens")  # fmt: skip


def _sends_no_token(plan: InferencePlan, model: Model) -> np.ndarray:
    """No token is sent to experts: the model has none, or all ranks hold the same tokens."""
    return np.asarray((model.num_experts == 0.0) | (plan.data_parallel_attention == 1.0))


# fmt: off
SERVING_RULES: tuple[Rule[InferencePlan], ...] = (
    *map(whole_number, (*_WHOLE, *POOL_DEGREES)),
    Rule(lambda plan, model: fraction(plan.num_replicas),
         f"{product_of_words(REPLICA)} is {{replica_ranks}} ranks, which do not divide the {{num_accelerators}}"
         " accelerators of the plan"),
    *(rule for dimension in SERVING_DIMENSIONS for rule in dimension.rules),
    Rule(lambda plan, model: (plan.two_batch_overlap > 0.0) & _sends_no_token(plan, model),
         "two batch overlap needs a mixture of experts and data parallel attention above 1: else no token is sent"),
    Rule(lambda plan, model: plan.sent_to_nodes & _sends_no_token(plan, model),
         "expert dispatch nodes needs a mixture of experts and data parallel attention above 1: else no token is sent"),
    Rule(lambda plan, model: (plan.graph_tokens > 0.0) & (plan.graphs == 0.0),
         "graph tokens {graph_tokens} beside graphs no: the host launches every kernel; leave one of them blank"),
    Rule(lambda plan, model: (plan.offload_target == OffloadTarget.DRIVE) & (plan.kv_offload <= 0.0),
         "offload target drive needs a share of the cache to offload: set kv offload", "offload_target"),
    Rule(lambda plan, model: (plan.host_experts_share > 0.0) & (model.num_experts == 0.0),
         "host experts share {host_experts_share} needs a mixture of experts; use host weights share",
         "host_experts_share"),
    Rule(lambda plan, model: (plan.host_experts_share + plan.host_weights_share > 0.0) & (plan.two_batch_overlap > 0.0),
         "weights in the host's memory beside two batch overlap are not modelled; use two batch overlap no"),
    Rule(lambda plan, model: (plan.adapters > 0.0) & np.isnan(plan.adapter_rank), "adapters need an adapter rank",
         "adapters"),
    Rule(lambda plan, model: (plan.adapters == 0.0) & ~np.isnan(plan.resident_adapters),
         "resident adapters {resident_adapters} need adapters: give their number", "resident_adapters"),
    Rule(lambda plan, model: ((model.num_selected_layers + model.latent_attention + model.num_linear_layers
                               + model.uneven + model.local_heads + model.per_layer_size + model.latent_gate > 0.0)
                              & (plan.adapters > 0.0)),
         "adapters are modelled beside plain attention with layers alike; this model has other layers", "adapters"),
    Rule(lambda plan, model: (plan.redundant_experts > 0.0) & (model.num_experts == 0.0),
         "redundant experts {redundant_experts} need a mixture of experts; use 0", "redundant_experts"),
    Rule(lambda plan, model: ~fraction(plan.num_replicas) & (plan.requests_of_fullest != plan.batch_size),
         "batch size {batch_size} does not agree with concurrency {concurrency} on {num_replicas} replicas; give one of"
         " the two"),
)
# fmt: on
"""Degrees, lengths and batch; of a pool or of all replicas, defaults filled in."""

# fmt: off
CAPACITY_RULES: tuple[Rule[InferencePlan], ...] = (
    Rule(lambda plan, model: np.isinf(plan.ttft),
         "request rate {request_rate} is more than the deployment can serve: at most {max_request_rate} requests/s"),
    Rule(lambda plan, model: np.isinf(plan.ttft) & (plan.max_batch_size < 1.0),
         "the memory has no room for one request: that rate is of one at a time; evaluate a concurrency to see what is"
         " needed"),
)
# fmt: on
"""Of plans with their results: at such a request rate the queue grows without end."""

# fmt: off
WARNINGS: tuple[Rule[InferencePlan], ...] = (
    Rule(lambda plan, model: plan.context_length > plan.max_sequence_length,
         "prompt and output are {context_length} tokens, beyond the model's longest context of {max_sequence_length}"),
    Rule(lambda plan, model: plan.output_length == 1.0, "one output token: there is no tpot"),
)
# fmt: on
"""Remarks on legal plans; of plans with the longest context of their models."""
