"""Tables of any length: all cores compute blocks, which are written in order or collected in a folder until the end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import clear_scratch, held, replaced
from xlperf.catalog.cells import parse_header
from xlperf.catalog.schema import Part, parts
from xlperf.cli.command import note_own
from xlperf.cli.output import NONE_COUNTED, STANDARD, Legal, legal_of, progress, say, standard_output
from xlperf.cli.table_files import (
    arrow_table,
    csv_header,
    csv_rows,
    parquet_rows,
    pyarrow,
    write_parquet,
    written_block,
)
from xlperf.explore.workers import all_processes, worked

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.read import PlanRows
    from xlperf.explore.candidates import Bounds
    from xlperf.explore.sweep import Sweep


ROWS = 8_192
"""Plans of a block if all lines are of one length. [-]"""


class _Block(NamedTuple):
    """Results of a block: number of plans, CSV header and lines or an Arrow stream; or faults."""

    number: int
    header: str
    content: Any
    faults: tuple[Fault, ...] = ()
    unknown: tuple[Fault, ...] = ()
    taken: tuple[str, ...] = ()
    legal: Legal = NONE_COUNTED


class _Evaluation(NamedTuple):
    """Reads, checks and evaluates a block and encodes it for a file."""

    catalog: Catalog
    bounds: Bounds
    parquet: bool

    def done(self, task: tuple[PlanRows, bool]) -> _Block:
        from xlperf.catalog.check import name_faults, taken_names
        from xlperf.explore.search import evaluate_resolved

        rows, check_only = task
        plans, faults = rows.table()
        unknown = () if faults else name_faults([plans], self.catalog)
        if faults or unknown or check_only or not len(plans):
            return _Block(len(plans), "", b"", tuple(faults), tuple(unknown))
        resolved, results = evaluate_resolved(plans, self.catalog, **self.bounds)
        block, taken = parts(resolved, results), tuple(taken_names([plans], self.catalog))
        legal = legal_of(results)
        if not self.parquet:
            return _Block(len(plans), csv_header(block), csv_rows(block), taken=taken, legal=legal)
        pa, _ = pyarrow()
        table = arrow_table(block)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return _Block(len(plans), "", sink.getvalue().to_pybytes(), taken=taken, legal=legal)


def write_evaluated(
    plans: str,
    output: str,
    catalog: Catalog,
    bounds: Bounds,
    processes: int | None = None,
    scheduler: str | None = None,
) -> tuple[Legal, str]:
    """Evaluate the plans of a CSV or Parquet file and write them with their results, in the memory of a few blocks.
    Returns how many plans are legal, and their kind; raises InputError with every fault of the file.
    """
    from xlperf.catalog.read import plan_blocks

    parquet = output != STANDARD and Path(output).suffix.lower() == ".parquet"
    if parquet:
        pyarrow()  # refuses at once if it is not installed
    run = _Run(plan_blocks(plans, ROWS))
    with progress(0, "plans evaluated") as done:
        evaluation = _Evaluation(catalog, bounds, parquet)
        blocks = run.blocks(worked(evaluation.done, run.tasks(), processes or all_processes(), scheduler), done)
        if output == STANDARD:
            write = standard_output().write
            _write_csv(lambda content: write(str(content, "utf-8")), blocks)
            run.finish(plans)
        else:
            with replaced(output) as temporary:
                if parquet:
                    pa, _ = pyarrow()
                    write_parquet(temporary, (pa.ipc.open_stream(block.content).read_all() for block in blocks))
                else:
                    with temporary.open("wb") as stream:
                        _write_csv(stream.write, blocks)
                run.finish(plans)
    return run.legal, run.kind


class _Run:
    """Counts plans and collects faults while blocks pass through."""

    def __init__(self, rows: Iterator[PlanRows]) -> None:
        self._rows = rows
        self.number, self.kind, self.legal = 0, "", NONE_COUNTED
        self._faults: list[Fault] = []
        self._unknown: list[Fault] = []
        self._taken: dict[str, None] = {}
        self._own: list[str] = []

    def tasks(self) -> Iterator[tuple[PlanRows, bool]]:
        for rows in self._rows:
            self.kind = rows.kind
            self._own = [" ".join(str(rows.header[at]).split()) for at in parse_header(rows.kind, rows.header).own]
            yield rows, bool(self._faults or self._unknown)

    def blocks(self, results: Iterator[_Block], done: Callable[[int], Any]) -> Iterator[_Block]:
        """Blocks to write; none from the first that is faulty on."""
        for block in results:
            self.number += block.number
            self._faults += block.faults
            self._unknown += block.unknown
            self._taken |= dict.fromkeys(block.taken)
            self.legal = self.legal.with_more(block.legal)
            done(block.number)
            if len(block.content) and not (self._faults or self._unknown):
                yield block

    def finish(self, plans: str) -> None:
        """Raise all faults at the end."""
        if self._faults or self._unknown:
            raise InputError(self._faults or self._unknown)
        if not self.number:
            name = "standard input" if plans == STANDARD else Path(plans).name
            raise InputError(Fault(name, "has no plans; fill at least one row"))
        say(*(f"note: {words}" for words in self._taken), err=True)
        note_own(self._own)


def _write_csv(write: Callable[[bytes], Any], blocks: Iterator[_Block]) -> None:
    for number, block in enumerate(blocks):
        if number == 0:
            write(block.header.encode("utf-8"))
        write(block.content)


_MANIFEST = "sweep.json"
_LOCK = ".xlperf-lock"


class Blocks(NamedTuple):
    """A sweep and how its blocks are written."""

    sweep: Sweep
    columns: Sequence[str]  # names of the columns to write; none for all
    suffix: str  # .csv or .parquet

    def written(self, number: int) -> bytes:
        """A block as a file of its own."""
        plans, results, varied = self.sweep.block(number)
        block: list[Part] = [*parts(plans), *varied, *parts(results)]
        chosen = [part for part in block if not self.columns or part[0].name in self.columns]
        return written_block(chosen, self.suffix)

    @property
    def manifest(self) -> str:
        """Text that identifies the sweep of the blocks in a folder."""
        stated = {"sweep": self.sweep.fingerprint, "plans": len(self.sweep), "columns": list(self.columns)}
        return json.dumps(stated)


def write_sweep(output: str, blocks: Blocks, processes: int, scheduler: str | None = None) -> None:
    """Compute a sweep block by block and write it. A folder beside the output holds the finished blocks until the end;
    the same command resumes from them after a kill.
    """
    count, number = len(blocks.sweep), blocks.sweep.num_blocks
    if output == STANDARD:
        with _rows_done(blocks, count) as advance:
            for place, content in enumerate(worked(blocks.written, range(number), processes, scheduler)):
                standard_output().write(str(_without_header(content, place), "utf-8"))
                advance(place)
        return
    folder = Path(f"{os.path.realpath(output)}.parts")
    with held(folder / _LOCK, output):
        done = _finished(folder, blocks.manifest)
        files = [folder / f"{place:08d}{blocks.suffix}" for place in range(number)]
        todo = [place for place, file in enumerate(files) if file.name not in done]
        if len(todo) < number:
            say(f"{output}: {number - len(todo):,} of {number:,} blocks are there from before", err=True)
            clear_scratch()  # of the killed run: the few blocks that are left may need none
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
        _clear(folder)
    with suppress(OSError):  # the next sweep is there already
        folder.rmdir()


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


def _finished(folder: Path, manifest: str) -> set[str]:
    """Names of finished blocks of the same sweep; otherwise an emptied folder with a new manifest."""
    stated = folder / _MANIFEST
    if stated.is_file() and stated.read_text(encoding="utf-8") == manifest:
        return {file.name for file in folder.iterdir()}
    own = ".xlperf-"  # a run that was killed as it wrote the manifest leaves a part of it
    if not stated.is_file() and any(not file.name.startswith(own) for file in folder.iterdir()):
        problem = "is a folder that xlperf keeps blocks in, but it holds other files; remove it or rename the output"
        raise InputError(Fault(str(folder), problem))
    _clear(folder)
    with replaced(stated) as temporary:
        temporary.write_text(manifest, encoding="utf-8")
    return set()


def _clear(folder: Path) -> None:
    """Remove blocks, then the manifest, so that an interrupted removal is recognised. The lock remains."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == _MANIFEST):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)  # parts of killed commands go by themselves
