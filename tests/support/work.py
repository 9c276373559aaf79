"""Work of a test: counted in function calls, which a busy machine does not change; and how many random examples."""

from __future__ import annotations

import cProfile
import os
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> tuple[int, Any]:
    """Calls of functions, Python's and C's, that a piece of work makes in this thread; and its result."""
    profile = cProfile.Profile()
    result = profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats()), result


def examples(number: int) -> int:
    """Random examples of a law: a number that is quick, or ``XLPERF_LAWS`` of them."""
    return int(os.environ.get("XLPERF_LAWS", number))
