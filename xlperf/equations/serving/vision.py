"""Vision encoder of a serving replica: time, memory and host time of the images of a request.

The encoder runs before the prefill of its prompt, on the ranks of the prompt's attention replica: its layers are split
over the ranks as those of the decoder, or each rank encodes its share of the images with all of the weights. Or an
accelerator of a pool that encodes alone has all images of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, side_by_side, total
from xlperf.equations.hardware.attention import attention_time
from xlperf.equations.hardware.gemm import gemm_time
from xlperf.equations.hardware.roofline import CORE, WIDE, Device, vector_time
from xlperf.equations.model.vision import COLOURS, Encoder, Pictures, encoder_parameters
from xlperf.equations.network.topologies import Network
from xlperf.equations.serving.messages import engine_all_reduce_time
from xlperf.equations.serving.phases import ATTENTION, COMMUNICATION, FIXED, MATRIX, VECTOR, VECTOR_FLOP
from xlperf.equations.serving.queueing import erlang_c

SIZE = 2.0  # bytes of a weight and of an activation: encoders stay in 16 bits [B]
_WAIT = 0.1  # mean wait for an accelerator of an encode pool over its encode time [-]
_KERNELS = 14.0  # launches of a layer: two norms, four products, two rotations, attention, activation, adds, casts [-]
_ELEMENTS = (
    12.0  # elements of the width that element-wise kernels of a layer move for a patch: norms, adds, rotations [-]
)
_ATTENDED = 8.0  # elements of the width that attention has for a patch at once [-]


class EncoderStart(NamedTuple):
    """Memory of the largest images that an engine encodes when it measures its memory, on a rank, (rows,). [B]"""

    peak: Array  # while it encodes them
    kept: Array  # their tokens, while the decoder runs


def encoder_start(encoder: Encoder, batch_tokens: Array, split: Array) -> EncoderStart:
    """Memory beside the weights for as many images of the most tokens as a pass has room for, at least one.

    The pixels of all patches, the residual stream and its norm, and the larger of attention (queries, keys and values;
    queries and keys side by side, and rotated; the output) and feed-forward layer (its products and the activation) are
    there together. vLLM v1/worker/gpu_model_runner.py, profile_run; multimodal/encoder_budget.py, MultiModalBudget;
    models/qwen2_5_vl.py, Qwen2_5_VisionAttention.forward.
    """
    tiled = ~np.isnan(encoder.tile_size)
    side = encoder.tile_size / (encoder.patch_size * encoder.merge_size)
    tiles = encoder.max_tiles + (encoder.max_tiles > 1.0)
    image = np.maximum(np.where(tiled, side * side * tiles, encoder.max_tokens), 1.0)
    tokens = np.maximum(np.floor(batch_tokens / image), 1.0) * image
    patches = tokens * encoder.merge_size * encoder.merge_size
    pixels = COLOURS * encoder.patch_size * encoder.patch_size * encoder.temporal_patch
    widest = np.maximum(_ATTENDED * encoder.hidden_size, (2.0 + encoder.gated) * encoder.ffn_size) / split
    peak = SIZE * patches * (pixels + 2.0 * encoder.hidden_size + widest)
    return EncoderStart(peak, SIZE * tokens * encoder.output_size * encoder.num_projectors)


def share_beside_encoder(encoder: Encoder) -> Array:
    """Share of its default that mem_fraction_static of SGLang has for models with images: 0.95, and a tenth less each
    time that the encoder is as large again as one of 24 layers of width 1,024, at most a fifth (server_args.py,
    adjust_mem_fraction_for_vlm). [-]
    """
    size = encoder.layers * encoder.hidden_size * encoder.hidden_size / (24.0 * 1024.0 * 1024.0)
    return np.asarray(0.95 * np.clip(1.1 - 0.1 * size, 0.8, 1.05))


class EncoderWork(NamedTuple):
    """What the images of a request ask of the ranks of their attention replica, (rows,)."""

    times: Array  # matrix, attention, vector, communication, fixed, (rows, 5) [s]
    memory: Array  # weights of the encoder on a rank [B]


def embedding_handover_time(network: Network, encoder: Encoder, pictures: Pictures) -> Array:
    r"""Time in which the tokens of images go from an encode pool to the decoder over the outermost tier, (rows,). [s]

    .. math:: t = \alpha + 2\,n h / B

    Heuristic, this work: one message of n tokens of the decoder's width h in 16 bits.
    """
    size = SIZE * pictures.tokens * encoder.output_size
    return np.asarray(network.latency[:, -1] + size / network.link_bandwidth[:, -1])


def encode_pool_size(load: Numeric) -> Array:
    r"""Fewest accelerators of an encode pool in which a request waits at most a tenth of its encode time in the mean.

    Poisson arrivals at c servers, each busy for the encode time T: half of the wait of exponential times.

    .. math:: \min c:\quad \frac{C(c, a / c)}{2 (c - a)} \le \frac{1}{10}, \qquad a = \lambda T

    C is the probability of a wait (Erlang). Source: A. O. Allen, "Probability, Statistics, and Queueing Theory", 2nd
    ed., 1990, section 5.3 (Allen-Cunneen approximation).

    Two requests at once need four accelerators, none needs none:

    >>> encode_pool_size([0.0, 2.0, 100.0]).tolist()
    [0.0, 4.0, 104.0]

    Parameters
    ----------
    load : Accelerators a that encoding keeps busy. [-]

    Returns
    -------
    Array : Whole number of accelerators. [-]
    """
    busy = array(load)
    used = np.where(busy > 0.0, busy, 0.5)
    count = np.floor(used) + 1.0
    while (few := erlang_c(count, used / count) > 2.0 * _WAIT * (count - used)).any():
        count = np.where(few, count + 1.0, count)
    return np.asarray(np.where(busy > 0.0, count, busy))


def encoder_work(
    device: Device,
    network: Network,
    kernels: Mapping[str, Mapping[str, Array]],
    launch_time: Array,
    encoder: Encoder,
    pictures: Pictures,
    ranks: Array,
    by_image: Array,
) -> EncoderWork:
    """Time of the encoder for the pictures of one request, and its weights on a rank.

    ``launch_time``: of a kernel, (rows, 1); ``ranks``: of an attention replica; ``by_image``: 1 where ranks share the
    images, 0 where they share the layers. Encoders run without graphs: launches that kernels do not hide are exposed.
    """
    width, split = encoder.hidden_size, np.where(by_image > 0.0, 1.0, ranks)
    shared = np.where(by_image > 0.0, np.minimum(ranks, np.maximum(pictures.sequences, 1.0)), 1.0)
    sequences = pictures.sequences / shared
    patches, tokens = sequences * pictures.patches, pictures.tokens / shared
    ffn, gate = encoder.ffn_size / split, 1.0 + encoder.gated
    heads = np.ceil(encoder.num_heads / split)
    inputs = COLOURS * encoder.patch_size * encoder.patch_size * encoder.temporal_patch
    middle = np.where(encoder.projector_size > 0.0, encoder.projector_size, encoder.output_size)
    second = np.where(encoder.projector_size > 0.0, encoder.num_projectors, 0.0)
    layers, projectors, one = encoder.layers, encoder.num_projectors, np.ones_like(width)
    # Products: rows, columns, depth, calls.
    shapes = (
        (patches, 3.0 * width / split, width, layers),
        (patches, width, width / split, layers),
        (patches, gate * ffn, width, layers),
        (patches, width, ffn, layers),
        (patches, width, inputs, one),
        (tokens, middle / split, encoder.projector_inputs, projectors),
        (tokens, encoder.output_size, middle / split, second),
    )
    m, n, k, calls = (side_by_side(*column) for column in zip(*shapes, strict=True))
    products = gemm_time(
        device, kernels["gemm_wide"], m, n, k, 1.0, SIZE, SIZE, rate=device.rate(WIDE), stack="serving"
    )
    # Attention: whole images or tiles, and windows of them.
    windowed = np.where(np.isnan(encoder.window), 0.0, layers - encoder.full_layers)
    near = np.fmin(encoder.window, pictures.patches)
    attended = side_by_side(pictures.patches, near)
    spans = side_by_side(sequences, patches / near)
    size = (width / encoder.num_heads)[:, None]
    grid = spans, heads[:, None], heads[:, None], attended, attended, size, 0.0, SIZE
    attention = attention_time(device, kernels["attention"], *grid, rate=device.rate(CORE))
    # Element-wise kernels, one all-reduce for each block, launches.
    moved = (patches * SIZE * (_ELEMENTS * width + (1.0 + gate) * ffn))[:, None]
    vectors = vector_time(device, kernels["vector"], moved, moved * (VECTOR_FLOP / SIZE))
    message = (patches * width * SIZE)[:, None]
    reduced = engine_all_reduce_time(message, split[:, None], 1.0, network, kernels)
    times = np.zeros((len(width), 5))
    times[:, MATRIX] = total(calls * products)
    times[:, ATTENTION] = total(side_by_side(layers - windowed, windowed) * attention)
    times[:, VECTOR] = layers * vectors[:, 0]
    times[:, COMMUNICATION] = np.where(split > 1.0, 2.0 * layers * reduced[:, 0], 0.0)
    launching = layers * _KERNELS * launch_time[:, 0]
    times[:, FIXED] = np.maximum(launching - total(times), 0.0)
    shown = (layers > 0.0) & (pictures.sequences > 0.0)
    weights = encoder_parameters(encoder) * SIZE / split
    return EncoderWork(np.where(shown[:, None], times, 0.0), weights)
