"""What follows from the operators of a block: weights, shards and saved activations, for every model of the catalog."""

from __future__ import annotations

import numpy as np
import pytest

from xlperf import load_catalog
from xlperf.base.arrays import Array, total
from xlperf.engine.catalog_arrays import catalog_models
from xlperf.engine.models import architecture_codes_of, architecture_of
from xlperf.equations.model import blocks
from xlperf.equations.model.blocks import Block, Shard, Tokens, expanded, products, weights
from xlperf.equations.model.layers import layer_blocks
from xlperf.equations.model.model import Model

MODELS, _ = catalog_models(load_catalog())
COUNT = len(MODELS.num_layers)
BLOCKS = {name: block for name, block in vars(blocks).items() if isinstance(block, Block)}
HEADS = ("PLAIN", "LATENT", "SHARED_VECTOR", "LINEAR")


def shard(ranks: float) -> Shard:
    return Shard(MODELS, np.full(COUNT, ranks))


def tokens(count: float) -> Tokens:
    return Tokens(*[np.full(COUNT, count)] * 6)


@pytest.mark.parametrize("ranks", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_weights_are_the_right_hand_sides_of_the_products(name: str, ranks: float) -> None:
    block = expanded(BLOCKS[name])
    if any(operator.held or operator.layers for operator in block.operators):
        return
    gemms = products(block, shard(ranks), tokens(1.0))
    assert total(gemms.n * gemms.k * gemms.batch) == pytest.approx(weights(block, shard(ranks)), rel=1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_ranks_hold_a_model_and_copies_of_heads_that_do_not_divide(name: str) -> None:
    block = BLOCKS[name]
    whole, parts = (weights(block, shard(ranks)) for ranks in (1.0, 8.0))
    assert (8.0 * parts >= whole * (1.0 - 1e-12)).all()
    if name == "PLAIN":
        divides = (MODELS.num_query_groups % 8.0 == 0.0) & (MODELS.num_attention_heads % 8.0 == 0.0)
        assert 8.0 * parts[divides] == pytest.approx(whole[divides], rel=1e-12)
        few = (MODELS.num_query_groups < 8.0) & (MODELS.num_attention_heads % 8.0 == 0.0)
        assert few.any() and (8.0 * parts[few] > whole[few]).all()


def test_absorbed_latent_attention_has_the_weights_of_the_expanded_one() -> None:
    assert weights(blocks.LATENT, shard(2.0)).tolist() == weights(expanded(blocks.LATENT), shard(2.0)).tolist()


def test_the_query_projection_of_gated_attention_has_its_gate() -> None:
    """Qwen3-Next: 2 x 16 heads and 2 x 2 groups of 256."""
    qwen = Model.of(hidden_size=2048, num_attention_heads=16, num_query_groups=2, head_size=256, attention_gate=1)
    one = np.ones(1)
    assert products(blocks.PLAIN, Shard(qwen, one), Tokens(*[one] * 4)).n[0, 0] == 9216.0


def test_every_block_of_an_architecture_is_on_a_known_place() -> None:
    columns = {name: getattr(MODELS, name) for name in MODELS.__dataclass_fields__}
    codes: Array = architecture_codes_of(columns)
    places = {block.place for code in set(codes.tolist()) for block in layer_blocks(architecture_of(int(code)))}
    assert places == {"attention", "linear", "mlp", "moe", "head"}
