"""Settings of the commands of a text by a stack's flags: values, unknown ones, and values for other scripts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import NamedTuple

from xlperf.interop.checkpoints import SIXTEEN_BITS
from xlperf.interop.config_rules import Stated
from xlperf.interop.launch_stacks import (
    Flag,
    by_name,
    candidates_of,
    flags,
    last,
    moves,
    stacks,
    started_server,
    still_variables,
    value_of,
    variables,
)
from xlperf.interop.launch_text import COMMAND, Setting, handed_to

_SHORT = re.compile(r"-[A-Za-z]|[A-Z_][A-Z0-9_]*=")
"""Options of other commands on the same line, and variables: not listed if they are not known."""
_NARROW = ("fp8", "mxfp8", "fp4")  # beside 16 bits, which mixed precision names as well
_BESIDE = re.compile(
    r"(?!\w*(?:train|tune)_)(?:[\w.]*\.)?(?:(?:vllm_)?decode|decode_multi|inference\w*|"
    r"forward_pass_logit_checker|\w*(?:ckpt|checkpoint)s?|"
    r"(?:infer|deploy|rollout|convert|export|preprocess|evaluate|eval|merge|generate|tokenize|quantize|download|prepare)(?:_\w+)?)(?:\.py)?"
)
"""Programs that stand beside training in one script: what they are told says nothing of it."""
_FACTORY = re.compile(r"^[^#\n]{0,2000}--factory[ =]", re.MULTILINE)
_OF_FACTORY = ("precision", "sequence parallel", "sequence length", "recompute", "virtual pipeline", "context parallel")
_LAUNCHERS = ("swift", "megatron")  # commands of ms-swift, whose first word is a program
_PATHS = ("@config", "@checkpoint", "@named")  # quantities whose last part counts, whatever folder it is in


def fit(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> float:
    """Score of how well flags match a stack: known columns count most, unknown flags against it."""
    known = by_name(stack)
    of_environment = variables(flags(stack)[0].kind)
    result = 0.0
    for setting in (one for text in groups for group in text for one in group):
        if setting.name[0] == "$":
            result += 0.5 * (setting.name[1:].upper() in of_environment)
            continue
        own = candidates_of(known, setting.name)
        result += (1.0 + any(flag.column for flag in own)) if own else -0.1
    return result


class Told(NamedTuple):
    """Settings found in the commands of a stack.

    ``values``: by column; ``unknown``: settings outside the table; ``open``: settings without a value, and their
    columns; ``handed``: unknown values passed to another script; ``scripts``: scripts that receive or provide values;
    ``started``: other scripts. ``runs``: starts of one script or program with settings of their own.
    """

    values: Stated
    unknown: list[str]
    open: list[tuple[str, str]]
    handed: list[str]
    scripts: list[str]
    started: list[str]
    runs: list[str]


def models_started(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> list[str]:
    """Models of the servers that commands start, each once; of variables none."""
    known = by_name(stack)
    models = []
    for group in (group for text in groups for group in text):
        words = " ".join(word for one in group if one.name == COMMAND for word in one.arguments)
        if started_server(words):
            named = [one for one in group if any(flag.column == "@model" for flag in candidates_of(known, one.name))]
            models += [one.argument for one in named[-1:] if one.argument and "$" not in one.argument]
    return list(dict.fromkeys(models))


def told_by(groups: Sequence[Sequence[Sequence[Setting]]], stack: str) -> Told:
    """Values that flags set, later ones replacing earlier ones, and variables that a script is started with."""
    known, exact = by_name(stack), stack not in (*stacks(), "bridge")
    of_environment = variables(flags(stack)[0].kind)
    told, training = Told({}, [], [], [], [], [], []), flags(stack)[0].kind == "training"
    around: Stated = {}
    for group in (group for text in groups for group in text):
        starts = [one.arguments for one in group if one.name == COMMAND]
        script = next(filter(None, map(handed_to, starts)), "")
        results = [(one, candidates_of(known, one.name, exact)) for one in group if one.name[0] != "$"]
        handed = [(one, of_environment.get(one.name[1:].upper(), ())) for one in group if one.name[0] == "$"]
        handed = [(one, own) for one, own in handed if one.name != COMMAND]
        degrees = sum(flag.column[:1] not in ("", "@") for _, own in handed for flag in own[:1])
        if not any(own for _, own in results) and not (script and degrees):
            sourced = script and starts[0][0] in ("source", ".")
            (told.scripts if sourced else told.started).extend([script] if script else [])
            continue
        run = script or next(_programs(starts), "")
        beside = [word for word in _programs(starts) if _BESIDE.fullmatch(word.rpartition("/")[2][:200])]
        if training and beside:
            told.values["@beside"] = beside[0]
            continue
        if run in told.runs:  # of several runs the last one counts
            for earlier in (told.values, around, told.unknown, told.open, told.handed):
                earlier.clear()
        told.runs.extend([run] if run else [])
        if script:
            told.scripts.append(script)
            told.values["@handed"] = script
        told.values.update({f"@sign {sign}": "yes" for sign in _signs(group)})
        for one, own in handed:
            _take(told, around, one, own, script if one.argument and _counts(one) else "")
        stated: Stated = {}  # a value counts before a switch for the same column, wherever it stands
        for setting, own in sorted(results, key=lambda one: bool(one[0].arguments)):
            if own or not _SHORT.fullmatch(setting.name):
                _take(told, stated, setting, own, "")
        told.values.update(stated)
    return told._replace(values={**around, **told.values})


def _programs(starts: Sequence[Sequence[str]]) -> Iterator[str]:
    """Files and modules of Python that a command starts.

    >>> list(_programs([["python3", "MaxText.decode", "base.yml"], ["torchrun", "a/train.py"]]))
    ['MaxText.decode', 'a/train.py']
    """
    for words in starts:
        files = [word for word in words if word.endswith(".py")]
        named = (word for before, word in pairwise(words) if before.startswith("python") or before in _LAUNCHERS)
        yield from files or named


def _signs(group: Sequence[Setting]) -> Iterator[str]:
    """Words by which a wrapper is known: of its command, and values of its configuration."""
    for one in group:
        if one.name == COMMAND:
            plain = [word.rpartition("/")[2] for word in one.arguments]
            yield from (*plain, *(f"{first} {second}" for first, second in pairwise(plain)))
        elif one.name.endswith("config:"):
            yield one.argument


def _counts(variable: Setting) -> bool:
    """Whether a variable may move a result: not a path, an address, or a setting of a library."""
    name = variable.name[1:].upper()
    return moves(variable.words) or not any(fnmatchcase(name, pattern) for pattern in still_variables())


def _take(told: Told, values: Stated, setting: Setting, own: Sequence[Flag], script: str) -> None:
    """Add a setting; ``script``: the other script that receives it, if it may move a result there."""
    if not own:
        if setting.name[0] != "$":
            told.unknown.append(setting.words)
        elif setting.name[1:2] == "{":
            told.open.append((setting.words, f"@array {setting.name}"))
        elif script:
            told.unknown.append(setting.words)
            told.handed.append(setting.words)
        return
    if " " in setting.argument and own[0].column == "precision":  # -c of bash
        told.unknown.append(setting.words)
        return
    if "$" in setting.argument and not (own[0].column in _PATHS and "$" not in last(setting.argument.rstrip("/"))):
        column = next((flag.column for flag in own if flag.column), "")
        told.open.extend([(setting.words, column)] if column else [])
        return
    value = value_of(own, setting)
    if value is None:
        told.unknown.append(setting.words)
        told.handed.extend([setting.words] if script else [])
    elif not (value.get("precision") in SIXTEEN_BITS and values.get("precision", "").startswith(_NARROW)):
        values |= value


def defaults_of_others(told: Told, columns: Collection[str], text: str) -> Iterator[str]:
    """Notes on what a recipe, an engine or another script decides."""
    left = [name for name in _OF_FACTORY if name.replace(" ", "_") not in {*told.values, *columns}]
    if left and _FACTORY.search(text):
        yield f"the recipe that --factory names decides, here defaults: {', '.join(left)}"
    for words, column in told.open:
        if column == "max_context" and column not in columns:
            yield f"{words} is not known: any length is taken"
    for path in dict.fromkeys(told.scripts):
        yield f"what {last(path)} sets itself is not read"
    for path, many in Counter(told.runs).items():
        if many > 1:
            yield f"starts {last(path)} {many} times: the last one is read"
