"""Blocks of a long table: computed by all cores, kept as files until the last is done, then joined."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.cli.output import STANDARD, Part, joined_parquet, parts, progress, say, standard_output, write_block

if TYPE_CHECKING:
    from xlperf.explore.sweep import Sweep

SERIAL_BLOCKS = 3
"""Blocks that one process computes before others have started. [-]"""
_AHEAD = 2
_MANIFEST = "sweep.json"
_worker: dict[str, Blocks] = {}


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
        stream = io.BytesIO()
        write_block(stream, kept, self.suffix)
        return stream.getvalue()

    @property
    def manifest(self) -> str:
        """What the files of the blocks belong to."""
        stated = {"sweep": self.sweep.fingerprint, "plans": len(self.sweep), "columns": list(self.columns)}
        return json.dumps(stated)


def all_processes() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(blocks: Blocks) -> None:
    """Prepare a worker process: it ends when the process that asked for it is killed."""
    _worker["blocks"] = blocks
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _written(number: int) -> bytes:
    return _worker["blocks"].written(number)


def computed(blocks: Blocks, numbers: Sequence[int], processes: int) -> Iterator[tuple[int, bytes]]:
    """Blocks as files, in the order asked for, by several processes where there are enough of them."""
    if processes == 1 or len(numbers) <= SERIAL_BLOCKS:
        for number in numbers:
            yield number, blocks.written(number)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(numbers)), context, _start, (blocks,)) as pool:
        try:
            yield from _in_order(pool, numbers, processes * _AHEAD)
        except BrokenProcessPool:
            problem = "ended before its block was done (too little memory?): run again with fewer --processes"
            raise InputError(Fault("a process of the sweep", problem)) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(pool: Executor, numbers: Sequence[int], ahead: int) -> Iterator[tuple[int, bytes]]:
    """Results in the order of their numbers, a bounded count of them under way."""
    waiting: deque[tuple[int, Any]] = deque()
    for number in numbers:
        waiting.append((number, pool.submit(_written, number)))
        if len(waiting) > ahead:
            done, future = waiting.popleft()
            yield done, future.result()
    while waiting:
        done, future = waiting.popleft()
        yield done, future.result()


def write_sweep(output: str, blocks: Blocks, processes: int) -> None:
    """Compute a sweep block by block and write it, in the memory of a few blocks.

    Blocks are kept in a folder beside the output until all are done; a command that was killed goes on from there
    when it is given again. Blocks of another sweep are removed.

    Parameters
    ----------
    output : str
        File that ends in .csv or .parquet, or ``-``.
    blocks : Blocks
        What is computed and kept.
    processes : int
        Processes that compute.
    """
    count, number = len(blocks.sweep), blocks.sweep.num_blocks
    if output == STANDARD:
        with _rows_done(blocks, count) as advance:
            for place, content in computed(blocks, range(number), processes):
                _copy_csv(standard_output().write, content, place == 0)
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
        for place, content in computed(blocks, todo, processes):
            with replaced(files[place]) as temporary:
                temporary.write_bytes(content)
            advance(place)
    with replaced(output) as temporary:
        if blocks.suffix == ".parquet":
            joined_parquet(temporary, files)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as stream:
                for place, file in enumerate(files):
                    _copy_csv(stream.write, file.read_bytes(), place == 0)
    shutil.rmtree(folder)


def _size(blocks: Blocks, number: int) -> int:
    from xlperf.explore.sweep import BLOCK

    return min(BLOCK, len(blocks.sweep) - number * BLOCK)


@contextmanager
def _rows_done(blocks: Blocks, count: int) -> Iterator[Callable[[int], None]]:
    """Progress in plans, called with the numbers of blocks."""
    with progress(count, f"{count:,} {blocks.sweep.plans.kind} plans") as done:
        yield lambda number: done(_size(blocks, number))


def _copy_csv(write: Callable[[str], Any], content: bytes, with_header: bool) -> None:
    text = content.decode("utf-8")
    write(text if with_header else text[text.index("\n") + 1 :])


def _kept(folder: Path, manifest: str) -> set[str]:
    """Names of the blocks that an earlier run of the same sweep left; the folder is made ready otherwise."""
    stated = folder / _MANIFEST
    if stated.is_file() and stated.read_text(encoding="utf-8") == manifest:
        return {file.name for file in folder.iterdir()}
    if folder.exists() and not stated.is_file() and any(folder.iterdir()):
        problem = "is a folder that xlperf keeps blocks in, but it holds other files; remove it or rename the output"
        raise InputError(Fault(str(folder), problem))
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    with replaced(stated) as temporary:
        temporary.write_text(manifest, encoding="utf-8")
    return set()
