"""What all tests share: reproducible examples, and the command line as a function or as a process."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from work import examples

if TYPE_CHECKING:
    from libreoffice_office import Office

    from xlperf.catalog.catalog import Catalog
    from xlperf.measurements.published import Published

# Programs that tests start, and the next run, find modules compiled: else each compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("reproducible", deadline=None, derandomize=True, max_examples=examples(40))
settings.load_profile("reproducible")


ROOMS = ("tests/calibrate", "tests/laws", "tests/studies", "tests/workbook")
"""Folders whose files share what takes long to make: published rows, random plans that are legal, outcomes of studies,
the shipped workbook.
"""


LONG = ("tests/addin/", "tests/explore/", "tests/guide/", "tests/house/")
"""Folders with files that take long: they go first after those of a room, so that processes end together."""


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: collections of garbage do not look at them again, and come less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of files, long ones first; that of the tests of a file stays."""
    items.sort(key=lambda item: (not item.nodeid.startswith(ROOMS), not item.nodeid.startswith(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile``: such a folder goes to one process as a whole, and the doctests, which are short, go last."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByRoom(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((room for room in ROOMS if nodeid.startswith(f"{room}/")), super()._split_scope(nodeid))

    config.option.loadscopereorder = False
    return ByRoom(config, log)


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


def show(path: Path | str) -> str:
    """Sheets of a workbook as text, as the command of that name prints it."""
    from xlperf.catalog.xlsx_rows import shown_lines

    return "".join(f"{line}\n" for line in shown_lines(path))


def csv_rows(text: str) -> list[dict[str, str]]:
    """Rows of a CSV file by the names of their columns, which headers write with spaces and the unit."""
    from xlperf.catalog.schema import split_header

    return [{split_header(name)[0]: value for name, value in row.items()} for row in csv.DictReader(io.StringIO(text))]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``xlperf ARGUMENTS`` in this process."""
    from xlperf.cli import run

    def call(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Outcome]:
    """Run ``xlperf ARGUMENTS`` in a process of its own, in an empty folder."""

    def call(*arguments: str | Path, stdin: str | None = None, cwd: Path | None = None) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "xlperf", *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            timeout=1100,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The shipped catalog; tests make others of it and never change it."""
    from xlperf.catalog.catalog import load_catalog

    return load_catalog()


@pytest.fixture(scope="session")
def training() -> Published:
    """Training rows of papers."""
    from published_samples import TRAINING

    from xlperf.measurements.published import read_published

    return read_published(TRAINING)[0]


@pytest.fixture(scope="session")
def inference() -> Published:
    """Inference rows of papers."""
    from published_samples import INFERENCE

    from xlperf.measurements.published import read_published

    return read_published(INFERENCE)[0]


@pytest.fixture(scope="session")
def shipped_training() -> Published:
    """Training rows of the shipped validation workbook."""

    from shipped import shipped_published

    return next(rows for rows in shipped_published() if rows.kind == "training")


@pytest.fixture(scope="session")
def soffice() -> str:
    """The program of LibreOffice."""
    found = shutil.which("soffice")
    if found is None:
        pytest.skip("LibreOffice is not installed: soffice is not on the path")
    return found


@pytest.fixture(scope="session")
def converted(soffice: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Files as LibreOffice saves them in another format, in the folder ``out`` of a folder; one profile serves all."""
    profile = tmp_path_factory.mktemp("converting") / "profile"

    def convert(folder: Path, kind: str, *files: Path) -> Path:
        command = [soffice, f"-env:UserInstallation={profile.as_uri()}", "--headless", "--norestore"]
        written = {"xlsx": "xlsx:Calc MS Excel 2007 XML"}.get(kind, kind)
        command += ["--convert-to", written, "--outdir", str(folder / "out"), *map(str, files)]
        subprocess.run(command, check=True, capture_output=True, timeout=1100)
        return folder / "out"

    return convert


@pytest.fixture(scope="session")
def driven(soffice: str) -> None:
    """A LibreOffice that tests can drive: on Linux, with its Python module uno."""
    from libreoffice_office import python_with_uno

    if not sys.platform.startswith("linux") or python_with_uno() is None:
        pytest.skip("LibreOffice's Python module uno is not installed, or this is not Linux")


@pytest.fixture(scope="module")
def office(driven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A LibreOffice with the add-in, the same for all tests of a module."""
    from libreoffice_office import Office

    from xlperf.addin.libreoffice import install

    office = Office(tmp_path_factory.mktemp("libreoffice"))
    said = install(office.options)
    assert sys.executable in said
    office.start()
    yield office
    office.end()


@pytest.fixture
def closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Closes the documents that a test has opened in LibreOffice."""
    yield
    office = request.node.funcargs.get("office")
    if office is not None and office.driver is not None:
        with contextlib.suppress(AssertionError):
            office("close")
