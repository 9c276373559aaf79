"""Vision encoders: tokens that an image becomes, parameters and FLOP of a vision transformer and its projector."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xlperf.base.arrays import Array, Numeric, array, divide

COLOURS = 3.0  # channels of a picture [-]
LARGEST_GRID = 36  # most tiles that an image is cut into [-]
_GRIDS = np.array([(i, j) for i in range(1, LARGEST_GRID + 1) for j in range(1, LARGEST_GRID // i + 1)], dtype=float)
_DENSE = 0.5  # share of the pixels of a grid that an image must have to take the larger of two alike [-]


class Encoder(NamedTuple):
    """Vision encoders, (rows,); all 0 for a model without one."""

    layers: Array
    hidden_size: Array
    ffn_size: Array
    num_heads: Array
    gated: Array  # 1: three matrices in the feed-forward layer
    patch_size: Array  # pixels of a side of a patch
    merge_size: Array  # patches of a side of the square that becomes one token
    pooled: Array  # 1: the patches of a token are averaged before the projector, 0: put side by side
    window: Array  # patches that a windowed layer attends to; NaN: all layers attend to all patches of an image or tile
    full_layers: Array  # layers without a window
    temporal_patch: Array  # frames of a video that become one patch
    projector_size: Array  # width between the two matrices of a projector; 0: one matrix
    num_projectors: Array  # projectors; more than one where layers of the decoder take features of their own
    output_size: Array  # width of the decoder
    tile_size: Array  # pixels of a side of a tile; NaN: images keep their shape
    max_tiles: Array  # most tiles of an image
    covering: Array  # 1: the tiles cover the image (Llama 4) or it fits in a square (Pixtral), 0: by its shape
    min_tokens: Array  # least tokens of an image that keeps its shape
    max_tokens: Array  # most tokens of it

    @property
    def projector_inputs(self) -> Array:
        """Width of the inputs of a projector. [-]"""
        side = np.where(self.pooled > 0.0, 1.0, self.merge_size)
        return np.asarray(self.hidden_size * side * side)

    @property
    def positions(self) -> Array:
        """Learned positions: one for each patch of a tile; images that keep their shape have rotary ones. [-]"""
        side = divide(self.tile_size, self.patch_size)
        return np.where(np.isnan(side), 0.0, side * side)


def native_image_tokens(
    width: Numeric,
    height: Numeric,
    token_side: Numeric,
    min_tokens: Numeric,
    max_tokens: Numeric,
    covering: Numeric = 0.0,
) -> Array:
    r"""Tokens of an image that keeps its shape: its sides in whole tokens, scaled into the bounds of the processor.

    .. math:: n = \left[\frac{f w}{p}\right] \left[\frac{f h}{p}\right],
       f = \sqrt{\min\left(\max\left(1, \frac{n_{min} p^2}{w h}\right), \frac{n_{max} p^2}{w h}\right)}

    Sides are rounded to the nearest token, half to even; down if the image is made smaller and up if larger. Pixtral
    bounds each side by that of the square of the most tokens and rounds up.

    Source: transformers, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize, and
    models/pixtral/image_processing_pixtral.py, get_resize_output_image_size. 1,280 x 720 pixels in Qwen2.5-VL (tokens
    of 28 pixels), Qwen3-VL (32) and Pixtral (16, at most 64 x 64):

    >>> native_image_tokens(1280.0, 720.0, [28.0, 32.0, 16.0], 4.0, [16384.0, 16384.0, 4096.0], [0, 0, 1]).tolist()
    [1196.0, 880.0, 2304.0]

    Parameters
    ----------
    width, height : Sides w and h of the image in pixels. [-]
    token_side : Pixels p of a side of a token. [-]
    min_tokens, max_tokens : Least and most tokens of an image. [-]
    covering : Rule: 1 for sides within a square, rounded up, 0 otherwise. [-]

    Returns
    -------
    tokens : Tokens of the image. [-]
    """
    wide, high, side = array(width), array(height), array(token_side)
    columns, rows = np.maximum(np.round(wide / side), 1.0), np.maximum(np.round(high / side), 1.0)
    natural = wide * high / (side * side)

    def scaled(tokens: Numeric, rounded: np.ufunc) -> Array:
        factor = np.sqrt(array(tokens) / natural)
        return np.asarray(
            np.maximum(rounded(wide * factor / side), 1.0) * np.maximum(rounded(high * factor / side), 1.0)
        )

    # within the bounds: rounded sides; else scaled down or up to the bound
    tokens = columns * rows
    smaller = scaled(max_tokens, np.floor)
    larger = np.minimum(scaled(min_tokens, np.ceil), smaller)
    tokens = np.where(tokens > max_tokens, smaller, np.where(tokens < min_tokens, larger, tokens))
    # Pixtral: the longer side within that of the largest square, in whole pixels, and whole tokens that cover them
    shrunk = np.maximum(np.maximum(wide, high) / (np.sqrt(array(max_tokens)) * side), 1.0)
    columns, rows = (np.ceil(np.maximum(np.floor(pixels / shrunk), 1.0) / side) for pixels in (wide, high))
    tokens = np.where(array(covering) > 0.0, columns * rows, tokens)
    return np.asarray(tokens + 0.0 * (array(min_tokens) + array(max_tokens) + array(covering)))


def image_tiles(width: Numeric, height: Numeric, tile_size: Numeric, max_tiles: Numeric, covering: Numeric) -> Array:
    r"""Tiles of an image that is cut into squares, with one more of the whole image if there are several.

    .. math:: n = i j + [i j > 1], \quad i j \le n_{max}

    InternVL takes the grid i x j whose shape is next to that of the image, the larger of two alike if the image has
    more than half its pixels. Llama 4 takes the smallest grid that the image fits in, else the one that shrinks it
    least.

    Source: OpenGVLab/InternVL, dynamic_preprocess; transformers, models/llama4/image_processing_llama4_fast.py,
    get_best_fit. 1,280 x 720 pixels in tiles of 448 (InternVL) and 336 (Llama 4):

    >>> image_tiles(1280.0, 720.0, [448.0, 336.0], [12.0, 16.0], [0.0, 1.0]).tolist()
    [9.0, 13.0]

    Parameters
    ----------
    width, height : Sides of the image in pixels. [-]
    tile_size : Pixels of a side of a tile. [-]
    max_tiles : Most tiles n_max of an image. [-]
    covering : Rule: 1 for tiles that cover the image, 0 otherwise. [-]

    Returns
    -------
    tiles : Tiles that the encoder sees. [-]
    """
    wide, high, side, most, cover = (
        values[..., None]
        for values in np.broadcast_arrays(*map(array, (width, height, tile_size, max_tiles, covering)))
    )
    across, down = _GRIDS.T
    number = across * down
    allowed = number <= np.maximum(most, 1.0)
    # InternVL: the shape next to the image's; of grids of one shape the larger one for images with enough pixels
    apart = np.abs(wide / high - across / down)
    near = np.where(allowed, apart, np.inf)
    alike = near == np.min(near, axis=-1, keepdims=True)
    dense = wide * high > _DENSE * side * side * number
    smallest = np.where(alike, number, np.inf).min(axis=-1)
    shaped = np.maximum(smallest, np.where(alike & dense, number, 0.0).max(axis=-1))
    # Llama 4: the smallest grid in which the image fits, else the grid that shrinks it least
    scale = np.where(allowed, np.minimum(side * across / wide, side * down / high), 0.0)
    fits = scale >= 1.0
    least = np.where(fits, scale, np.inf).min(axis=-1, keepdims=True)
    best = np.where(np.isinf(least), scale.max(axis=-1, keepdims=True), least)
    covered = np.where(scale == best, number, np.inf).min(axis=-1)
    tiles = np.where(cover[..., 0] > 0.0, covered, shaped)
    missing = np.isnan((wide + high + side + most + cover)[..., 0])
    return np.where(missing, np.nan, tiles + np.where(tiles > 1.0, 1.0, 0.0))


def vision_layer_parameters(hidden_size: Numeric, ffn_size: Numeric, gated: Numeric) -> Array:
    r"""Parameters of a layer of a vision transformer: four attention matrices, two or three of the feed-forward layer.

    .. math:: n = 4 h^2 + (2 + g) h f + 9 h + (1 + g) f

    Biases and two norms with a bias are counted; encoders without them have 0.1 % fewer.

    Source: A. Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, arXiv:2010.11929. A layer of SigLIP-400M:

    >>> vision_layer_parameters(1152.0, 4304.0, 0.0).tolist()
    15239504.0

    Parameters
    ----------
    hidden_size : Width h of the encoder. [-]
    ffn_size : Width f of its feed-forward layers. [-]
    gated : Three matrices in a feed-forward layer: 1 for a gated one. [-]

    Returns
    -------
    parameters : Parameters of one layer. [-]
    """
    h, f, g = array(hidden_size), array(ffn_size), array(gated)
    return np.asarray(4.0 * h * h + (2.0 + g) * h * f + 9.0 * h + (1.0 + g) * f)


def _projector_parameters(encoder: Encoder) -> Array:
    """Parameters of a projector, without biases: two matrices, or one without a width between them, (rows,). [-]"""
    inputs, middle, outputs = encoder.projector_inputs, encoder.projector_size, encoder.output_size
    return np.asarray(np.where(middle > 0.0, inputs * middle + middle * outputs, inputs * outputs) + 0.0 * middle)


def _layer_flop(encoder: Encoder, patches: Array, attended: Array) -> Array:
    """FLOP of a vision layer: products with weights, and attention of each patch to some, (rows,). [FLOP]"""
    width = encoder.hidden_size
    weights = 4.0 * width * width + (2.0 + encoder.gated) * width * encoder.ffn_size
    return np.asarray(2.0 * patches * weights + 4.0 * patches * attended * width)


class Pictures(NamedTuple):
    """Images of a request as the encoder and the decoder see them, (rows,)."""

    sequences: Array  # images, tiles, or groups of frames that attend to themselves alone [-]
    patches: Array  # patches of one of them [-]
    tokens: Array  # tokens of all of them in the prompt [-]


def pictures_of(
    encoder: Encoder, images: Array, frames: Array, width: Array, height: Array, stated_tokens: Array
) -> Pictures:
    """Patches and tokens of the images and video frames of a request; ``stated_tokens`` of an image replace its size.

    Frames of a video are images, as many of which as the encoder merges in time become one.
    """
    side = encoder.patch_size * encoder.merge_size
    tiled = ~np.isnan(encoder.tile_size)
    per_tile = np.round(np.where(tiled, encoder.tile_size, side) / side) ** 2
    tiles = image_tiles(width, height, np.where(tiled, encoder.tile_size, side), encoder.max_tiles, encoder.covering)
    native = native_image_tokens(width, height, side, encoder.min_tokens, encoder.max_tokens, encoder.covering)
    known = ~np.isnan(stated_tokens)
    tokens = np.where(known, stated_tokens, np.where(tiled, tiles * per_tile, native))
    of_tile = np.where(tiled, np.minimum(per_tile, tokens), tokens)
    merged = frames / encoder.temporal_patch
    cut = images * tiles + merged  # a frame is one tile
    sequences = np.where(tiled & ~known, cut, (images + merged) * tokens / of_tile)
    return Pictures(sequences, of_tile * encoder.merge_size * encoder.merge_size, sequences * of_tile)


def encoder_parameters(encoder: Encoder) -> Array:
    """Parameters of encoders with their projectors, (rows,). [-]"""
    layers = encoder.layers * vision_layer_parameters(encoder.hidden_size, encoder.ffn_size, encoder.gated)
    inputs = COLOURS * encoder.patch_size * encoder.patch_size * encoder.temporal_patch
    embedding = (inputs + encoder.positions) * encoder.hidden_size
    projector = _projector_parameters(encoder)
    return np.asarray(layers + embedding + encoder.num_projectors * projector)


def encoder_flop(encoder: Encoder, pictures: Pictures) -> Array:
    """Operations of encoders and projectors for the pictures of a request, (rows,). [-]"""
    # layers whose patches attend within a window, and layers without one
    near = np.fmin(encoder.window, pictures.patches)
    far, close = (_layer_flop(encoder, pictures.patches, attended) for attended in (pictures.patches, near))
    windowed = np.where(np.isnan(encoder.window), 0.0, encoder.layers - encoder.full_layers)
    inputs = COLOURS * encoder.patch_size * encoder.patch_size * encoder.temporal_patch
    embedding = 2.0 * pictures.patches * inputs * encoder.hidden_size
    projector = _projector_parameters(encoder)
    each = (encoder.layers - windowed) * far + windowed * close + embedding
    return np.asarray(pictures.sequences * each + 2.0 * pictures.tokens * encoder.num_projectors * projector)
