"""Images of served requests: tokens added to prompts, and the work of the model's vision encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from xlperf.base.arrays import Array, total
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.engine.join import software_words
from xlperf.equations.hardware.roofline import Device
from xlperf.equations.model.vision import Encoder, Pictures, encoder_flop, encoder_parameters, pictures_of
from xlperf.equations.network.topologies import Network
from xlperf.equations.plan.records import Remark
from xlperf.equations.plan.serving_plan import InferencePlan
from xlperf.equations.serving.phases import ENCODE_PARTS
from xlperf.equations.serving.vision import embedding_handover_time, encoder_start, encoder_work, share_beside_encoder
from xlperf.interop.software import stack_of_software

RESULTS = (
    "image_tokens_per_request",
    "encode_time",
    "encoder_flop",
    "encoder_parameters",
    "memory_encoder",
    "encode_load",
)


_LOADING = ("vllm", "sglang")
"""Engines that load the encoder of a model unless they are told --language-model-only."""


def shows_images(plans: Table) -> np.ndarray:
    """Plans whose requests have images or video, (rows,)."""
    if "images" not in plans and "video_frames" not in plans:
        return np.zeros(len(plans), dtype=bool)
    return np.asarray((plans.number("images", 0.0) > 0.0) | (plans.number("video_frames", 0.0) > 0.0))


def encoders(catalog: Catalog, models: np.ndarray) -> Encoder:
    """Vision encoders of rows of the sheet models; NaN in rows without one."""
    table = catalog.tables["models"]

    def number(name: str, default: float = np.nan) -> Array:
        return np.asarray(table.number(name, default)[models])

    def filled(name: str) -> Array:
        return np.asarray(table.filled(name)[models], dtype=np.float64)

    return Encoder(
        layers=number("vision_layers"),
        hidden_size=number("vision_hidden_size"),
        ffn_size=number("vision_ffn_size"),
        num_heads=number("vision_num_heads"),
        gated=filled("vision_gated_mlp"),
        patch_size=filled("vision_patch_size"),
        merge_size=filled("vision_merge_size"),
        pooled=filled("vision_pooled"),
        window=number("vision_window"),
        full_layers=filled("vision_full_layers"),
        temporal_patch=filled("vision_temporal_patch"),
        projector_size=number("vision_projector_size", 0.0),
        num_projectors=filled("vision_projectors"),
        output_size=number("hidden_size"),
        tile_size=number("vision_tile_size"),
        max_tiles=filled("vision_max_tiles"),
        covering=np.asarray(table.filled("vision_tiling")[models] == "cover", dtype=np.float64),
        min_tokens=filled("vision_min_tokens"),
        max_tokens=filled("vision_max_tokens"),
    )


def request_pictures(plans: Table, encoder: Encoder) -> Pictures:
    """Images of a request of each plan; none of plans of text alone."""
    width = plans.filled("image_width")
    height = np.where(np.isnan(plans.number("image_height")), width, plans.number("image_height"))
    shown = plans.number("images", 0.0), plans.number("video_frames", 0.0)
    with np.errstate(all="ignore"):
        pictures = pictures_of(encoder, *shown, width, height, plans.number("image_tokens"))
    seen = shows_images(plans) & ~np.isnan(encoder.layers + encoder.hidden_size)
    return Pictures(*(np.where(seen, values, 0.0) for values in pictures))


def with_image_tokens(plans: Table, catalog: Catalog, models: np.ndarray) -> Table:
    """Plans whose prompts have the tokens of their images as well as of the text."""
    if not shows_images(plans).any():
        return plans
    pictures = request_pictures(plans, encoders(catalog, models))
    prompt = plans.number("prompt_length") + np.round(pictures.tokens)
    return replace(plans, columns={**plans.columns, "prompt_length": prompt})


def encoder_constants(
    plans: Table,
    plan: InferencePlan,
    catalog: Catalog,
    models: np.ndarray,
    machine: tuple[Device, Network, Mapping[str, Mapping[str, Array]], Array],
) -> tuple[dict[str, Array], list[Remark]]:
    """Constants (rows, 1) of the encoder beside those of the engine, and models that see no images."""
    shown, loaded = shows_images(plans), _loads_encoder(plans, catalog, models)
    if not (shown | loaded).any():
        return {}, []
    encoder = encoders(catalog, models)
    known = encoder.layers + encoder.hidden_size + encoder.ffn_size + encoder.num_heads
    lacking = shown & np.isnan(known)
    pictures = request_pictures(plans, encoder)
    split = plans.filled("encoder_split")
    pooled, by_image = split == "pool", np.asarray(split == "images", dtype=np.float64)
    ranks = np.where(pooled, 1.0, plan.attention_parallel)
    with np.errstate(all="ignore"):  # plans of text alone have no patches
        work = encoder_work(*machine, encoder, pictures, ranks, by_image)
        handed = embedding_handover_time(machine[1], encoder, pictures)
        start = encoder_start(encoder, plan.prefill_tokens, np.where(by_image > 0.0, 1.0, ranks))
    height = np.where(np.isnan(plan.image_height), plan.image_width, plan.image_height)
    pixels = (plan.images + plan.video_frames) * plan.image_width * height
    seen = shown & ~lacking
    encode_time = total(work.times)
    columns = {
        **dict(zip(ENCODE_PARTS, np.where(pooled, 0.0, work.times.T), strict=True)),
        "encode_pool_time": np.where(pooled, encode_time + handed, 0.0),
        "encode_load": np.where(pooled, encode_time, 0.0),
        "image_host_time": np.where(shown, pixels * plan.pixel_time, 0.0),
        "image_tokens_per_request": np.round(pictures.tokens),
        "encode_time": encode_time,
        "encoder_flop": encoder_flop(encoder, pictures),
        "encoder_parameters": encoder_parameters(encoder),
    }
    constants = {name: np.where(seen, values, 0.0)[:, None] for name, values in columns.items()}
    there = (shown | loaded) & ~np.isnan(known) & ~pooled
    constants["encoder_memory"] = np.where(there, work.memory, 0.0)[:, None]
    constants["encoder_peak"] = np.where(there, start.peak, 0.0)[:, None]
    constants["encoder_kept"] = np.where(there, start.kept, 0.0)[:, None]
    adjusted = there & _of_stacks(plans, ("sglang",))
    constants["encoder_share"] = np.where(adjusted, share_beside_encoder(encoder), 1.0)[:, None]
    words = "model {} has no vision encoder: state vision layers, hidden size, ffn size and heads"
    return constants, [Remark(lacking, words, (plans.text("model"),))]


def _loads_encoder(plans: Table, catalog: Catalog, models: np.ndarray) -> np.ndarray:
    """Plans of text alone, (rows,), whose engine has the encoder in memory all the same: images are not stated."""
    has_one = catalog.tables["models"].number("vision_layers")[models] > 0.0
    if not has_one.any():
        return np.asarray(has_one)
    return np.asarray(has_one & _of_stacks(plans, _LOADING) & np.isnan(plans.number("images")))


def _of_stacks(plans: Table, stacks: Collection[str]) -> np.ndarray:
    """Plans of some engines, (rows,)."""
    software = software_words(plans)
    of_word = np.array([stack_of_software(str(word)) in stacks for word in software.words], dtype=bool)
    return np.asarray(of_word[software.codes])


def encoder_results(software: Mapping[str, Array], request_rate: Array) -> dict[str, Array]:
    """Results of the encoder of each plan, 0 without images, (rows,)."""
    zero = np.zeros((len(request_rate), 1))
    names = {**dict(zip(RESULTS, RESULTS, strict=True)), "memory_encoder": "encoder_memory"}
    results = {result: software.get(name, zero)[:, 0] for result, name in names.items()}
    return results | {"encode_load": request_rate * results["encode_load"]}


def pool_note(results: Mapping[str, Array], illegal: np.ndarray) -> Remark:
    """An encode pool, whose accelerators a plan does not count."""
    load = results["encode_load"]
    words = "images keep {} accelerators of the encode pool busy, which num accelerators and costs leave out"
    return Remark(~illegal & (load > 0.0), words, (np.round(load, 2),))
