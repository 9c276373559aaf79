"""A session that takes its time, and lines that a host sends."""

from __future__ import annotations

import json
import time

from xlperf.addin.worker import SHORTEST


class Slow:
    """A session that takes its time, and notes what it was asked."""

    def __init__(self, seconds=0.02):
        self.seconds, self.asked = seconds, []

    def keeps(self, took):
        return took >= SHORTEST

    def call(self, name, arguments):
        self.asked.append(name)
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return [[name]]


def line_of(name):
    return json.dumps({"function": name, "arguments": []}).encode() + b"\n"
