"""Memory-bound kernels outside the blocks of layers: merges of a context ring, embedding and loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xlperf.base.arrays import ceil_div, some
from xlperf.equations.model.operators import Vectors
from xlperf.equations.plan.records import WORD, ContextMethod, CrossEntropy
from xlperf.equations.training.setting import Setting


def ring_merges(setting: Setting) -> Iterator[tuple[str, str, Vectors]]:
    """Merges of the partial results of a context ring, and sums of its partial gradients."""
    plan = setting.plan
    merged = np.where(plan.context_method == ContextMethod.RING, plan.context_parallel - 1.0, 0.0)
    if some(merged):
        output = plan.tokens * setting.heads * setting.model.v_head_size
        traffic = (merged * output * (2.0 * WORD + plan.element_size))[:, None]
        yield "forward", "attention", Vectors(("merge of partial attention",), traffic)
        yield "backward", "attention", Vectors(("sum of partial gradients",), 3.0 * traffic)


def outside_layers(setting: Setting) -> Iterator[tuple[str, str, Vectors]]:
    """Look-up of the embedding, and the loss over the vocabulary of a rank.

    Split over the vocabulary each step of the loss is a kernel on FP32 logits (Megatron-Core, cross_entropy.py): copy,
    maximum, subtraction, exponential, sum and division. A loss over chunks of the tokens moves as much as one over all:
    as much as a fused one if it is compiled, else as a plain one.
    """
    model, plan, element = setting.model, setting.plan, setting.plan.element_size
    vocab = plan.tokens * ceil_div(model.vocab_size, plan.loss_shards)
    plain = plan.plain_loss
    fused = (plan.cross_entropy == CrossEntropy.FUSED) | (plan.cross_entropy == CrossEntropy.CHUNKED) & ~plain
    loss = np.where(fused, 3.0 * element, element + np.where(plain, 3.0, 9.0) * WORD)
    gradient = np.where(fused, 2.0 * element, element + np.where(plain, 5.0, 3.0) * WORD)
    if some(narrow := plan.narrow_loss):  # no copies: softmax of logits; its gradient is made, read beside it, replaced
        loss = np.where(narrow, 2.0 * plan.loss_size, loss)
        gradient = np.where(narrow, 4.0 * plan.loss_size, gradient)
    looked_up = 2.0 * plan.tokens * model.hidden_size * element
    yield "forward", "embedding", Vectors(("embedding",), looked_up[:, None])
    yield "forward", "head", Vectors(("cross-entropy",), (vocab * loss)[:, None])
    yield "backward", "head", Vectors(("cross-entropy gradient",), (vocab * gradient)[:, None])
