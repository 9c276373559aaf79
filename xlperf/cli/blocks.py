"""Blocks of a long table: computed by all cores, kept as files until the last is done, then joined."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.cli.output import STANDARD, parts, progress, say, standard_output
from xlperf.cli.table_files import Part, parquet_rows, write_parquet, written_block
from xlperf.explore.workers import worked

if TYPE_CHECKING:
    from xlperf.explore.sweep import Sweep

_MANIFEST = "sweep.json"


class Blocks(NamedTuple):
    """A sweep, the columns that are kept of its blocks, and the kind of file that they go to.

    Attributes
    ----------
    sweep : Sweep
        What is computed.
    columns : sequence of str
        Names of the columns that are written; none for all.
    suffix : str
        ``.csv`` or ``.parquet``.
    """

    sweep: Sweep
    columns: Sequence[str]
    suffix: str

    def written(self, number: int) -> bytes:
        """A block as a file of its own."""
        plans, results, varied = self.sweep.block(number)
        block: list[Part] = [*parts(plans), *varied, *parts(results)]
        kept = [part for part in block if not self.columns or part[0].name in self.columns]
        return written_block(kept, self.suffix)

    @property
    def manifest(self) -> str:
        """What the files of the blocks belong to."""
        stated = {"sweep": self.sweep.fingerprint, "plans": len(self.sweep), "columns": list(self.columns)}
        return json.dumps(stated)


def write_sweep(output: str, blocks: Blocks, processes: int, scheduler: str | None = None) -> None:
    """Compute a sweep block by block and write it, in the memory of a few blocks.

    Blocks are kept in a folder beside the output until all are done; a command that was killed goes on from there
    when it is given again. Blocks of another sweep are removed.

    ``output``: file that ends in .csv or .parquet, or ``-``. ``blocks``: what is computed and kept. ``processes``:
    processes that compute. ``scheduler``: address of a Dask scheduler whose workers compute instead.
    """
    count, number = len(blocks.sweep), blocks.sweep.num_blocks
    if output == STANDARD:
        with _rows_done(blocks, count) as advance:
            for place, content in enumerate(worked(blocks.written, range(number), processes, scheduler)):
                standard_output().write(str(_without_header(content, place), "utf-8"))
                advance(place)
        return
    folder = Path(f"{os.path.realpath(output)}.parts")
    done = _kept(folder, blocks.manifest)
    files = [folder / f"{place:08d}{blocks.suffix}" for place in range(number)]
    todo = [place for place, file in enumerate(files) if file.name not in done]
    if len(todo) < number:
        say(f"{output}: {number - len(todo):,} of {number:,} blocks are there from before", err=True)
    left = sum(_size(blocks, place) for place in todo)
    with _rows_done(blocks, left) as advance:
        for place, content in zip(todo, worked(blocks.written, todo, processes, scheduler), strict=True):
            with replaced(files[place]) as temporary:
                temporary.write_bytes(content)
            advance(place)
    with replaced(output) as temporary:
        if blocks.suffix == ".parquet":
            write_parquet(temporary, parquet_rows(files))
        else:
            with temporary.open("wb") as stream:
                for place, file in enumerate(files):
                    stream.write(_without_header(file.read_bytes(), place))
    shutil.rmtree(folder)


def _size(blocks: Blocks, number: int) -> int:
    from xlperf.explore.sweep import BLOCK

    return min(BLOCK, len(blocks.sweep) - number * BLOCK)


@contextmanager
def _rows_done(blocks: Blocks, count: int) -> Iterator[Callable[[int], None]]:
    """Progress in plans, called with the numbers of blocks."""
    with progress(count, f"{count:,} {blocks.sweep.plans.kind} plans") as done:
        yield lambda number: done(_size(blocks, number))


def _without_header(content: bytes, place: int) -> bytes:
    """Lines of a block of CSV; only the first has a header."""
    return content if place == 0 else content[content.index(b"\n") + 1 :]


def _kept(folder: Path, manifest: str) -> set[str]:
    """Names of the blocks that an earlier run of the same sweep left; the folder is made ready otherwise."""
    stated = folder / _MANIFEST
    if stated.is_file() and stated.read_text(encoding="utf-8") == manifest:
        return {file.name for file in folder.iterdir()}
    own = ".xlperf-"  # a run that was killed as it wrote the manifest leaves a part of it
    if folder.exists() and not stated.is_file() and any(not file.name.startswith(own) for file in folder.iterdir()):
        problem = "is a folder that xlperf keeps blocks in, but it holds other files; remove it or rename the output"
        raise InputError(Fault(str(folder), problem))
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    with replaced(stated) as temporary:
        temporary.write_text(manifest, encoding="utf-8")
    return set()
