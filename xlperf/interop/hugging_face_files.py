"""Files of a model of Hugging Face: its configuration, and how many weights lie beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from xlperf.base.errors import Fault, InputError
from xlperf.interop.hugging_face import language_part

_LARGEST = 64 * 2**20
"""Bytes of a configuration, or of the header of a file of weights, at the most. [B]"""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def read_config(path: str | os.PathLike[str]) -> tuple[dict[str, Any], float | None, str]:
    """Read a configuration, and count the weights in the files or the index beside it.

    Returns the configuration, the number of weights (None if unknown), and its source. Raises InputError for a
    missing file, a file that is no JSON object, or a folder that holds an adapter alone.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
        adapter = file.with_name("adapter_config.json")
        file = adapter if adapter.exists() and not file.exists() else file
    config = _json(file)
    beside = file.with_name("hf_quant_config.json")  # of ModelOpt
    if file.name == "config.json" and beside.exists() and "quantization_config" not in language_part(config):
        config["quantization_config"] = _json(beside)
    counted, where = _weights(file.parent, config) if file.name == "config.json" else (None, "")
    return config, counted, where


def _json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST:
            raise InputError(Fault(str(file), "is too large for a configuration"))
        result = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        problem = "there is no such file; a config.json or a folder that holds one is meant"
        raise InputError(Fault(str(file), problem)) from None
    except OSError as error:
        raise InputError(Fault(str(file), f"cannot be read: {(error.strerror or str(error)).lower()}")) from None
    except (ValueError, RecursionError) as error:
        at = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(Fault(str(file), f"is no JSON{at}; the config.json of a model is meant")) from None
    if not isinstance(result, dict):
        raise InputError(Fault(str(file), "is no JSON object; the config.json of a model is meant"))
    return result


def _weights(folder: Path, config: Mapping[str, Any]) -> tuple[float | None, str]:
    """Weights of a folder: from the headers of all its safetensors files, else from their index."""
    index = folder / "model.safetensors.index.json"
    names = {str(name) for name in (_json(index).get("weight_map") or {}).values()} if index.exists() else set()
    files = [folder / Path(name).name for name in sorted(names)] or sorted(folder.glob("*.safetensors"))
    if config.get("quantization_config") or language_part(config).get("quantization_config"):
        return None, ""
    if files and all(file.exists() for file in files):
        return float(sum(map(_tensors, files))), "the safetensors files"
    metadata = _json(index).get("metadata") or {} if index.exists() else {}
    if isinstance(metadata.get("total_parameters"), int):
        return float(metadata["total_parameters"]), index.name
    size = _BYTES.get(str(language_part(config).get("torch_dtype") or language_part(config).get("dtype")), 0)
    total = metadata.get("total_size")
    return (float(total) / size, index.name) if size and isinstance(total, (int, float)) else (None, "")


def _tensors(file: Path) -> int:
    """Elements of the tensors of a safetensors file, from its header."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > _LARGEST:
                raise ValueError
            header = json.loads(stream.read(length))
        shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
        return sum(prod(int(size) for size in shape) for shape in shapes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(Fault(str(file), "is no safetensors file, or is damaged")) from None
