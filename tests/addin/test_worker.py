"""The worker and its client: exact numbers, one answer per line, time limits, crashes, an environment of its own."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from slow_sessions import Slow, line_of

import xlperf
from xlperf.addin import client as client_module
from xlperf.addin import host as host_module
from xlperf.addin.cells import CellError
from xlperf.addin.client import Client, WorkerError
from xlperf.addin.handles import CatalogStore, Questions, UnknownHandleError, content_of, handle_of
from xlperf.addin.host import CalcTables, Neighbours
from xlperf.addin.worker import answer, serve
from xlperf.base import files as files_module

WORKER = [sys.executable, "-P", "-m", "xlperf.addin.worker"]
GREETING = 'print(\'{"version": "1"}\', flush=True)\n'


def process_id(client):
    """Process id of the worker that runs, if one does."""
    process = client._process
    return process.pid if process is not None and process.poll() is None else None


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def started():
    clients = []

    def start(command, **options):
        clients.append(Client(command, **options))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


def script(text):
    return [sys.executable, "-c", f"import sys, os, json, time\n{text}"]


class Echo:
    """A session that returns its arguments."""

    def call(self, name, arguments):
        return [arguments]


# --- the line protocol


def test_numbers_go_there_and_back_to_the_last_bit():
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2.0**53 + 2, math.inf]
    line = json.dumps({"function": "F", "arguments": values}).encode()
    back = json.loads(answer(Echo(), line))["rows"][0]
    assert [value.hex() for value in back] == [value.hex() for value in values]


def test_texts_flags_and_errors():
    class Errors:
        def call(self, name, arguments):
            return [[CellError("#N/A", "why"), "µ\n\u2028", True, ""]]

    line = answer(Errors(), b'{"function": "F", "arguments": []}\n')
    assert line.count(b"\n") == 1
    assert json.loads(line)["rows"] == [[{"error": "#N/A", "message": "why"}, "µ\n\u2028", True, ""]]


@pytest.mark.parametrize("line", [b"", b"x\n", b"[]\n", b"{}\n", b'{"function": 1, "arguments": []}\n', b"\xff\n"])
def test_anything_else_is_answered_with_an_error(line):
    rows = json.loads(answer(Echo(), line))["rows"]
    assert rows == [[{"error": "#VALUE!", "message": "the request is not one that this worker knows"}]]


# --- the process


def test_worker_greets_answers_and_ends_with_its_input():
    request = b'{"function": "XLPERF_NONSENSE", "arguments": []}\n'
    done = subprocess.run(WORKER, input=request * 2, capture_output=True, timeout=1100, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0] == {"version": xlperf.__version__}
    assert len(lines) == 3
    assert lines[1]["rows"][0][0]["error"] == "#NAME?"
    assert done.stderr.startswith(b"XLPERF_NONSENSE: ") and done.stderr.count(b"\n") == 1, "said once in the log"


def test_what_is_printed_does_not_reach_the_host():
    code = (
        "import os, sys\nfrom xlperf.addin import worker\n"
        "class Loud(worker.Session):\n def call(self, *a):\n  print('noise'); os.write(1, b'more'); return [[1.5]]\n"
        "worker.Session = Loud\nworker.main()"
    )
    request = b'{"function": "F", "arguments": []}\n'
    done = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, timeout=1100, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()][1] == {"rows": [[1.5]]}
    assert b"noise" in done.stderr
    assert b"more" in done.stderr


# --- the client


def test_client_calls_the_worker_and_starts_it_again_where_it_was_killed(started):
    """One worker for several laws; also: it opens no port and has no more files than its pipes."""
    client = started(WORKER)
    assert process_id(client) is None, "started by the first call"
    rows = client.call("XLPERF_STEP_TIME", [[["model", "x", None]], None])
    assert rows[0][0]["error"] == "#VALUE!"
    assert rows[0][0]["message"].startswith("there is no plan below the header row")
    first = process_id(client)
    client.call("XLPERF_STEP_TIME", [None])
    assert process_id(client) == first
    files = f"/proc/{first}/fd"
    if os.path.isdir(files):  # not every system shows the files of a process
        kinds = [os.readlink(os.path.join(files, name)).split(":")[0] for name in os.listdir(files)]
        assert "socket" not in kinds
    os.kill(first, 9)
    assert client.call("XLPERF_NONSENSE", [])[0][0]["error"] == "#NAME?"
    assert process_id(client) not in (first, None)
    client.close()
    assert process_id(client) is None


def test_a_worker_that_is_killed_as_it_starts_or_before_it_answers_is_started_again(started, tmp_path):
    """Issue Cases 23, faults/conc1.sh: the error stayed in a cell that nothing computed again."""
    told = tmp_path / "starts"
    code = (
        f"number = open({str(told)!r}, 'a').tell(); open({str(told)!r}, 'a').write('x')\n"
        "if number == 0: os.kill(os.getpid(), 9)\n" + GREETING + "if number == 1: os.kill(os.getpid(), 9)\n"
        "for line in sys.stdin: print(json.dumps({'rows': [[number]]}), flush=True)"
    )
    client = started(script(code))
    assert client.call("F", []) == [[2]]


def test_a_worker_that_never_starts_is_tried_three_times_and_then_not_for_a_while(started, tmp_path):
    told = tmp_path / "starts"
    client = started(script(f"open({str(told)!r}, 'a').write('x'); sys.exit('broken')"))
    for _ in range(2):
        with pytest.raises(WorkerError, match=r"it ended at once: broken\); run `xlperf install` again"):
            client.call("F", [])
    assert told.read_text() == "xxx"


def test_an_answer_that_is_no_json_is_said_in_words(started):
    client = started(script(GREETING + "for line in sys.stdin: print('[1', flush=True)"))
    with pytest.raises(WorkerError, match="what answered is not the worker of xlperf"):
        client.call("F", [])


# --- what it stores


PLANS = [
    [["model", "Llama3-8B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", number]] for number in (8.0, 16.0)
]
PRICES = [
    ["price", "rental price (USD/h)", "source", "year", "kind"],
    ["H100-SXM-80GB", 2.0, "mine", 2026.0, "assumption"],
]


def test_what_is_stored_can_be_read_by_its_owner_alone(started, private_cache):
    folder = private_cache / "xlperf"
    folder.mkdir(parents=True)
    (folder / "worker.log").touch()
    before = os.umask(0)
    try:
        for path in (folder, folder / "worker.log"):  # as an older xlperf left them
            path.chmod(0o755)
        client = started(WORKER)
        for plan in PLANS:
            client.call("XLPERF_EXPLAIN", [plan])
        handle = client.call("XLPERF_CATALOG", [PRICES])
        client.close()
    finally:
        os.umask(before)
    result = {path.relative_to(folder).parts[0]: path for path in [folder, *folder.rglob("*")] if path != folder}
    assert {"questions", "worker.log", "catalogs", "workbooks"} <= set(result), handle
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_questions_are_not_stored_where_they_are_turned_off(private_cache, monkeypatch):
    path = private_cache / "xlperf" / "questions"
    for word, there in (("", True), ("off", False), ("OFF", False), ("on", True)):
        monkeypatch.setenv("XLPERF_QUESTIONS", word)
        serve(Slow(), io.BytesIO(line_of("A")), io.BytesIO(), questions=Questions())
        assert path.exists() == there, word


def test_without_a_home_nothing_is_stored_and_cells_are_computed(private_cache, monkeypatch):
    """Neither HOME nor an entry in the list of users: pathlib raises RuntimeError."""

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    monkeypatch.delenv("XDG_CACHE_HOME")
    for folder in (client_module.cache_folder(), files_module.cache_folder()):
        assert str(folder).startswith(os.devnull)
        with pytest.raises(OSError, match="Not a directory"):
            folder.mkdir(parents=True, exist_ok=True)
    questions = Questions()
    questions.answered(line_of("A"), partial(answer, Slow()), lambda _: True)
    assert len(questions) == 1
    questions.save()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to a pipe"])
def test_what_is_no_file_in_the_place_of_a_stored_one_holds_nobody_up(started, private_cache, kind):
    folder = private_cache / "xlperf"
    (folder / "catalogs").mkdir(parents=True)
    stored = handle_of(content_of([PRICES])).removeprefix("xlperf:") + ".json"
    for name in ("questions", "worker.log", f"catalogs/{stored}"):
        path = folder / name
        if kind == "folder":
            path.mkdir()
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(folder / f"{name}.pipe" if kind == "link to a pipe" else path)
            if kind == "link to a pipe":
                path.symlink_to(folder / f"{name}.pipe")
    client = started(script(GREETING + "for line in sys.stdin: print('{\"rows\": [[1]]}', flush=True)"))
    assert client.call("F", []) == [[1]]
    questions, store = Questions(), CatalogStore()
    questions.answered(line_of("A"), partial(answer, Slow()), lambda _: True)
    questions.save()
    assert store.put([PRICES]) == "xlperf:" + stored.removesuffix(".json")
    with pytest.raises(UnknownHandleError):
        store.get("xlperf:" + stored.removesuffix(".json"))


def test_a_call_that_ends_every_worker_is_an_error_with_its_last_words(started):
    client = started(script(GREETING + "sys.stdin.readline(); sys.exit('out of memory')"))
    with pytest.raises(WorkerError, match=r"^the worker ended during the call: out of memory$"):
        client.call("F", [])


def test_a_call_has_a_time_limit(started):
    client = started(script(GREETING + "sys.stdin.readline(); time.sleep(60)"), time_limit=0.5)
    with pytest.raises(WorkerError, match=r"ended after 0.5 s; ask for fewer plans"):
        client.call("F", [])
    assert process_id(client) is None


def test_a_worker_that_reads_nothing_has_a_time_limit_too(started):
    client = started(script(GREETING + "time.sleep(60)"), time_limit=0.5)
    with pytest.raises(WorkerError, match=r"ended after 0.5 s"):
        client.call("F", ["x" * 10_000_000])


def test_time_limit_counts_per_call(started):
    client = started(
        script(GREETING + "for line in sys.stdin: time.sleep(0.2); print('{\"rows\": [[1]]}', flush=True)"),
        time_limit=0.7,
    )
    assert [client.call("F", []) for _ in range(6)] == [[[1]]] * 6


def test_worker_that_cannot_start_is_tried_once_in_a_while(started, monkeypatch):
    client = started(["/nowhere/python", "-m", "xlperf.addin.worker"])
    message = r"cannot be started with /nowhere/python \(No such file.*\); run `xlperf install` again"
    with pytest.raises(WorkerError, match=message):
        client.call("F", [])
    monkeypatch.setattr(client_module.subprocess, "Popen", lambda *a, **k: pytest.fail("started again at once"))
    with pytest.raises(WorkerError, match=message):
        client.call("F", [])


def test_an_interpreter_without_xlperf_is_said_in_words(started):
    client = started([sys.executable, "-S", "-P", "-m", "no_such_module"])
    with pytest.raises(WorkerError, match=r"No module named no_such_module.*run `xlperf install` again"):
        client.call("F", [])


@pytest.mark.parametrize("greeting", ["hello", "[1]", "{}"])
def test_what_is_not_the_worker_is_refused(started, greeting):
    client = started(script(f"print({greeting!r}, flush=True); time.sleep(30)"))
    with pytest.raises(WorkerError, match="not the worker of xlperf"):
        client.call("F", [])


def test_worker_has_an_environment_of_its_own(started, monkeypatch, tmp_path):
    for name in client_module.HOST_VARIABLES:
        monkeypatch.setenv(name, str(tmp_path))
    body = "for line in sys.stdin: print(json.dumps({'rows': [sorted(os.environ)]}), flush=True)"
    client = started(script(GREETING + body))
    names = client.call("F", [])[0]
    assert not set(client_module.HOST_VARIABLES) & set(names)
    assert "PATH" in names


def test_the_folder_that_the_host_was_started_in_is_not_imported_from(started, monkeypatch, tmp_path):
    (tmp_path / "xlperf").mkdir()
    (tmp_path / "xlperf" / "__init__.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert started(WORKER).call("XLPERF_NONSENSE", [])[0][0]["error"] == "#NAME?"


def test_client_needs_the_standard_library_alone():
    code = (
        f"import runpy, sys\nrunpy.run_path({client_module.__file__!r})\n"
        "assert not {'numpy', 'xlperf', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=1100)


def test_blank_rows_of_a_table_make_no_search_for_the_rows_beside_them():
    class Book:
        RuntimeUID = "1"
        searched = 0

        @property
        def Sheets(self):
            self.searched += 1
            return []

    class Answers:
        process_id = 1

        def call(self, function, arguments):
            return [[""]]

    book, neighbours = Book(), Neighbours(Answers(), CalcTables())
    header = [["model", "accelerator", "num accelerators"]]
    for _ in range(50):
        assert neighbours.call(book, "XLPERF_STEP_TIME", [[["", "", ""]], "", header]) == [[""]]
    assert book.searched == 0
    for number in range(4):
        neighbours.call(book, "XLPERF_STEP_TIME", [[["m", "a", float(number)]], "", header])
    assert book.searched


def test_after_an_edit_of_the_catalog_the_rows_that_cells_show_go_along_at_once():
    sent = []

    class Answers:
        process_id = 1

        def call(self, function, arguments):
            sent.append(1)
            return [[f"{arguments[1]} {arguments[0][0][2]:g}"]]

        def call_with_others(self, function, arguments, others):
            sent.append(len(others))
            return [[f"{arguments[1]} {arguments[0][0][2]:g}"]], [f"{arguments[1]} {row[2]:g}" for row in others]

    class Book:
        RuntimeUID = "1"
        Sheets = ()

    header = [["model", "accelerator", "num accelerators"]]
    neighbours = Neighbours(Answers(), CalcTables())

    def shows(catalog, number):
        return neighbours.call(Book(), "XLPERF_STEP_TIME", [[["m", "a", float(number)]], catalog, header])[0][0]

    for number in [*range(200), *range(200)]:
        assert shows("first", number) == f"first {number}"
    assert sent == [1] * 200, "rows that are known are not asked for again"
    for catalog in ("second", "third", "first"):
        sent.clear()
        for number in range(199, -1, -1):
            assert shows(catalog, number) == f"{catalog} {number}"
        assert sent == ([] if catalog == "first" else [200])
    sent.clear()
    assert shows("third", 500) == "third 500"
    assert sent == [1]


def test_cells_that_were_asked_for_are_known_longer_than_those_that_were_guessed(monkeypatch):
    monkeypatch.setattr(host_module, "MOST_KEPT", 100)
    sent = []

    class Answers:
        process_id = 1

        def call(self, function, arguments):
            sent.append(1)
            return [[1.0]]

        def call_with_others(self, function, arguments, others):
            sent.append(len(others))
            return [[1.0]], [1.0] * len(others)

    header = ("model", "accelerator", "num accelerators")
    rows = [("m", "a", float(number)) for number in range(60)]
    neighbours = Neighbours(Answers(), lambda *_: [rows])
    functions_ = [f"XLPERF_{number}" for number in range(5)]
    for catalog in ("first", "second", "third"):
        for function in functions_:
            for row in rows[:10]:
                assert neighbours.call(object(), function, [[row], catalog, [header]]) == [[1.0]]
        assert sent == ([1, 59] * 5 if catalog == "first" else [10] * 5)
        sent.clear()


# --- before the first question


def test_a_worker_started_ahead_is_the_one_that_answers_and_rests_where_nobody_asks(started):
    code = GREETING + "for line in sys.stdin: print(json.dumps({'rows': [[os.getpid()]]}), flush=True)"

    def waits_for(wanted):
        end = time.monotonic() + 300
        while (process_id(client) is not None) != wanted and time.monotonic() < end:
            time.sleep(0.01)
        return process_id(client)

    client = started(script(code))
    client.start()
    first = waits_for(True)
    assert first is not None and client.call("F", []) == [[first]]
    client.start()
    client.rest()
    assert client.call("F", []) == [[first]]
    client = started(script(code))
    client.start()
    assert waits_for(True) is not None
    client.rest()
    assert waits_for(False) is None
    assert client.call("F", [])[0][0] > 0
