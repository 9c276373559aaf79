"""What a worker asks itself before the first question: those of the last session, and none that wait."""

from __future__ import annotations

import io
import json
import os
import threading
import time

import pytest
from slow_sessions import Slow, line_of

from xlperf.addin.handles import LONGEST, MOST_QUESTIONS, Questions
from xlperf.addin.worker import Session, serve


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_questions_of_the_last_session_are_answered_before_the_first_one_comes(tmp_path):
    path = tmp_path / "questions"
    for names in (["A", "B"], ["B"]):  # B is asked last, so it is asked first of oneself
        serve(Slow(), io.BytesIO(b"".join(map(line_of, names))), io.BytesIO(), questions=Questions(path))
    session, answers = Slow(), io.BytesIO()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as requests, os.fdopen(writer, "wb", buffering=0) as host:

        def ask():
            while len(session.asked) < 2:
                time.sleep(0.01)
            host.write(line_of("C"))
            host.close()

        asking = threading.Thread(target=ask)
        asking.start()
        serve(session, requests, answers, questions=Questions(path))
        asking.join()
    assert session.asked == ["B", "A", "C"]
    assert [json.loads(line).get("rows") for line in answers.getvalue().splitlines()] == [None, [["C"]]]


def test_short_and_long_questions_are_not_kept_and_a_waiting_one_comes_first(tmp_path):
    path = tmp_path / "questions"
    serve(Slow(0.0), io.BytesIO(line_of("short")), io.BytesIO(), questions=Questions(path))
    serve(Slow(LONGEST * 1.1), io.BytesIO(line_of("long")), io.BytesIO(), questions=Questions(path))
    assert not path.exists()
    many = [line_of(f"Q{number}") for number in range(MOST_QUESTIONS + 9)]
    path.write_bytes(b"".join(many))
    session = Slow(0.006)
    serve(session, io.BytesIO(line_of("new")), io.BytesIO(), questions=Questions(path))
    assert session.asked[-1] == "new" and len(session.asked) <= 4, "what is asked waits for one question at most"
    assert [*Questions(path)] == [line_of("new"), *many[:-MOST_QUESTIONS:-1]]


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
