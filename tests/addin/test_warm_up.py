"""What a worker knows before the first question: answers of earlier sessions, and its catalog."""

from __future__ import annotations

import io
import json
import os
import threading
import time

import pytest
from slow_sessions import Slow, line_of

from xlperf.addin import handles
from xlperf.addin.handles import Questions
from xlperf.addin.worker import Session, serve


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def answers_of(session, names, questions):
    """Rows of the answers to questions."""
    answers = io.BytesIO()
    serve(session, io.BytesIO(b"".join(map(line_of, names))), answers, questions=questions)
    return [json.loads(line).get("rows") for line in answers.getvalue().splitlines()[1:]]


def test_questions_of_earlier_sessions_are_answered_at_once_by_the_same_package_alone(tmp_path):
    path = tmp_path / "questions"
    assert answers_of(Slow(), ["A", "B"], Questions(path)) == [[["A"]], [["B"]]]
    session = Slow()
    assert answers_of(session, ["B", "C", "A"], Questions(path)) == [[["B"]], [["C"]], [["A"]]]
    assert session.asked == ["C"]
    other = Slow()
    assert answers_of(other, ["A", "C"], Questions(path, "another package")) == [[["A"]], [["C"]]]
    assert other.asked == ["A", "C"]


def test_short_questions_are_not_kept_and_the_oldest_ones_go_first(tmp_path, monkeypatch):
    path = tmp_path / "questions"
    answers_of(Slow(0.0), ["short"], Questions(path))
    assert not path.exists()
    monkeypatch.setattr(handles, "MOST_QUESTIONS", 3)
    answers_of(Slow(0.006), ["A", "B", "C", "A", "D"], Questions(path))
    session = Slow(0.006)
    answers_of(session, ["A", "C", "D", "B"], Questions(path))
    assert session.asked == ["B"]


def test_what_depends_on_more_than_its_cells_is_asked_again(tmp_path):
    """A catalog that is put away, faults, reports of faults and files are not of the cells alone."""
    trace = tmp_path / "trace.csv"
    trace.write_text("session,time,prompt tokens,output tokens\na,0,1000,100\na,60,1500,100\nb,10,1000,100\n")
    names = ["model", "accelerator", "turns", "added tokens", "generated tokens", "think time", "trace"]
    row = ["Llama3-8B", "H100-SXM-80GB", 5, 500, 200, 30]
    form = [names, [*row, str(trace)]]
    plan = [["model", "accelerator", "num accelerators"], ["Llama3-8B", "H100-SXM-80GB", 8]]
    session = Session()
    lasting = {}
    for name, arguments in {
        "XLPERF_SESSIONS": [form, "hit rate"],
        "XLPERF_STEP_TIME": [plan],
        "XLPERF_CHECK": [plan],
        "XLPERF_CATALOG": [[["model", "layers"], ["m", 2]]],
    }.items():
        session.call(name, arguments)
        lasting[name] = session.lasts
    assert lasting == {
        "XLPERF_SESSIONS": False, "XLPERF_STEP_TIME": True, "XLPERF_CHECK": False, "XLPERF_CATALOG": False,
    }  # fmt: skip
    session.call("XLPERF_STEP_TIME", [[["model"], ["unknown"]]])
    assert not session.lasts
    assert not session.keeps(1.0)
    session.call("XLPERF_SESSIONS", [[names[:-1], row], "hit rate"])
    assert session.keeps(0.0)  # each result of a form: the next session would search for any that is not there
    session.call("XLPERF_DIE_YIELD", [100, 0.1])
    assert session.keeps(1.0) and not session.keeps(0.0)


def test_a_new_worker_has_the_catalog_of_the_shipped_workbook_before_it_is_asked():
    class Noted(Session):
        def call(self, name, arguments):
            return [[float(self._installed is not None)]]

    reader, writer = os.pipe()
    session, answers = Noted(), io.BytesIO()
    with os.fdopen(reader, "rb") as requests, os.fdopen(writer, "wb", buffering=0) as host:

        def ask():
            while session._installed is None:
                time.sleep(0.01)
            host.write(line_of("F"))
            host.close()

        threading.Thread(target=ask, daemon=True).start()
        serve(session, requests, answers, questions=Questions())
    assert json.loads(answers.getvalue().splitlines()[-1])["rows"] == [[1.0]]
