"""The path of one new cell through the house: which modules it enters, and that it only ever goes down."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from places import ROOT

import xlperf
from xlperf.addin.worker import Session, answer

HOUSE = Path(xlperf.__file__).parent
TRAINING = {
    "name": "a", "model": "Llama-3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 64, "tensor parallel": 8,
    "pipeline parallel": 2, "global batch size": 128, "sequence length": 4096, "precision": "bf16",
}  # fmt: skip
SERVING = {
    "name": "a", "model": "Llama-3-70B", "accelerator": "H100-SXM-80GB", "num accelerators": 8, "tensor parallel": 8,
    "prompt length": 1000, "output length": 200, "concurrency": 16, "precision": "fp8",
}  # fmt: skip


def heights() -> dict[str, int]:
    """How high each room stands, from the contract of imports."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["xlperf"])
    return {room.strip(): -number for number, layer in enumerate(layers) for room in layer.split("|")}


def module_of(frame: FrameType | None) -> str:
    """Module of xlperf whose text a call runs; "" for other code, and for what dataclasses write themselves."""
    path = Path(frame.f_code.co_filename) if frame is not None else Path()
    return ".".join(path.with_suffix("").relative_to(HOUSE).parts) if path.is_relative_to(HOUSE) else ""


def calls(work: Callable[[], object]) -> set[tuple[str, str]]:
    """Which module of xlperf calls which, while something is computed."""
    result = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        module = module_of(frame) if event == "call" else ""
        if module:
            caller = frame.f_back
            while caller is not None and not module_of(caller):
                caller = caller.f_back
            result.add((module_of(caller), module))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return result


@pytest.mark.parametrize(
    ("function", "plan", "column", "most"),
    [("XLPERF_STEP_TIME", TRAINING, "global batch size", 35), ("XLPERF_TPOT", SERVING, "prompt length", 36)],
)
def test_a_new_cell_takes_a_short_way_down(function: str, plan: dict[str, object], column: str, most: int) -> None:
    session = Session()

    def cell(number: int) -> bytes:
        row = [{**plan, column: number, "name": f"plan {number}"}[name] for name in plan]
        request = {"function": function, "arguments": [[row], None, [list(plan)]]}
        return answer(session, json.dumps(request).encode())

    first = json.loads(cell(256))["rows"][0][0]  # what is read and compiled once
    assert isinstance(first, float), first
    result = calls(lambda: cell(512))
    modules = {module for _, module in result}
    assert len(modules) <= most, sorted(modules)
    height = heights()
    up = {
        (caller, own) for caller, own in result if caller and height[caller.split(".")[0]] < height[own.split(".")[0]]
    }
    assert not up, "a call goes to a room above"
