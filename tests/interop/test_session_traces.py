"""Traces of requests: what comes again in them, and one line where a trace is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.explore.session_states import Traced
from xlperf.interop.logs import read_trace

HEADER = "session,time (s),prompt tokens,output tokens\n"
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 10, "hash_ids": [0, 1, 2]},
    {"timestamp": 4000, "input_length": 1700, "output_length": 20, "hash_ids": [0, 1, 3, 4]},
    {"timestamp": 9000, "input_length": 1024, "output_length": 30, "hash_ids": [8, 9]},
]


def written(folder: Path, text: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_tokens_of_a_session_come_again_with_its_next_turn(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, f"{HEADER}a,0,100,20\nb,5,50,10\na,30,200,10\nb,65,61,10\n"))
    assert (trace.requests, trace.sessions, trace.first) == (4, 2, 75.0)
    assert (trace.own, trace.new) == ((120.0 + 60.0) / 4.0, (100.0 + 50.0 + 80.0 + 1.0) / 4.0)
    assert trace.intervals.tolist() == [30.0, 60.0] and trace.reused.tolist() == [30.0, 45.0]
    sessions = Traced.of_trace(trace)
    assert sessions.reused == pytest.approx(180.0 / 411.0)
    assert sessions.within(np.array([0.0, 29.0, 30.0, 60.0])).tolist() == [0.0, 0.0, 2.0 / 3.0, 1.0]


def test_blocks_of_a_mooncake_trace_come_again_and_an_endless_cache_holds_them(tmp_path: Path) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in MOONCAKE)
    trace = read_trace(written(tmp_path, text, "trace.jsonl"))
    assert (trace.requests, trace.sessions) == (3, 2)
    assert trace.own == 1024.0 / 3.0 and trace.new == (1300.0 + 676.0 + 1024.0) / 3.0
    assert trace.intervals.tolist() == [4.0, 4.0]
    ages, tokens = Traced.of_trace(trace).filled()
    # A turn a second: two blocks stay up to 4 s and all blocks but those two from their last use on
    last = float(tokens[-1] - 2.0 * 512.0 * 4.0 / 3.0) / float(ages[-1])
    assert last == pytest.approx((2.0 * 512.0 + 276.0 + 512.0 + 164.0 + 1024.0) / 3.0, rel=1e-6)
    assert bool((np.diff(tokens) >= 0.0).all())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{HEADER}a,5,100,10\na,3,200,10\n", "[line 3]: time 3 s is before 5 s of the request above"),
        (f"{HEADER}a,5,,10\n", "[line 2]: has no prompt: give input_length or prompt tokens"),
        (f"{HEADER}a,5,-3,10\n", "[line 2]: prompt must be a number of at least 0, got '-3'"),
        (f"{HEADER},5,30,10\n", "[line 2]: names neither a session nor hash_ids"),
        (HEADER, "holds no request"),
        ('{"timestamp": 0}\nnot json\n', "[line 1]: has no prompt"),
        ('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}\n', "hash_ids has 1 blocks, 600"),
        ('{"a": 1\n', "[line 1]: is no JSON object"),
    ],
)
def test_a_wrong_trace_is_refused_in_a_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        read_trace(written(tmp_path, text))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_trace_that_is_too_large_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(str(tmp_path / "none.csv"))
    path = written(tmp_path, "")
    with open(path, "r+b") as file:
        file.truncate(300 << 20)
    with pytest.raises(InputError, match="has 300 MiB; a trace of 256 MiB at most is read"):
        read_trace(path)
