"""Formats of a checkpoint, module by module, from its ``quantization_config``.

Each method of quantisation becomes rules that engines apply in the same order: modules left in 16 bits, modules with
formats of their own, and the format of the remaining linear layers. The modules of each part of a model are looked up
by their names in every layer that has the part.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from xlperf.base.errors import Fault, InputError

_WIDE = ""
_INT4 = {32: "int4", 64: "int4-64"}
_USUAL_INT4 = "int4-128"
_LONGEST_PATTERN = 1000
_ALGORITHMS = {
    "NVFP4": "fp4", "NVFP4_AWQ": "fp4", "W4A16_NVFP4": "fp4", "FP8": "fp8-tensor",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8-tensor", "FP8_PB_WO": "fp8-block", "FP8_BLOCK_SCALES": "fp8-block",
    "MXFP8": "fp8-block", "W4A16_MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4", "W4A8_MXFP4_MXFP8": "mxfp4",
    "W4A16_AWQ": _USUAL_INT4, "INT4_AWQ": _USUAL_INT4, "W4A8_AWQ": _USUAL_INT4, "W4A16": _USUAL_INT4,
    "W8A16": "int8-128", "W8A8_SQ_PER_CHANNEL": "int8", "INT8_SQ": "int8",
}  # fmt: skip
"""Formats of weights by the quant_algo of ModelOpt and TensorRT-LLM; MXFP8 has a scale of 8 bits for 32 weights."""
_ACTIVATIONS = {"W4A16_NVFP4": "bf16", "W4A8_AWQ": "fp8"}
_PARTS = {
    "attention_precision": (
        "self_attn.q_proj", "self_attn.q_b_proj", "self_attn.in_proj_qkv", "mixer.q_proj", "mixer.in_proj",
    ),
    "mlp_precision": ("mlp.up_proj", "mlp.gate_up_proj", "mixer.up_proj"),
    "expert_precision": ("mlp.experts.0.up_proj", "mlp.experts", "mixer.experts.0.up_proj"),
    "shared_expert_precision": ("mlp.shared_experts.up_proj", "mixer.shared_experts.up_proj"),
}  # fmt: skip
"""Modules of a layer of each part, in the spellings of several model types."""
_MARKS = {"M": "attention", "*": "attention", "mamba": "attention", "linear_attention": "attention",
          "full_attention": "attention", "E": "moe", "-": "mlp"}  # fmt: skip
_SPELLED = {"block_sparse_moe": "mlp", "feed_forward": "mlp", "ffn": "mlp", "linear_attn": "self_attn",
            "attn": "self_attn", "shared_expert": "shared_experts", "shared_mlp": "shared_experts"}  # fmt: skip
_OTHER_SPELLING = re.compile(rf"\b({'|'.join(_SPELLED)})\b")
_LAYER = re.compile(r"^(?:(?:model|language_model|text_model|backbone|transformer|thinker|llm)\.)*layers\.")
"""Layers of the language model, not of a vision tower or of a module for drafts."""

Test = Callable[[str], bool]


class _Formats(NamedTuple):
    """Formats of the modules of a checkpoint: of the first rule that holds, else by name, else ``rest``.

    ``rest`` is None if the configuration lists all modules that it converts.
    """

    rules: Sequence[tuple[Test, str]]
    rest: str | None
    activations: str = ""
    named: Mapping[str, str] = {}

    def of(self, module: str) -> str | None:
        """Format of a module, "" in 16 bits, None if nothing names it."""
        by_rule = next((stored for holds, stored in self.rules if holds(module)), None)
        if by_rule is not None:
            return by_rule
        return next((self.named[name] for name in _holders(_short(module)) if name in self.named), self.rest)

    def of_part(self, layer: int, names: Sequence[str]) -> str:
        """Format of a part of a layer: 16 bits if any spelling of its modules is left out."""
        stored = [self.of(f"model.layers.{layer}.{name}") for name in names]
        return _WIDE if _WIDE in stored else next((each for each in stored if each != self.rest), self.rest) or _WIDE


def checkpoint_columns(
    narrow: object, row: Mapping[str, object], config: Mapping[str, Any], source: str
) -> dict[str, object]:
    """Columns of the sheet models with the formats of a checkpoint from its ``quantization_config``, for a row with its
    layers and experts; none if it states no format. InputError for a method that is not known.
    """
    if not isinstance(narrow, Mapping) or not narrow:
        return {}
    formats, columns = _formats(narrow, source) or _Formats((), None), dict[str, object]()
    wide_layers = _whole(row.get("num_layers"))
    for column, chosen in _places(row, config).items():
        names = _PARTS[column]
        if column == "expert_precision" and "dense + experts" in str(row.get("ffn_pattern")):
            names = tuple(name.removeprefix("mlp.") for name in names)  # beside the dense block, not in it
        stored = [formats.of_part(layer, names) for layer in chosen]
        usual = Counter(each for each in stored if each).most_common(1)
        if usual and 2 * usual[0][1] >= len(stored):
            columns[column] = usual[0][0]
            wide_layers = min(wide_layers, stored.count(_WIDE))
    if config.get("expert_dtype") == "fp4" and formats.rest and columns.get("expert_precision") == formats.rest:
        columns["expert_precision"] = "mxfp4"
    head = formats.of("lm_head")
    if head and _includes_head(narrow):
        columns["head_precision"] = head
    if columns:
        columns |= {"wide_layers": wide_layers or None, "checkpoint_activations": formats.activations}
    if cache := _cache(narrow):
        columns["checkpoint_kv_precision"] = cache
    columns |= {"checkpoint_source": f"{source}: quantization_config ({_method(narrow)})"} if columns else {}
    return {name: value for name, value in columns.items() if value not in ("", None)}


def _places(row: Mapping[str, object], config: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Layers that have each part of a model; parts that it lacks are left out."""
    layers, leading, step = (_whole(row.get(name)) for name in ("num_layers", "first_dense_layers", "moe_layer_step"))
    marks = config.get("hybrid_override_pattern") or config.get("layers_block_type") or config.get("layer_types")
    kinds = [_MARKS.get(str(mark), str(mark)) for mark in marks] if isinstance(marks, (str, list)) else []
    whole, mixed = range(layers), list[int]()
    dense: Sequence[int] = whole
    if row.get("num_experts"):
        mixed = [layer for layer in whole if layer >= leading and (layer + 1) % max(step, 1) == 0]
        is_listed = "dense" in str(row.get("ffn_pattern"))  # without the places of its layers, or beside the experts
        dense, mixed = (whole, [*whole]) if is_listed else (sorted({*whole} - {*mixed}), mixed)
    by_part: dict[str, Sequence[int]] = {"attention": whole, "mlp": dense, "moe": mixed}
    if {"moe", "mlp"} & {*kinds}:  # a layer of its own for each block
        by_part = {part: [layer for layer, kind in enumerate(kinds) if kind == part] for part in by_part}
    places = {
        "attention_precision": by_part["attention"],
        "mlp_precision": by_part["mlp"],
        "expert_precision": by_part["moe"],
        "shared_expert_precision": by_part["moe"] if row.get("num_shared_experts") else (),
    }
    return {column: chosen for column, chosen in places.items() if chosen}


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _method(narrow: Mapping[str, Any]) -> str:
    """Name of the method of quantisation."""
    return str(narrow.get("quant_method") or narrow.get("quant_algo") or "not named")


def _includes_head(narrow: Mapping[str, Any]) -> bool:
    """Whether the method converts the output projection: engines leave it unless the configuration says so."""
    if narrow.get("lm_head") is True or "lm_head" in _listed(narrow):
        return True
    targets = [target for group in _groups(narrow) for target in _texts(group.get("targets"))]
    return any("lm_head" in target for target in targets)


def _unknown(kind: str, name: str, known: str, source: str) -> InputError:
    remedy = f"known are {known}; leave quantization_config out and state the precision in plans"
    return InputError(Fault(source, f'quantization {kind} "{name}" is not known: {remedy}'))


def _formats(narrow: Mapping[str, Any], source: str) -> _Formats | None:
    """Formats of the modules; None if the configuration states none for weights."""
    method = str(narrow.get("quant_method") or "").casefold().replace("_", "-")
    whole = _stated(narrow)
    if method in ("compressed-tensors", "modelopt", "") and _groups(narrow) and not _listed(narrow):
        return _of_groups(narrow)
    if method in ("modelopt", "modelopt-fp4", "modelopt-fp8", "") and whole.get("quant_algo"):
        return _of_algorithm(whole, source)
    if method in ("compressed-tensors", "modelopt") or not (method or "bits" in narrow):
        return None
    if method == "quark":
        return _of_quark(narrow)
    stored = _of_method(method, narrow)
    if stored is None:
        known = "awq, gptq, auto-round, bitsandbytes, compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp4, quark"
        raise _unknown("method", _method(narrow), known, source)
    if listed := _listed(narrow):  # the list of modules to ignore is that of the algorithm of these
        left = _named_by(narrow.get("modules_to_not_convert"), narrow.get("ignored_layers"))
        return _Formats([(left, _WIDE)], stored, "", _by_name(listed, source))
    lists = ("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules")
    rules: list[tuple[Test, str]] = [(_named_by(*(narrow.get(name) for name in lists)), _WIDE), *_overrides(narrow)]
    if method in ("mxfp4", "gpt-oss-mxfp4"):
        return _Formats([*rules, (lambda module: ".experts" not in module, _WIDE)], stored)
    return _Formats(rules, stored, "fp8" if method == "w4afp8" else "")


def _of_method(method: str, narrow: Mapping[str, Any]) -> str | None:
    """Format of the linear layers of methods with one format; None for unknown methods."""
    if method in ("awq", "gptq", "auto-round", "auto-gptq", "intel/auto-round", "gptq-marlin", "awq-marlin"):
        return _of_bits(narrow, narrow)
    if method in ("bitsandbytes",):
        return "int4-64" if narrow.get("load_in_4bit") or narrow.get("_load_in_4bit") else "int8-128"
    if method in ("fp8", "fbgemm-fp8", "ptpc-fp8", "w8a8-fp8", "deepseek-v4-fp8"):
        return "fp8-block" if narrow.get("weight_block_size") else "fp8-tensor"
    formats = {
        "mxfp4": "mxfp4",
        "gpt-oss-mxfp4": "mxfp4",
        "w4afp8": _USUAL_INT4,
        "w8a8-int8": "int8",
        "experts-int8": "int8-128",
        "moe-wna16": _USUAL_INT4,
        "nvfp4": "fp4",
        "mxfp8": "fp8-block",
    }
    return formats.get(method)


def _of_bits(stated: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """Format of integers with a scale for each group; ``whole`` has what an entry of single modules leaves out."""
    bits = _whole(stated.get("bits") or stated.get("w_bit") or whole.get("bits") or whole.get("w_bit"))
    group = _whole(stated.get("group_size") or whole.get("group_size"))
    return _WIDE if bits >= 16 else "int8-128" if bits == 8 else _INT4.get(group, _USUAL_INT4)


def _overrides(narrow: Mapping[str, Any]) -> Iterator[tuple[Test, str]]:
    """Rules of GPTQModel (``dynamic``, "-:" leaves a module out) and AutoRound (``extra_config``)."""
    for key in ("dynamic", "extra_config"):
        entries, stated = narrow.get(key), list[tuple[str, str]]()
        for name, one in entries.items() if isinstance(entries, Mapping) else ():
            sign, _, pattern = name.rpartition(":")
            stored = _WIDE if sign == "-" else _of_bits(one if isinstance(one, Mapping) else {}, narrow)
            is_expression = sign or key == "dynamic" or "*" in pattern
            stated.append((stored, f"re:{pattern}" if is_expression else pattern))
        for stored, group in groupby(stated, itemgetter(0)):
            yield _named_by([pattern for _, pattern in group]), stored


def _groups(narrow: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Groups of a configuration of compressed-tensors."""
    groups = narrow.get("config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _listed(narrow: Mapping[str, Any]) -> Mapping[str, Any]:
    """Algorithms by the names of modules, in a configuration of mixed precision."""
    layers = _stated(narrow).get("quantized_layers")
    return layers if isinstance(layers, Mapping) else {}


def _stated(narrow: Mapping[str, Any]) -> Mapping[str, Any]:
    """Entries of a configuration, with those of its part ``quantization``."""
    inner = narrow.get("quantization")
    return {**inner, **narrow} if isinstance(inner, Mapping) else narrow


def _of_groups(narrow: Mapping[str, Any]) -> _Formats | None:
    """Formats of compressed-tensors: groups of modules with weights and activations."""
    groups = [(group, stored) for group in _groups(narrow) if (stored := _of_scheme(group))]
    if not groups:
        return None
    rules, rest = [(_named_by(narrow.get("ignore")), _WIDE)], None
    for group, stored in groups:
        targets = _texts(group.get("targets"))
        if not targets or any(target.isidentifier() and target[0].isupper() for target in targets):
            rest = rest or stored  # a class of modules, all linear layers
        else:
            rules.append((_named_by(targets), stored))
    return _Formats(rules, rest, _of_activations(*groups[0]))


def _of_scheme(group: Mapping[str, Any]) -> str:
    """Format of the weights of a group, "" if it is not known."""
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return ""
    bits, size = _whole(weights.get("num_bits", 8)), _whole(weights.get("group_size"))
    in_blocks = weights.get("strategy") == "block" or bool(weights.get("block_structure"))
    kind = str(weights.get("type", "float" if in_blocks else "int"))
    if kind == "float" and bits == 8:
        return "fp8-block" if in_blocks else "fp8-tensor"
    if kind == "float" and bits == 4:
        return "mxfp4" if size == 32 else "fp4"
    if kind == "int" and bits == 8:
        return "int8" if group.get("input_activations") else "int8-128"
    return _INT4.get(size, _USUAL_INT4) if kind == "int" and bits == 4 else ""


def _of_activations(group: Mapping[str, Any], stored: str) -> str:
    """Precision of activations, if it differs from the weights on machines that compute in it."""
    inputs = group.get("input_activations")
    if not isinstance(inputs, Mapping):
        return "bf16" if stored.startswith("fp") else ""
    bits, kind = _whole(inputs.get("num_bits")), str(inputs.get("type", "int"))
    if bits == 8 and stored not in ("int8", "fp8-block", "fp8-tensor"):
        return "fp8" if kind == "float" else "int8"
    return "fp4" if bits == 4 and stored == "mxfp4" else ""


def _of_algorithm(stated: Mapping[str, Any], source: str) -> _Formats:
    """Formats of ModelOpt: one algorithm, or one for each layer."""
    left = _named_by(stated.get("exclude_modules"), stated.get("ignore"), stated.get("modules_to_not_convert"))
    if listed := _listed(stated):
        return _Formats([(left, _WIDE)], None, "", _by_name(listed, source))
    algorithm = str(stated.get("quant_algo")).upper()
    return _Formats([(left, _WIDE)], _of_name(algorithm, source), _ACTIVATIONS.get(algorithm, ""))


def _of_name(algorithm: str, source: str) -> str:
    """Format of an algorithm of ModelOpt; InputError for an unknown one."""
    if algorithm not in _ALGORITHMS:
        raise _unknown("algorithm", algorithm, ", ".join(_ALGORITHMS), source)
    return _ALGORITHMS[algorithm]


def _by_name(listed: Mapping[str, Any], source: str) -> dict[str, str]:
    """Formats by the names of modules and of the modules that hold them."""
    algorithms = {
        str(name): str(one.get("quant_algo")).upper() for name, one in listed.items() if isinstance(one, Mapping)
    }
    stored = {algorithm: _of_name(algorithm, source) for algorithm in sorted({*algorithms.values()})}
    return {holder: stored[word] for name, word in algorithms.items() for holder in _holders(_short(name))}


def _holders(module: str) -> list[str]:
    """Names by which the format of a module may be listed: the module, its block, all experts.

    >>> _holders("layers.1.mlp.experts.0.up_proj")
    ['layers.1.mlp.experts.0.up_proj', 'layers.1.mlp.experts.0', 'layers.1.mlp.experts']
    """
    block, _, last = module.rpartition(".")
    experts = re.match(r".*\.experts(?=\.)", module)
    is_weight = "proj" in last or re.fullmatch(r"w\d", last)
    return [module, *([block] if is_weight else []), *([experts[0]] if experts else [])]


def _of_quark(narrow: Mapping[str, Any]) -> _Formats | None:
    """Formats of AMD Quark: one for all layers that are not excluded, and others by patterns of names."""
    whole = narrow.get("global_quant_config")
    stored = _quark_format(whole)
    if stored is None or not isinstance(whole, Mapping):
        return None
    rules: list[tuple[Test, str]] = [(_named_by(narrow.get("exclude")), _WIDE)]
    others = narrow.get("layer_quant_config")
    for name, one in others.items() if isinstance(others, Mapping) else ():
        rules.append((_named_by([name]), _quark_format(one) or _WIDE))
    inputs = whole.get("input_tensors")
    activations = str(inputs.get("dtype", "")) if isinstance(inputs, Mapping) else "bf16"
    return _Formats(rules, stored, {"fp4": "fp4", "bf16": "bf16"}.get(activations, ""))


def _quark_format(group: object) -> str | None:
    """Format of the weights of a group of layers of Quark; None if it is not known."""
    weight = group.get("weight") if isinstance(group, Mapping) else None
    weight = weight[0] if isinstance(weight, list) and weight else weight
    if not isinstance(weight, Mapping):
        return None
    size = _whole(weight.get("group_size"))
    formats = {
        "fp4": "mxfp4" if size == 32 else "fp4",
        "fp8_e4m3": "fp8-tensor",
        "int8": "int8",
        "int4": _INT4.get(size, _USUAL_INT4),
        "uint4": _INT4.get(size, _USUAL_INT4),
    }
    return formats.get(str(weight.get("dtype", "")))


def _cache(narrow: Mapping[str, Any]) -> str:
    """Precision of the key-value cache that a checkpoint states, "" without one."""
    stated = _stated(narrow)
    algorithm, scheme = str(stated.get("kv_cache_quant_algo") or "").upper(), stated.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        algorithm = algorithm or {8: "FP8", 4: "NVFP4"}.get(_whole(scheme.get("num_bits")), "")
    outputs = [one.get("output_tensors") for one in _entries(narrow.get("kv_cache_quant_config"))]  # of Quark
    if any(str(each.get("dtype")).startswith("fp8") for each in outputs if isinstance(each, Mapping)):
        algorithm = "FP8"
    return {"FP8": "fp8", "NVFP4": "fp4"}.get(algorithm, "")


def _entries(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value.values() if isinstance(one, Mapping)] if isinstance(value, Mapping) else []


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, (list, tuple)) else []


def _short(name: str) -> str:
    """Name of a module from its layer on, in one spelling."""
    return _OTHER_SPELLING.sub(lambda word: _SPELLED[word[0]], _LAYER.sub("layers.", name))


def _named_by(*lists: object) -> Test:
    """Whether any of some patterns names a module or a part of the model that holds it: a name, its beginning, a word
    of it, with ``*``, or a regular expression after ``re:``.

    >>> left = _named_by(["lm_head", "re:.*self_attn.*", "model.layers.0.*", "gate"])
    >>> names = ["self_attn.q_proj", "mlp.up_proj"]
    >>> [left(f"model.layers.{layer}.{name}") for layer in (0, 3) for name in names]
    [True, True, True, False]
    """
    patterns = [pattern for one in lists for pattern in _texts(one)]
    plain = {_short(pattern) for pattern in patterns if not pattern.startswith("re:") and "*" not in pattern}
    starred = [_short(pattern) for pattern in patterns if not pattern.startswith("re:") and "*" in pattern]
    expressions = list(_compiled(patterns))

    def named(module: str) -> bool:
        short = _short(module)
        words = short.split(".")
        beginnings = {".".join(words[:count]) for count in range(1, len(words) + 1)}
        if plain & (beginnings | set(words)) or (len(words) == 1 and any(name.endswith(f".{short}") for name in plain)):
            return True
        if any(fnmatchcase(short, pattern) or fnmatchcase(short, f"{pattern}.*") for pattern in starred):
            return True
        return any(expression.match(text) for expression in expressions for text in (module, short))

    return named


def _compiled(patterns: Sequence[str]) -> Iterator[re.Pattern[str]]:
    """Regular expressions of a list, without entries that are none."""
    for pattern in patterns:
        if pattern.startswith("re:") and len(pattern) < _LONGEST_PATTERN:
            if _most_ways(pattern[3:]) > _MOST_WAYS:
                words = f'the pattern "{pattern[:40]}" may match in too many ways; name the modules in its place'
                raise InputError(Fault("quantization_config", words))
            try:
                yield re.compile(pattern[3:])
            except re.error:
                continue


_MOST_WAYS, _LETTERS = 2e5, 40.0  # ways to match a name that a pattern may have at most; letters of a name [-]


def _most_ways(expression: str) -> float:
    """Bound of the ways in which a regular expression may match a name, each of which a match may have to try.

    >>> _most_ways(r".*layers[.](0|1|2)[.].*"), _most_ways("(a+)+!")
    (2400.0, inf)
    """
    plain = re.sub(r"\\.|\[[^\]]{0,200}\]", "x", expression)
    if re.search(r"\)[*+{]", plain):
        return math.inf
    repeated, optional = len(re.findall(r"[*+{]", plain)), len(re.findall(r"(?<![(*+?}])\?", plain))
    ways, branches = 1.0, [1.0]
    for letter in plain:
        if letter == "(":
            branches.append(1.0)
        elif letter == "|":
            branches[-1] += 1.0
        elif letter == ")" and len(branches) > 1:
            ways *= branches.pop()
    return math.prod(branches, start=ways) * 2.0**optional * _LETTERS**repeated / math.factorial(repeated)
