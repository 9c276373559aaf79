"""``xlperf time``: one collective or kernel by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlperf.base.errors import Fault, InputError
from xlperf.cli.common import catalog_option, examples, output_option, say, wrote
from xlperf.cli.files import Command

if TYPE_CHECKING:
    import numpy as np

OPERATIONS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point", "gemm", "prefill-attention",
    "decode-attention", "memory",
)  # fmt: skip
_TEXTS = {
    "network": "Network; default: that of the accelerator.",
    "stack": "inference or training: whose kernels are used.  [default: inference]",
    "software": "Engine or training stack that keys the calibration.",
    "precision": "As in plans.  [default: bf16]",
    "kv-precision": "Of the cache; default: as in plans.",
}
_NUMBERS = {
    "size": "Buffer of a rank in the sense of nccl-tests, or bytes that a kernel moves: '64 MiB'; MB without a unit.",
    "group": "Ranks of the collective.",
    "stride": "Distance of neighbouring ranks.  [default: 1]",
    "num-accelerators": "Accelerators of the job.  [default: group x stride]",
    "m": "Rows of the product.",
    "n": "Columns of the product.",
    "k": "Depth of the product.",
    "batch": "Products in one call, or sequences.  [default: 1]",
    "num-attention-heads": "Query heads of a rank.",
    "num-query-groups": "Key-value heads of a rank.  [default: as query heads]",
    "head-size": "Elements of a head.  [default: 128]",
    "query-length": "Tokens that attend.",
    "key-length": "Tokens that are attended to.  [default: query length]",
    "causal": "yes or no.  [default: yes]",
}
_SIZE = re.compile(r"\s*([-+.\d]+(?:[eE][-+]?\d+)?)\s*(?![eE][-+]?\d+\s*$)([A-Za-z]\S*)\s*")


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed((_TEXTS | _NUMBERS).items()):
        flags = ("-" + name,) if len(name) == 1 else ("--" + name,)
        command = click.option(*flags, metavar="VALUES" if name in _NUMBERS else name.upper(), help=text)(command)
    return command


@click.command(
    "time",
    cls=Command,
    short_help="Time one collective or kernel by itself, as plans do.",
    epilog=examples(
        "xlperf time all-reduce --accelerator H100-SXM-80GB --group 8 --size '1 MiB,64 MiB,1 GiB'",
        "xlperf time all-to-all --accelerator H100-SXM-80GB --group 64 --size 32 --network DGX-H100-rails",
        "xlperf time gemm --accelerator B200-SXM-180GB -m 8192 -n 8192 -k 8192 --precision fp8",
        "xlperf time prefill-attention --accelerator H200-SXM-141GB --num-attention-heads 64 --query-length 8192",
        "xlperf time decode-attention --accelerator H200-SXM-141GB --num-attention-heads 64 --num-query-groups 8 "
        "--key-length 4096 --batch 64",
    ),
)
@click.argument("operation", type=click.Choice(OPERATIONS))
@click.option("--accelerator", required=True, metavar="NAME", help="Accelerator of the catalog; may be several.")
@_options
@output_option
@catalog_option
def time(operation: str, accelerator: str, output: str | None, catalog: str | None, **given: str | None) -> None:
    """Time OPERATION by itself with the code and the calibration of plans: the number that xlperf explain shows.

    Several values with commas between make a line for each combination. Time is that of one call with nothing beside
    it; a kernel is launched ahead, as a running stack does. Bound is what, if doubled, would help most. The last
    column says whether the constants were measured on this generation or are extrapolated.

    Exit code 1, with the reason, where the accelerator or the network cannot do it.
    """
    import numpy as np

    from xlperf.catalog.table import Table
    from xlperf.cli.common import catalog_of
    from xlperf.cli.results import parts, write_blocks, write_workbook
    from xlperf.cli.terminal import text_table
    from xlperf.engine.operations import evaluate_operations
    from xlperf.explore.space import grid, read_values

    known = catalog_of(catalog, None)
    stated = {name.replace("_", "-"): value for name, value in given.items() if value is not None}
    values: dict[str, np.ndarray] = {}
    for name, text in {"accelerator": accelerator, **stated}.items():
        values |= read_values("operations", [_line(name, text)], _option(name), from_text=True)
    base = Table("operations", {"operation": np.array([operation], dtype=object)}, lambda _row, column: _option(column))
    table = grid(base, values)
    results = evaluate_operations(table, known)
    for row, reason in enumerate(results.text("reason").tolist()):
        if reason:
            say(f"{operation} on {table.text('accelerator')[row]}: {reason}", err=True)
    shown = [part for part in parts(table, results) if part[0].name != "reason" and not _blank(part[1])]
    if output is None:
        say(*text_table(shown))
    elif Path(output).suffix.lower() == ".xlsx":
        write_workbook(output, [("operations", [table, results])])
    else:
        write_blocks(output, [parts(table, results)])
    if output is not None:
        wrote(output, len(table), "operation")
    if any(results.text("reason").tolist()):
        raise click.exceptions.Exit(1)


def _option(column: str) -> str:
    name = column.replace("_", "-")
    return {"operation": "xlperf time"}.get(name, f"-{name}" if len(name) == 1 else f"--{name}")


def _blank(values: np.ndarray) -> bool:
    return all(value == "" or value != value for value in values.tolist())


def _line(name: str, text: str) -> tuple[str, list[str]]:
    """A header and the values of an option; sizes with a unit in bytes."""
    from xlperf.base.units import UNITS

    words = text.split(",")
    found = [_SIZE.fullmatch(word) for word in words]
    if name != "size" or not any(found):
        return name, words
    sizes = []
    for word, part in zip(words, found, strict=True):
        unit = UNITS.get(part[2]) if part else UNITS["MB"]
        if unit is None or unit.dimension != "B":
            raise InputError(Fault("--size", f'cannot be in "{part[2] if part else word}"; write bytes, as 64 MiB'))
        try:
            sizes.append(repr(float(part[1] if part else word) * unit.factor))
        except ValueError:
            raise InputError(Fault("--size", f'must be a number of bytes, as 64 MiB, got "{word.strip()}"')) from None
    return f"{name} (B)", sizes
