"""House rules: lint, types, imports, what the wheel carries, and that the README says what is true."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import subprocess
import sys
import tokenize
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from places import ROOT, TESTS

from xlperf.cli.app import cli

TOP_LEVEL = {"pyproject.toml", "README.md", "xlperf", "workbooks", "tests", "templates"}
HEAVY = ("numpy", "pandas", "openpyxl", "xlwings", "pyarrow", "scipy")
COMMANDS = tuple(cli.commands)
WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
SKIPS = re.compile(r"mark\.(skip|skipif|xfail)\b|pytest\.(skip|xfail|importorskip)\(|unittest\.skip")


def _run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )


def _passes(*command: str | Path) -> None:
    done = _run(*command)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"


def _tracked() -> list[Path]:
    """Files of the project: those that git tracks, or all of them where there is no git."""
    listed = _run("git", "ls-files", "-z")
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not path.relative_to(ROOT).parts[0].startswith(".")]


def _sources() -> list[Path]:
    return sorted((ROOT / "xlperf").rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(path)))


def _texts() -> Iterator[tuple[str, str]]:
    for path in _tracked():
        if path.suffix not in (".xlsx", ".png") and path != Path(__file__).resolve():
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_ruff_finds_nothing() -> None:
    _passes(sys.executable, "-m", "ruff", "check", "--no-cache", ".")


def test_ruff_would_format_nothing() -> None:
    _passes(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.slow
def test_types_are_strict() -> None:
    _passes(sys.executable, "-m", "mypy", "--strict", "-p", "xlperf")


def test_rooms_import_downwards_only() -> None:
    _passes(Path(sys.executable).with_name("lint-imports"), "--no-cache")


def test_no_circle_of_imports() -> None:
    """Not even inside a package or a function; types alone may point back."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in _sources()}
    above: dict[str, set[str]] = {}
    for name, path in names.items():
        nodes = _nodes(path)
        guards = [
            node for node in nodes if isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute)
        ]
        types = [node for node in guards if "TYPE_CHECKING" in ast.unparse(node.test)]
        only_types = {node for guard in types for node in ast.walk(guard)}
        result = [node for node in nodes if isinstance(node, ast.ImportFrom) and node not in only_types]
        asked = {one for node in result for one in (node.module, *(f"{node.module}.{a.name}" for a in node.names))}
        above[name] = (asked & set(names)) - {name}
    left = dict(above)
    while ground := [name for name, asked in left.items() if not asked & set(left)]:
        for name in ground:
            del left[name]
    assert not left, f"import each other in a circle: {', '.join(sorted(left))}"


def test_top_level_is_fixed() -> None:
    names = {path.relative_to(ROOT).parts[0] for path in _tracked()}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL


def _code_lines(path: Path) -> int:
    """Lines of a module without docstrings, comments and blanks."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in _nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(code)


LONG_MODULES: dict[str, int] = {}
"""Lines of code of modules that are longer than the limit: lower an entry when its module shrinks, add none."""


def test_modules_stay_short() -> None:
    """At most 400 lines of code, and 800 with docstrings; the habit is half of either, since seams follow ideas."""
    sizes = {
        _name(path): (_code_lines(path), len(path.read_text(encoding="utf-8").splitlines())) for path in _sources()
    }
    assert len(sizes) == len(_sources()) > 150, "modules of one name in two folders are two modules"
    long = {name: size for name, size in sizes.items() if size[0] > LONG_MODULES.get(name, 400)}
    long |= {name: size for name, size in sizes.items() if size[1] > 800}
    assert not long


def test_test_modules_stay_short() -> None:
    sizes = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py")}
    assert not {name: size for name, size in sizes.items() if size > 500}


def test_functions_stay_short_and_long_calls_name_their_arguments() -> None:
    """At most 80 lines below the docstring, and 12 arguments by position; packing of bytes has no names for them."""
    long, unnamed = [], []
    for path in _sources():
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in _nodes(path):
            if isinstance(node, ast.FunctionDef):
                first = (node.body[0].end_lineno or 0) if ast.get_docstring(node) else node.lineno
                body = [line for line in lines[first : node.end_lineno] if line.strip()]
                long += [f"{_name(path)}: {node.name}"] if len(body) > 80 else []
            elif isinstance(node, ast.Call) and not ast.unparse(node.func).endswith("pack"):
                given = [value for value in node.args if not isinstance(value, ast.Starred)]
                unnamed += [f"{_name(path)}:{node.lineno}"] if len(given) > 12 else []
    assert not long
    assert not unnamed


CALLED_BY_NAME = ("xlperf.addin.", "xlperf.studies.", "xlperf.notebook.functions.")
"""Hosts and studies, which tables name; and the public page."""


def test_no_function_is_without_a_caller() -> None:
    """Each function, class and constant is named by production code: tests and doctests do not count."""
    trees = {path: _tree(path) for path in _sources()}
    defined: dict[str, Path] = {}
    named: set[str] = set()
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        brought = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in _nodes(path)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for statement in tree.body:
            own = getattr(statement, "name", "")
            assigned = statement.targets if isinstance(statement, ast.Assign) else []
            names = [own, *(target.id for target in assigned if isinstance(target, ast.Name))]
            defined.update({f"{module}.{name}": path for name in names if name and not name.startswith("__")})
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id != own:
                    named.add(brought.get(node.id, f"{module}.{node.id}"))
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    named.add(f"{brought.get(node.value.id, '')}.{node.attr}")
    orphans = [name for name in defined if name not in named and not name.startswith(CALLED_BY_NAME)]
    orphans = [name for name in orphans if not _reexported(name, trees, named)]
    assert not orphans, f"nobody calls {', '.join(orphans)}"


def _reexported(name: str, trees: dict[Path, ast.Module], named: set[str]) -> bool:
    """Whether a package passes a name on under which it is called."""
    module, _, last = name.rpartition(".")
    for path, tree in trees.items():
        if path.name == "__init__.py":
            package = ".".join(path.parent.relative_to(ROOT).parts)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module == module:
                    passed = {alias.name: alias.asname or alias.name for alias in node.names}
                    if last in passed and f"{package}.{passed[last]}" in named:
                        return True
    return False


def test_every_row_of_a_data_table_has_a_value_for_each_column() -> None:
    """A comma without quotes makes two fields of one, and what stands behind it is lost."""
    for path in _tracked():
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))
            assert not [number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])], path


def test_no_file_names_this_machine_or_a_registry() -> None:
    places = {str(ROOT), str(ROOT.parent) + "/", str(Path.home()) + "/"} - {"//", "/", "/tmp/"}
    options = (r"index[-]url", r"registry *=[ ]*http", r"[p]ypi\.(?:org|io)", r"[p]ythonhosted")
    registry = re.compile("|".join((*options, r"(?<![\w.])/(?:home|Users|root|work)/\w")))
    for name, text in _texts():
        assert not any(place in text for place in places), f"{name} holds a path of this machine"
        assert not registry.search(text), f"{name}: {registry.search(text)}"


def test_package_neither_evaluates_text_nor_opens_ports() -> None:
    modules = {"pickle", "marshal", "shelve", "socket", "socketserver", "http", "urllib", "ftplib", "asyncio"}
    forbidden = ("xlwings.server", "xlwings.pro")
    for path in _sources():
        for node in _nodes(path):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = [f"{node.value.id}.{node.attr}"]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), f"{_name(path)}:{node.lineno}"
            for name in names:
                imported = isinstance(node, (ast.Import, ast.ImportFrom))
                assert not (imported and name.split(".")[0] in modules), f"{_name(path)}:{node.lineno} imports {name}"
                assert not name.startswith(forbidden), f"{_name(path)}:{node.lineno} uses {name}"


def test_factors_of_units_stand_in_one_place() -> None:
    """A million or a billion is a unit; units.py alone knows them."""
    factor = re.compile(r"1(\.0*)?[eE]\+?(6|9|12|15|18)|10{6}(0{3})*\.0*")
    places = []
    for path in _sources():
        if factor.search(path.read_text(encoding="utf-8")) and _name(path) != "xlperf/base/units.py":
            with path.open("rb") as stream:
                tokens = [token for token in tokenize.tokenize(stream.readline) if token.type == tokenize.NUMBER]
            numbers = [token for token in tokens if factor.fullmatch(token.string)]
            places += [f"{_name(path)}:{token.start[0]}: {token.string}" for token in numbers]
    assert not places


def test_percent_is_written_one_way() -> None:
    """``95 %``, by :func:`xlperf.base.units.percent`: no format in a sentence writes a fraction without the space."""
    odd = re.compile(r":[-+,.#\d]*%\}")
    texts = [*_sources(), *sorted((ROOT / "xlperf").rglob("*.csv"))]
    assert [_name(path) for path in texts if odd.search(path.read_text(encoding="utf-8"))] == []


def test_help_imports_nothing_heavy() -> None:
    """Of no command: one process shows the help of all, and names what is imported after each."""
    asked = [[], ["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    code = (
        "import sys, json; from xlperf.cli import run\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    code = run(line)\n"
        f"    print(line, code, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = _run(sys.executable, "-c", code, json.dumps(asked))
    assert done.stderr.splitlines() == [f"{line} 0 []" for line in asked]


def test_import_of_the_package_imports_nothing_heavy() -> None:
    done = _run(sys.executable, "-c", f"import sys, xlperf; print([n for n in {HEAVY!r} if n in sys.modules])")
    assert done.stdout.strip() == "[]"


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def _commands() -> list[str]:
    """Lines of the first two code blocks of the README: the report, the tests."""
    return [block.strip() for block in re.findall(r"^```\w*\n(.*?)^```", _readme(), re.DOTALL | re.MULTILINE)][:2]


def test_continuous_integration_runs_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    main, tests = _commands()
    assert "\n" not in main + tests
    assert script.splitlines()[-1] == tests
    assert tests.endswith(' -m ""'), "the slow tests too"
    assert "set -euo pipefail" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "xlperf report" in main


def test_readme_counts_what_skips_tests() -> None:
    marks = sum(
        len(SKIPS.findall(path.read_text(encoding="utf-8")))
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__).resolve()
    )
    said = re.search(r"^(\w+) conditions skip tests:", _readme(), re.MULTILINE)
    assert said, "the README does not say how many conditions skip tests"
    assert said[1] == WORDS[marks], f"the README says {said[1]}, there are {marks}"


def test_readme_is_short() -> None:
    assert len(_readme().splitlines()) <= 130


def test_readme_names_every_command() -> None:
    missing = [name for name in COMMANDS if f"xlperf {name}" not in _readme()]
    assert not missing


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _passes(
        *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--disable-pip-version-check", "--wheel-dir", folder, ROOT),
    )
    (result,) = folder.glob("xlperf-*.whl")
    return result


def test_wheel_carries_workbooks_templates_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        "xlperf/workbooks/xlperf.xlsx",
        "xlperf/workbooks/validation.xlsx",
        "xlperf/templates/report.xlsx",
        "xlperf/guide/start.md",
    }
    data = {f"xlperf/{path.relative_to(ROOT / 'xlperf')}" for path in _tracked() if (ROOT / "xlperf") in path.parents}
    assert wanted | data <= names
    left_out = (".png", "accuracy.md")
    carried = [name for name in names if name.endswith(left_out) and name != "xlperf/guide/accuracy.md"]
    assert not carried, "pictures, the page of accuracy"
    assert not [name for name in names if name.startswith("xlperf/workbooks/") and not name.endswith(".xlsx")]
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    assert "License-Expression: Apache-2.0" in zipfile.ZipFile(wheel).read(metadata).decode().splitlines()
    assert not [name for name in names if name.startswith(("tests/", "workbooks/", ".ci"))]


def test_wheel_finds_its_own_workbook(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "from xlperf import load_catalog; from xlperf.base import resources; print(resources.workbook());"
        "print(resources.template('report.xlsx')); print(len(load_catalog().tables['accelerators']) > 5)"
    )
    done = _run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    folder = tmp_path / "xlperf"
    expected = [str(folder / "workbooks" / "xlperf.xlsx"), str(folder / "templates" / "report.xlsx"), "True"]
    assert done.stdout.splitlines() == expected, done.stderr


def test_only_tables_keep_a_layout_of_their_own() -> None:
    """The formatter lays out code; a literal table may stand as its author aligned it."""
    packed = []
    for path in _sources():
        text = path.read_text(encoding="utf-8")
        tables = {
            node.end_lineno
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Tuple | ast.List | ast.Set | ast.Dict)
        }
        marked = {number for number, line in enumerate(text.splitlines(), 1) if "# fmt: skip" in line}
        packed += [f"{_name(path)}:{number}" for number in sorted(marked - tables)]
    assert len(packed) <= 66, packed
