"""A LibreOffice of its own for tests: started with a private profile, told what to do, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from places import SUPPORT

from xlperf.addin.libreoffice import host_environment

DRIVER = SUPPORT / "libreoffice_driver.py"
ERROR_CODES = {"#N/A": 32767, "#VALUE!": 519, "#REF!": 524, "#NAME?": 525}


def python_with_uno():
    candidates = ["/usr/bin/python3", *sorted(map(str, Path("/opt").glob("libreoffice*/program/python")))]
    for candidate in candidates:
        if Path(candidate).exists():
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([candidate, "-c", "import uno"], check=True, capture_output=True, timeout=1100)
                return candidate
    return None


class Office:
    """One LibreOffice with a private profile, cache and set of extensions."""

    def __init__(self, folder):
        self.folder = folder
        self.options = [f"-env:UserInstallation={(folder / 'profile').as_uri()}"]
        if os.geteuid() == 0:  # root installs for all users: in this test, all users of this folder
            self.options.append(f"-env:UNO_SHARED_PACKAGES_CACHE={(folder / 'shared').as_uri()}")
        self.driver = None

    def start(self):
        environment = {**host_environment(), "XDG_CACHE_HOME": str(self.folder / "cache")}
        profile = self.options[0].partition("=")[2]
        self.driver = subprocess.Popen(
            [python_with_uno(), str(DRIVER), shutil.which("soffice"), profile, *self.options[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        line = self.driver.stdout.readline()
        assert json.loads(line or "{}") == {"answer": "ready"}, "LibreOffice did not start"

    def end(self):
        if self.driver is not None:
            self.driver.stdin.close()
            self.driver.wait(timeout=1100)
            self.driver = None

    def __call__(self, do, **arguments):
        self.driver.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.driver.stdin.flush()
        answer = json.loads(self.driver.stdout.readline())
        assert "failed" not in answer, answer["failed"]
        return answer["answer"]

    def open(self, path, hidden=True, macros=False):
        assert self("open", path=str(path), hidden=hidden, macros=macros), f"{path} was not opened"

    def value(self, sheet, cell):
        return shown(self("cells", sheet=sheet, area=cell)[0][0])

    def values(self, sheet, area):
        return [[shown(cell) for cell in row] for row in self("cells", sheet=sheet, area=area)]

    def workers(self):
        """Process ids of the workers of this LibreOffice."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"xlperf.addin.worker" not in (entry / "cmdline").read_bytes().split(b"\0"):
                    continue
                if f"XDG_CACHE_HOME={self.folder / 'cache'}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def reads(self):
        """How often the workers have read from a pipe or a file: at least once for each message."""
        texts = [Path(f"/proc/{worker}/io").read_text() for worker in self.workers()]
        return sum(int(re.search(r"syscr: (\d+)", text)[1]) for text in texts)


def shown(cell):
    if "error" in cell:
        return {code: name for name, code in ERROR_CODES.items()}.get(cell["error"], cell["shown"])
    if "number" in cell:
        return float.fromhex(cell["number"])
    return cell.get("text")
