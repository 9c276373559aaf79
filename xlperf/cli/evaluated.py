"""A file of plans of any length, evaluated in blocks by all cores and written as they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced
from xlperf.cli.output import STANDARD, parts, progress, standard_output
from xlperf.cli.table_files import arrow_table, csv_header, csv_rows, pyarrow, write_parquet
from xlperf.explore.workers import all_processes, worked

if TYPE_CHECKING:
    from xlperf.catalog.catalog import Catalog
    from xlperf.catalog.read import PlanRows
    from xlperf.explore.candidates import Bounds

ROWS = 16_384
"""Plans of a block if all lines are of one length. [-]"""


class _Block(NamedTuple):
    """Results of a block: its length, the first line and the lines of CSV, or an Arrow stream; or what is wrong."""

    number: int
    header: str
    content: Any
    faults: tuple[Fault, ...] = ()
    unknown: tuple[Fault, ...] = ()


class _Evaluation(NamedTuple):
    """What is done to each block: read, checked, evaluated and put into the form of a file."""

    catalog: Catalog
    bounds: Bounds
    parquet: bool

    def done(self, task: tuple[PlanRows, bool]) -> _Block:
        from xlperf.catalog.check import name_faults
        from xlperf.explore.auto import evaluate_resolved

        rows, check_only = task
        plans, faults = rows.table()
        unknown = () if faults else name_faults([plans], self.catalog)
        if faults or unknown or check_only:
            return _Block(len(plans), "", b"", tuple(faults), tuple(unknown))
        if not self.parquet:
            block = parts(*evaluate_resolved(plans, self.catalog, **self.bounds))
            return _Block(len(plans), csv_header(block), csv_rows(block))
        pa, _ = pyarrow()
        table = arrow_table(parts(*evaluate_resolved(plans, self.catalog, **self.bounds)))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return _Block(len(plans), "", sink.getvalue().to_pybytes())


def write_evaluated(
    plans: str,
    output: str,
    catalog: Catalog,
    bounds: Bounds,
    processes: int | None = None,
    scheduler: str | None = None,
) -> tuple[int, str]:
    """Evaluate the plans of a CSV or Parquet file and write them with their results, in the memory of a few blocks.

    ``plans``: file, or ``-`` for CSV on standard input. ``output``: file that ends in .csv or .parquet, or ``-``; a
    file is replaced whole when everything is written. ``bounds``: of the search for cells that say ``auto``.
    ``processes``: processes that compute; default: one for each core. ``scheduler``: address of a Dask scheduler whose
    workers compute instead. Returns number of plans, and their kind. Raises InputError with every fault of the file;
    names that the catalog lacks where there is no other.
    """
    from xlperf.catalog.read import plan_blocks

    parquet = output != STANDARD and Path(output).suffix.lower() == ".parquet"
    if parquet:
        pyarrow()
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
                    _write_parquet(temporary, blocks)
                else:
                    with temporary.open("wb") as stream:
                        _write_csv(stream.write, blocks)
                run.finish(plans)
    return run.number, run.kind


class _Run:
    """Blocks on their way: how many plans there were, and what was wrong with them."""

    def __init__(self, rows: Iterator[PlanRows]) -> None:
        self._rows = rows
        self.number, self.kind = 0, ""
        self._faults: list[Fault] = []
        self._unknown: list[Fault] = []

    def tasks(self) -> Iterator[tuple[PlanRows, bool]]:
        for rows in self._rows:
            self.kind = rows.kind
            yield rows, bool(self._faults or self._unknown)

    def blocks(self, found: Iterator[_Block], done: Callable[[int], Any]) -> Iterator[_Block]:
        """Blocks to write; none from the first that is faulty on."""
        for block in found:
            self.number += block.number
            self._faults += block.faults
            self._unknown += block.unknown
            done(block.number)
            if len(block.content) and not (self._faults or self._unknown):
                yield block

    def finish(self, plans: str) -> None:
        """Refuse what was wrong, once all of it is known."""
        if self._faults or self._unknown:
            raise InputError(self._faults or self._unknown)
        if not self.number:
            name = "standard input" if plans == STANDARD else Path(plans).name
            raise InputError(Fault(name, "has no plans; fill at least one row"))


def _write_csv(write: Callable[[bytes], Any], blocks: Iterator[_Block]) -> None:
    for number, block in enumerate(blocks):
        if number == 0:
            write(block.header.encode("utf-8"))
        write(block.content)


def _write_parquet(path: Path, blocks: Iterator[_Block]) -> None:
    pa, _ = pyarrow()
    write_parquet(path, (pa.ipc.open_stream(block.content).read_all() for block in blocks))
