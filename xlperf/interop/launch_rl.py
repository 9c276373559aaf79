"""Runs of reinforcement learning as the question that ``xlperf rl`` answers.

``rl_arguments.csv`` maps arguments of a stack to options of the command. Arguments of one option multiply.
``meaning``: ``prompts`` counts prompts rather than rollouts, ``together`` a switch for rollouts and trainer that take
turns, ``at most`` a limit that stands for a length unless another argument states it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from xlperf.base.resources import rows
from xlperf.interop.launch_text import LONGEST_NAME, Setting

_OFF = ("false", "null", "none")
_MOST_DIGITS = 9
_ENGINES = ("vllm", "sglang")
_NEEDED = ("prompts-per-step", "samples-per-prompt")
_OF_ROLLOUTS = ("grpo.", "actor_rollout_ref.", "policy.generation.")


def rl_question(stack: str, settings: Iterable[Setting]) -> str:
    """The command that asks about a run, "" for a text that states nothing of rollouts.

    >>> words = {"data.train_batch_size=": "64", "actor_rollout_ref.rollout.n=": "8", "trainer.nnodes=": "2"}
    >>> rl_question("verl", [Setting(name, (value,)) for name, value in words.items()])
    'xlperf rl --prompts-per-step 64 --samples-per-prompt 8'
    """
    stated = {one.name[:LONGEST_NAME].strip("-=:").casefold(): one.argument for one in settings}
    off = [
        name.removesuffix("enabled")
        for name, value in stated.items()
        if name.endswith(".enabled") and value.casefold() == "false"
    ]
    options, together, open_ = dict[str, str](), False, set[str]()
    for row in rows("interop/rl_arguments.csv"):
        value, option = stated.get(row["argument"]), row["option"]
        if row["stack"] != stack or value is None or row["argument"].startswith(tuple(off)):
            continue
        if option == "model":
            name = value.rstrip("/").rpartition("/")[2]
            options |= {option: name} if name and not set(name) & set("${}") else {}
        elif option == "rollout-software":
            options |= {option: value} if value in _ENGINES else {}
        elif row["meaning"] == "together":
            together = value.casefold() not in _OFF
        elif "$" in value:
            open_.add(option)
        elif value.isdecimal() and 0 < len(value) <= _MOST_DIGITS and int(value):
            samples = int(options.get("samples-per-prompt", "1")) if row["meaning"] == "prompts" else 1
            if option == "num-accelerators":  # nodes, and accelerators of each
                samples = int(options.get(option, "1"))
                (open_.discard if option in options else open_.add)(option)
            options[option] = str(int(value) * samples)
    options = {name: value for name, value in options.items() if name not in open_}
    if not options.keys() & set(_NEEDED) and not any(name.startswith(_OF_ROLLOUTS) for name in stated):
        return ""
    engines = int(options.pop("rollout-accelerators", "0")) * int(options.get("rollout-tensor-parallel", "1"))
    if engines:
        options["rollout-accelerators"] = "0" if together else str(engines)
        if not together and "num-accelerators" in options:
            options["num-accelerators"] = str(int(options["num-accelerators"]) + engines)
    if "longest-output" in options:
        options["output-length"] = str(max(int(options["longest-output"]) // 2, 1))
    return shlex.join(["xlperf", "rl", *(word for name, value in options.items() for word in (f"--{name}", value))])
