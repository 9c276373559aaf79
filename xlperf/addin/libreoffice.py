"""The LibreOffice Calc add-in: an extension (.oxt) generated from the registry of functions, and its installation.

An extension is a zip archive: the types of the functions as text (IDL), the texts of the function wizard
(CalcAddIns.xcu), the events that a job listens to (Jobs.xcu) and Python without numpy that calls the worker. Nothing
is compiled.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape, quoteattr

from xlperf import __version__
from xlperf.addin.client import TIME_LIMIT, worker_environment
from xlperf.addin.functions import Function, archive, functions
from xlperf.addin.host import method_of
from xlperf.base import resources
from xlperf.base.errors import HostError
from xlperf.base.files import scratch_folder

IDENTIFIER = "org.xlperf.addin"
SERVICE = "XLPERF"
SPILL = "Select a range as large as the block, for example A10:F20, and enter it with Ctrl+Shift+Enter."
HOST_MODULES = ("client", "host")
_ATTEMPTS = 3  # runs of LibreOffice's extension manager before a crash counts as an answer
_LAST_EXIT_CODE = 128
"""A command ended by a signal has a negative exit code, and one above this where a shell script started it."""
_INSTALL_LIMIT = 120.0
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_REGISTRY = 'xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema"'


def worker_command() -> list[str]:
    """How the add-in starts the worker: with the interpreter that runs this, and nothing from the current folder."""
    return [sys.executable, "-P", "-m", "xlperf.addin.worker"]


def extension(command: Sequence[str] | None = None, time_limit: float = TIME_LIMIT) -> bytes:
    """The add-in as the bytes of an .oxt file; ``command`` starts the worker, a call may last ``time_limit`` [s]."""
    registry = list(functions().values())
    configuration = {
        "version": __version__,
        "command": list(command or worker_command()),
        "time_limit": time_limit,
        "functions": {
            function.name: {
                "says_faults": function.says_faults,
                "repeated": any(argument.repeated for argument in function.arguments),
                "is_per_plan": function.is_per_plan,
            }
            for function in registry
        },
    }
    copied = {"META-INF/manifest.xml": "glue/oxt_manifest.xml", "description.xml": "glue/description.xml"}
    copied |= {name: f"glue/{name}" for name in ("Jobs.xcu", "xlperf_addin.py")}
    copied |= {f"pythonpath/xlperf_host/{module}.py": f"{module}.py" for module in HOST_MODULES}
    parts = {name: resources.table(f"addin/{path}").read_text(encoding="utf-8") for name, path in copied.items()}
    parts["description.xml"] = Template(parts["description.xml"]).substitute(version=__version__)
    parts |= {
        "xlperf.idl": types(registry),
        "CalcAddIns.xcu": wizard_texts(registry),
        "functions.json": json.dumps(configuration, indent=1),
        "pythonpath/xlperf_host/__init__.py": "",
    }
    return archive({name: text.encode("utf-8") for name, text in parts.items()})


def types(registry: Sequence[Function]) -> str:
    """The type library as text: every function returns a block, every argument is a cell or a range."""
    lines = ["module org { module xlperf {", "  interface XXlperf : com::sun::star::uno::XInterface {"]
    for function in registry:
        arguments = ", ".join(
            f"[in] {'sequence<any>' if argument.repeated else 'any'} {argument.name}" for argument in function.arguments
        )
        if function.is_per_plan:  # LibreOffice fills in the document and hides the argument from users
            arguments = f"[in] com::sun::star::beans::XPropertySet caller, {arguments}"
        lines.append(f"    sequence< sequence<any> > {method_of(function.name)}({arguments});")
    return "\n".join([*lines, "  };", "}; };", ""])


def wizard_texts(registry: Sequence[Function]) -> str:
    """Names and texts of the functions and their arguments, as the configuration of Calc's add-ins."""
    lines = [
        f'{_XML}<oor:component-data {_REGISTRY} oor:name="CalcAddIns" oor:package="org.openoffice.Office">',
        f'<node oor:name="AddInInfo"><node oor:name={quoteattr(SERVICE)} oor:op="replace">'
        '<node oor:name="AddInFunctions">',
    ]
    for function in registry:
        lines += [
            f'<node oor:name={quoteattr(method_of(function.name))} oor:op="replace">',
            _property("DisplayName", function.name),
            _property("Description", f"{function.doc} {SPILL}" if function.spills else function.doc),
            '<prop oor:name="Category"><value>Add-In</value></prop>',
            _property("CompatibilityName", function.name),
            '<node oor:name="Parameters">',
        ]
        for argument in function.arguments:
            lines.append(f'<node oor:name={quoteattr(argument.name)} oor:op="replace">')
            lines.append(_property("DisplayName", argument.name) + _property("Description", argument.doc) + "</node>")
        lines.append("</node></node>")
    return "\n".join([*lines, "</node></node></node>", "</oor:component-data>", ""])


def _property(name: str, text: str) -> str:
    return f'<prop oor:name="{name}"><value xml:lang="en-US">{escape(text)}</value></prop>'


# --- installation


def _places() -> list[Path]:
    """Usual folders of LibreOffice."""
    if sys.platform == "win32":
        return [Path("C:/Program Files/LibreOffice/program"), Path("C:/Program Files (x86)/LibreOffice/program")]
    if sys.platform == "darwin":
        return [Path("/Applications/LibreOffice.app/Contents/MacOS")]
    own = sorted(Path("/opt").glob("libreoffice*/program"), reverse=True)
    return [Path("/usr/lib/libreoffice/program"), Path("/usr/lib64/libreoffice/program"), *own]


def unopkg_program() -> str:
    """Path of LibreOffice's extension manager. Raises HostError if LibreOffice is not installed."""
    names = ("unopkg.com", "unopkg.exe") if sys.platform == "win32" else ("unopkg",)
    for name in names:
        path = shutil.which(name)
        if path:
            return path
        for folder in _places():
            if (folder / name).is_file():
                return str(folder / name)
    raise HostError("LibreOffice is not found: unopkg is not on the path; install LibreOffice Calc first")


def install(options: Sequence[str] = ()) -> str:
    """Build the add-in and install it, for root for all users; a report in one line. Raises HostError."""
    program = unopkg_program()
    with scratch_folder() as folder:
        path = folder / "xlperf.oxt"
        path.write_bytes(extension())
        _run([program, "add", "--force", "--suppress-license", *_scope(), *options, str(path)])
    return (
        f"xlperf is installed in LibreOffice for {_whom()} and computes with {sys.executable}; "
        "restart LibreOffice if it is open"
    )


def uninstall(options: Sequence[str] = ()) -> str:
    """Remove the add-in, as :func:`install`."""
    _run([unopkg_program(), "remove", *_scope(), *options, IDENTIFIER])
    return "xlperf is no longer installed in LibreOffice"


def _scope() -> list[str]:
    """The scope of an installation; LibreOffice refuses to install for root alone."""
    return ["--shared"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []


def _whom() -> str:
    """For whom an installation is."""
    home, caller = (os.environ.get(name, "") for name in ("HOME", "SUDO_USER"))
    if not _scope():
        return f"this user (home {home})" if home else "this user"
    user = f"; without sudo it is for {caller} alone" if caller else ""
    return f"all users of this machine, as root runs this (home {home or 'none'}{user}),"


def host_environment() -> dict[str, str]:
    """Environment in which LibreOffice finds its own Python.

    LibreOffice looks for ``python3`` on the path to find its library; an activated virtual environment would lead it to
    another one, and then no component written in Python loads.
    """
    environment = worker_environment()
    if sys.platform.startswith("linux"):
        folders = environment.get("PATH", os.defpath).split(os.pathsep)
        system = ("/usr/bin", "/bin")
        others = [folder for folder in folders if folder in system or not (Path(folder) / "python3").exists()]
        environment["PATH"] = os.pathsep.join(others or system)
        environment.pop("VIRTUAL_ENV", None)
    return environment


def _run(command: Sequence[str]) -> None:
    """Run LibreOffice's extension manager, again after a crash, which happens now and then."""
    try:
        for _ in range(_ATTEMPTS):
            done = subprocess.run(
                list(command),
                env=host_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_INSTALL_LIMIT,
                check=False,
            )
            if 0 <= done.returncode <= _LAST_EXIT_CODE:
                break
    except subprocess.TimeoutExpired:
        raise HostError(
            f"{command[0]} did not end within {_INSTALL_LIMIT:g} s; close LibreOffice and try again"
        ) from None
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
