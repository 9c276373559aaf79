"""Blocks on a real Dask cluster of two worker processes: the file of one process, also where a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Outcome

PLAN = "name,model,accelerator,num accelerators,tensor parallel\nmine,Llama3-70B,H100-SXM-80GB,64,8\n"
VARY = ("--vary", "accelerators.memory bandwidth=2..4", "--samples", "80000", "--result", "step time", "--seed", "3")


class Cluster(NamedTuple):
    address: str
    workers: list[subprocess.Popen[bytes]]


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, of which the last test that uses them kills one."""
    folder = tmp_path_factory.mktemp("cluster")
    stated = folder / "scheduler.json"
    environment = os.environ | {"DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False"}
    with ExitStack() as stack:

        def started(*arguments: str) -> subprocess.Popen[bytes]:
            result = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(_ended, result)
            return result

        started("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(stated))
        _wait(stated.is_file)
        address = json.loads(stated.read_text())["address"]
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0")
        yield Cluster(address, [started("worker", address, *options) for _ in range(2)])


def _wait(ready: Callable[[], bool]) -> None:
    """Wait until a condition holds; the time limit of a test ends a wait in vain."""
    while not ready():
        time.sleep(0.02)


def test_evaluate_on_a_cluster(tmp_path: Path, cluster: Cluster, command: Callable[..., Outcome]) -> None:
    plans = tmp_path / "plans.csv"
    row = PLAN.splitlines()[1]
    plans.write_text("\n".join([PLAN.splitlines()[0], *[row] * 40_000]))
    for name, options in (("alone", ("--processes", "1")), ("together", ("--scheduler", cluster.address))):
        assert command("evaluate", plans, "-o", tmp_path / f"{name}.csv", *options).code == 0
    assert (tmp_path / "alone.csv").read_bytes() == (tmp_path / "together.csv").read_bytes()


@pytest.mark.slow
def test_a_sweep_on_a_cluster_whose_worker_is_killed(tmp_path: Path, cluster: Cluster) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text(PLAN)
    sweep = [sys.executable, "-m", "xlperf", "evaluate", str(plans), *VARY]
    alone, together = tmp_path / "alone.csv", tmp_path / "together.csv"
    subprocess.run([*sweep, "-o", str(alone), "--processes", "1"], check=True, capture_output=True)
    running = subprocess.Popen(
        [*sweep, "-o", str(together), "--scheduler", cluster.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    parts = Path(f"{together}.parts")
    _wait(lambda: running.poll() is not None or (parts.is_dir() and len(list(parts.glob("0*"))) >= 1))
    assert running.poll() is None, running.communicate()
    os.kill(cluster.workers[0].pid, signal.SIGKILL)
    _, said = running.communicate(timeout=1100)
    assert running.returncode == 0, said
    assert together.read_bytes() == alone.read_bytes()
    assert alone.read_text().count("\n") == 80_001


def test_no_scheduler_is_one_line(tmp_path: Path, command: Callable[..., Outcome], monkeypatch) -> None:
    monkeypatch.setattr("xlperf.explore.workers._CONNECT", "1s")
    plans = tmp_path / "plans.csv"
    plans.write_text(PLAN)
    done = command("evaluate", plans, "-o", tmp_path / "out.csv", "--scheduler", "tcp://127.0.0.1:9")
    assert done.code == 2
    assert done.err.startswith("--scheduler: no Dask scheduler answers at tcp://127.0.0.1:9")
    done = command("evaluate", plans, "--scheduler", "tcp://127.0.0.1:9", "--processes", "2")
    assert (done.code, "not both" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("left", "words"), [(OSError("stream is closed"), ""), (ModuleNotFoundError(), "have no xlperf"), ("0.0", "0.0")]
)
def test_workers_of_a_cluster_have_the_same_version(left: object, words: str) -> None:
    from xlperf import __version__
    from xlperf.base.errors import InputError
    from xlperf.explore import workers

    class Client:
        def run(self, function: object, on_error: str) -> dict[str, object]:
            return {"tcp://a:1": __version__, "tcp://a:2": left}

    if not words:  # one that leaves meanwhile does no harm
        workers._check_versions(Client(), "tcp://a:0")
    else:
        with pytest.raises(InputError, match=words):
            workers._check_versions(Client(), "tcp://a:0")
