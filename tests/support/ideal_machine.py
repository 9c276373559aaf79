"""The machine of worked examples: 1 PFLOP/s, 1 TB/s, 100 GB and 100 GB/s to each other, where nothing else takes time.

Equations of whole passes and steps take a model, a device, a network, a plan and constants of every kernel. Here
efficiencies are 1 and launches, overheads and reserves 0, so that a reader of a docstring can check its number by hand.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from xlperf.base.arrays import Array, Columns
from xlperf.catalog.calibration import declared_constants
from xlperf.catalog.table import Table
from xlperf.engine.join import plan_columns
from xlperf.equations.hardware.power import Machine, PowerLimits
from xlperf.equations.hardware.roofline import Device
from xlperf.equations.model.model import Architecture, Model
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.serving_plan import InferencePlan, pool_plans
from xlperf.equations.plan.serving_plan import with_defaults as served
from xlperf.equations.plan.training_plan import TrainingPlan
from xlperf.equations.plan.training_plan import with_defaults as trained
from xlperf.equations.serving.deployment import Deployment, engine_constants
from xlperf.equations.serving.pools import Pools, pools_of
from xlperf.equations.training.setting import Setting

ONE = np.ones(1)
LLAMA = Model.of(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_query_groups=8,
    head_size=128,
    ffn_hidden_size=14336,
    vocab_size=128256,
    gated_mlp=1,
    rotary=1,
)
"""Llama 3.1 8B."""
_ONES = ("_efficiency", "_slowdown", "_factor")
_SET = {"memory_fraction": 1.0, "of_free_memory": 1.0, "favoured_share": 1.0, "largest_tile_rows": 512.0}
_SET |= {"gradient_size": 4.0, "tile_rows": 1.0, "ranks": 1.0, "energy_per_flop": 0.0}


def constants(family: str, **changed: float) -> dict[str, Array]:
    """Constants of a family of kernels or of software: efficiencies and slowdowns 1, all that takes time or room 0."""
    found = {}
    for name in declared_constants()[family.removesuffix("_wide")]:
        value = changed.get(name, _SET.get(name, 1.0 if name.endswith(_ONES) else 0.0))
        found[name] = np.full((1, 1), value)
    return found


def model(**columns: float) -> Model:
    """One layer of width 1,000: attention with 10 heads of 100 (4 M weights), an MLP of 4,000 (8 M), 1,000 words."""
    shape = {"num_layers": 1, "hidden_size": 1000, "num_attention_heads": 10, "num_query_groups": 10, "head_size": 100}
    shape |= {"ffn_hidden_size": 4000, "vocab_size": 1000, "gated_mlp": 0, "tied_embeddings": 0, "learned_positions": 0}
    shape |= {"rotary": 1, "layer_norm": 0, "bias_qkv": 0, "bias_all": 0, "query_key_norm": 0, "dropout": 0}
    shape |= {"num_dense_layers": columns.get("num_layers", 1), "qk_head_size": 100, "v_head_size": 100, **columns}
    others = {field.name: getattr(Model(), field.name) * ONE for field in dataclasses.fields(Model)}
    return Model(**{**others, **{name: value * ONE for name, value in shape.items()}})


def experts(**columns: float) -> Model:
    """The same with 8 experts of width 4,000 (8 M weights each), two of which a token visits."""
    own = {"num_experts": 8, "top_k": 2, "num_moe_layers": 1, "num_dense_layers": 0, "expert_ffn_hidden_size": 4000}
    return model(**{**own, **columns})


def device(**columns: float) -> Device:
    """1 PFLOP/s, 1 TB/s and 100 GB; caches that never limit, no power limit."""
    own = {"peak_flop_rate": 1e15, "vector_flop_rate": 1e15, "memory_bandwidth": 1e12, "memory_capacity": 100e9}
    own |= {"l2_bandwidth": np.inf, "num_multiprocessors": np.nan, **columns}
    return Device(**{name: np.full((1, 1), value) for name, value in own.items()})


def network(**columns: float) -> Network:
    """One switch for any number of accelerators, each with 100 GB/s in either direction; no latency."""
    own = {"size": 1e6, "link_bandwidth": 100e9, "latency": 0.0, "listed": np.nan, "in_network_reduction": 0.0}
    own |= {"first_length": 1.0, "second_length": 1.0, "third_length": 1.0, "num_rings": 0.0, "num_links": 1.0}
    arrays = {name: np.full((1, 1), columns.get(name, value)) for name, value in own.items()}
    return Network(**arrays, topology=np.zeros((1, 1), dtype=np.int64))


def sparse(**columns: float) -> Model:
    """The same with an index (one head of 100) that selects 200 of the entries that a token sees."""
    own = {"num_selected_layers": 1, "num_index_layers": 1, "index_heads": 1, "index_size": 100, "index_key_size": 2}
    return model(**{**own, "index_top_k": 200, **columns})


def _architecture(shapes: Model) -> Architecture:
    structure = {"experts": bool(shapes.num_experts[0]), "sparse_attention": bool(shapes.num_selected_layers[0])}
    return Architecture(latent_attention=False, local_attention=False, **structure)


def columns(**values: Any) -> Columns:
    """Rows of a sheet: the columns given, 0 in all others."""
    return Columns(lambda name: np.asarray([values.get(name, 0.0)]))


def inference_plan(**columns: Any) -> InferencePlan:
    """A plan of the sheet inference; what is not said is its default: one accelerator, 16 bits, one request."""
    stated = {"num_accelerators": 1.0, "prompt_length": 1000.0, "output_length": 2.0, **columns}
    arrays = {n: np.array([v], dtype=object if isinstance(v, str) else float) for n, v in stated.items()}
    return plan_columns(Table("inference", arrays), InferencePlan)


def deployment(shapes: Model | None = None, plan: InferencePlan | None = None, **columns: Any) -> Deployment:
    """A served plan on the ideal machine: prompts of 1,000 tokens that are answered with 2, one at a time.

    ``plan``: plans with their defaults, in place of what ``columns`` say of one.
    """
    shapes = shapes or model()
    outside = ("training_", "power", "band")
    families = [name for name in declared_constants() if not name.startswith(outside)]
    own, architecture = device(), _architecture(shapes)
    found = {family: constants(family) for family in (*families, "gemm_wide")}
    kernels, software = engine_constants(found, architecture)
    plan = plan or served(inference_plan(**columns))
    whole = Deployment(shapes, own, network(), plan, kernels, software, 0.0 * ONE, architecture)
    if len(plan) > 1:
        one = whole.take(slice(0, 1))
        rows = np.zeros(len(plan), dtype=int)
        whole = dataclasses.replace(dataclasses.replace(whole, plan=one.plan).take(rows), plan=plan)
    return whole


def pools(shapes: Model | None = None, **columns: Any) -> tuple[Pools, Array]:
    """Separate pools on the ideal machine, and the requests in flight over both: half of the accelerators prefill."""
    plans, requests, split = pool_plans(inference_plan(mode="disaggregated", **columns))
    return pools_of(deployment(shapes, served(plans)), requests, split), requests


def power_machine() -> Machine:
    """1,000 W, 10 % of them idle and another 10 % for clocks; 1 pJ per operation, 10 pJ per byte of memory, twice with
    the way through the caches.
    """
    stated = {"idle_share": 0.1, "active_share": 0.1, "flop_energy": 1e-12, "memory_ratio": 2.0}
    own = constants("power", **stated, tile_rows=0.0, compute_intensity=1e9)
    return Machine(device(memory_energy=1e-11), PowerLimits(1000.0 * ONE, 1000.0 * ONE, ONE), own)


def setting(shapes: Model | None = None, **columns: Any) -> Setting:
    """A training plan on the ideal machine: one sequence of 1,000 tokens a step on one accelerator, 16 bits."""
    shapes = shapes or model()
    stated = {"num_accelerators": 1.0, "global_batch_size": 1.0, "sequence_length": 1000.0, **columns}
    arrays = {n: np.array([v], dtype=object if isinstance(v, str) else float) for n, v in stated.items()}
    plan = plan_columns(Table("training", arrays), TrainingPlan)
    sizes = {"product_size": 2.0, "element_size": 2.0, "cast_reads": 0.0, "fused_reads": 0.0, "turns": 0.0}
    sizes |= {"layouts": 2.0, "gathered_layouts": 2.0, "copied_gathers": 0.0}
    plan = plan.replaced(**{name: size * ONE for name, size in sizes.items()})
    families = [name for name in declared_constants() if not name.startswith("serving_")]
    found = {family: constants(family) for family in families}
    found["gemm_wide"] = found["gemm"]
    plan = trained(plan, shapes, 1000.0 * ONE, 4.0 * ONE)
    return Setting(shapes, device(), network(), plan, found, _architecture(shapes))
