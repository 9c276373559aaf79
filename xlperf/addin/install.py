"""Puts the add-in into a spreadsheet program, and takes it out again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from xlperf.addin.client import worker_environment
from xlperf.addin.libreoffice import IDENTIFIER, extension
from xlperf.base.errors import Fault, HostError, InputError, nearest
from xlperf.base.files import scratch_folder

HOSTS = ("libreoffice",)
_TIME_LIMIT = 120.0


def _places() -> list[Path]:
    """Where LibreOffice is usually installed."""
    if sys.platform == "win32":
        return [Path("C:/Program Files/LibreOffice/program"), Path("C:/Program Files (x86)/LibreOffice/program")]
    if sys.platform == "darwin":
        return [Path("/Applications/LibreOffice.app/Contents/MacOS")]
    own = sorted(Path("/opt").glob("libreoffice*/program"), reverse=True)
    return [Path("/usr/lib/libreoffice/program"), Path("/usr/lib64/libreoffice/program"), *own]


def unopkg_program() -> str:
    """Path of LibreOffice's extension manager.

    Raises
    ------
    HostError
        Where LibreOffice is not found.
    """
    names = ("unopkg.com", "unopkg.exe") if sys.platform == "win32" else ("unopkg",)
    for name in names:
        found = shutil.which(name)
        if found:
            return found
        for folder in _places():
            if (folder / name).is_file():
                return str(folder / name)
    raise HostError("LibreOffice is not found: unopkg is not on the path; install LibreOffice Calc first")


def install(host: str, options: Sequence[str] = ()) -> str:
    """Build the add-in for a host and install it for this user (for all users when run as root).

    Parameters
    ----------
    host : str
        ``libreoffice``.
    options : sequence of str
        Options for LibreOffice's extension manager, such as ``-env:UserInstallation=file:///...``.

    Returns
    -------
    str
        What was done, in one line.

    Raises
    ------
    InputError
        Where the host is not known.
    HostError
        Where it cannot be installed; the text says why and what to do.
    """
    _known(host)
    program = unopkg_program()
    with scratch_folder() as folder:
        path = folder / "xlperf.oxt"
        path.write_bytes(extension())
        _run([program, "add", "--force", "--suppress-license", *_scope(), *options, str(path)])
    whom = "all users" if _scope() else "this user"
    return (
        f"xlperf is installed in LibreOffice for {whom} and computes with {sys.executable}; "
        "restart LibreOffice if it is open"
    )


def uninstall(host: str, options: Sequence[str] = ()) -> str:
    """Take the add-in out of a host; parameters, result and errors as in :func:`install`."""
    _known(host)
    _run([unopkg_program(), "remove", *_scope(), *options, IDENTIFIER])
    return "xlperf is no longer installed in LibreOffice"


def _known(host: str) -> None:
    if host not in HOSTS:
        raise InputError(Fault("", f'unknown host "{host}"; {nearest(host, HOSTS)}'))


def _scope() -> list[str]:
    """LibreOffice refuses to install for the single user root."""
    return ["--shared"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def host_environment() -> dict[str, str]:
    """Environment in which LibreOffice finds its own Python.

    LibreOffice looks for ``python3`` on the path to find its library; an activated virtual environment would lead it
    to another one, and then nothing that is written in Python loads.
    """
    environment = worker_environment()
    if sys.platform.startswith("linux"):
        folders = environment.get("PATH", os.defpath).split(os.pathsep)
        system = ("/usr/bin", "/bin")
        kept = [folder for folder in folders if folder in system or not (Path(folder) / "python3").exists()]
        environment["PATH"] = os.pathsep.join(kept or system)
        environment.pop("VIRTUAL_ENV", None)
    return environment


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            list(command),
            env=host_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{command[0]} did not end within {_TIME_LIMIT:g} s; close LibreOffice and try again") from None
    except OSError as error:
        raise HostError(f"{command[0]} cannot be run ({error.strerror})") from None
    output = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    if done.returncode == 0:
        return
    words = " ".join(output[:3]) or f"exit code {done.returncode}"
    if "lock" in words or "running" in words:
        raise HostError(f"LibreOffice is running; close all its windows and try again ({words})")
    if "no such extension" in words.lower() or "not deployed" in words.lower() or "There is no such" in words:
        raise HostError("xlperf is not installed in LibreOffice")
    raise HostError(f"LibreOffice refused: {words}")
