"""Settings of recipes in Python: assignments to a configuration, and keyword arguments, without running the code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xlperf.interop.launch_shell import MOST_VALUE
from xlperf.interop.launch_text import Setting

RECIPE = "recipe"  # the entry of --set that names one of several recipes
_PYTHON = re.compile(r"^(?:import|from)\s+[\w.]{1,100}", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*(?:\w{1,60}\.)?((?:[a-z_]\w{0,60}\.){1,6}\w{1,60})\s*=\s*([^=#\s][^#\n]{0,200})")
_KEYWORD = re.compile(
    r"(?<!: )\b([a-z_]\w{1,60})\s*=\s*(None|True|False|-?[\d.][\d_.e+\-]{0,30}|\"[^\"\n]{0,100}\"|'[^'\n]{0,100}')"
)
_RECIPE = re.compile(
    r"\b([a-z]\w{1,60}?_(?:pretrain|finetune|sft|peft|perf)\w{0,40}_config"
    r"|[a-z]\w{1,60}(?=\.(?:pretrain|finetune)_recipe\b))\b"
)
_NAME = re.compile(r"[A-Za-z_]\w{0,60}|(?:cfg|config|recipe|args|self)\.[\w.]{1,100}")
_DOCSTRING = re.compile(r'"""(?:(?!""").)*"""', re.DOTALL)
_HELPER = re.compile(r"\b(set_\w{1,40}_configs)\(")
_DEFINED = re.compile(r"^def ([a-z]\w{1,100}_config)\(", re.MULTILINE)
_NEXT = re.compile(r"^(?:def|class|if|@)\b|^@", re.MULTILINE)
_MEASURED = re.compile(r"_(\d{1,5})gpu_([a-z]+\d+)_([a-z0-9]+)_config$")
"""Accelerators, their name and the precision at the end of the name of a recipe."""


def is_python(text: str) -> bool:
    """Whether a text imports modules of Python."""
    return _PYTHON.search(text) is not None


def recipes_of(text: str) -> list[str]:
    r"""Recipes that a module defines.

    >>> recipes_of("from a.b import c\ndef a_pretrain_config():\n    pass\ndef b_sft_config(): pass")
    ['a_pretrain_config', 'b_sft_config']
    """
    return list(dict.fromkeys(_DEFINED.findall(text))) if is_python(text) else []


def python_settings(text: str, recipe: str = "") -> Iterator[Setting]:
    """Assignments of a recipe in Python to its configuration; names and keyword arguments of recipes that it calls.

    ``recipe``: the function that alone is read, "" for all. Its name may say accelerators and precision.
    """
    text = _DOCSTRING.sub("", text)
    start = text.find(f"def {recipe}(") if recipe else -1
    if start >= 0:
        following = _NEXT.search(text, start + 1)
        text = text[start : following.start() if following else len(text)]
        for measured in _MEASURED.finditer(recipe):
            named = zip(("--num_gpus", "--gpu", "--precision"), measured.groups(), strict=True)
            yield from (Setting(name, (value,)) for name, value in named)
    for name in [recipe] if start >= 0 else dict.fromkeys(_RECIPE.findall(text[: 10 * MOST_VALUE])):
        yield Setting("recipe=", (name,))
    for name in dict.fromkeys(_HELPER.findall(text[: 10 * MOST_VALUE])):
        yield Setting("config:", (name,))
    values: dict[str, str] = {}
    for line in text.splitlines():
        assigned = _ASSIGNED.match(line[:500])
        if assigned is not None and not assigned.group(1).startswith("tokenizer."):
            value = assigned.group(2).strip().rstrip(",")
            value = values.get(value.partition(".")[2], value)  # cfg.model.x of an earlier line
            unknown = _NAME.fullmatch(value) and value not in ("None", "True", "False")
            values[assigned.group(1)] = f"${{{value}}}" if unknown else value.strip("\"'")
            yield Setting(f"{assigned.group(1)}=", (values[assigned.group(1)],))
        elif not re.match(r"\s*(?:import|from|def|class|#)\b|.*tokenizer", line[:500]):
            for name, value in _KEYWORD.findall(line[:500]):
                yield Setting(f"{name}=", (value.strip("\"'"),))
