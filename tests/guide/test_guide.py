"""The guide: commands and Python blocks of a page run, in order, in one folder, and print what the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import contract
import guide_pages
import pytest
from conftest import Outcome
from places import ROOT

from xlperf.base import resources
from xlperf.catalog.schema import schema
from xlperf.cli.app import cli

Command = Callable[..., Outcome]
GUIDE = resources.table("guide")
PAGES = sorted(path.stem for path in GUIDE.glob("*.md"))


def page(name: str) -> str:
    return (GUIDE / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", guide_pages.written_pages())
def test_blocks_of_a_page_run_and_print_what_it_shows(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(words: list[str]) -> str:
        outcome = command(*words)
        assert outcome.code == 0, (words, outcome.err)
        return outcome.out

    text = page(name)
    assert guide_pages.with_outputs(text, run) == text, f"run: python tests/support/guide_pages.py {name}"


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_of_a_kind_that_is_run(name: str) -> None:
    fences = re.findall(r"^```(.*)$", page(name), re.MULTILINE)
    kinds = [kind.split(" ")[0] for kind in fences[::2]]
    assert set(fences[1::2]) <= {""} and set(kinds) <= {"console", "python", "csv", "json", "bibtex"}


@pytest.mark.parametrize("name", guide_pages.MADE)
def test_pages_made_from_data_are_up_to_date(name: str) -> None:
    assert guide_pages.MADE[name]() == page(name), f"run: python tests/support/guide_pages.py {name}"


def test_first_hours_show_commands() -> None:
    for name in ("start", "planner", "engineer", "architect"):
        assert page(name).count("$ xlperf") > 3


def test_the_command_lists_and_prints_each_page_and_names_the_nearest(command: Command) -> None:
    titles = command("guide").out
    assert sorted(line.split()[2] for line in titles.splitlines()) == PAGES
    for name in PAGES:
        shown = command("guide", name).out
        assert shown.startswith("# ") and shown[2:].splitlines()[0] in titles
    mistaken = command("guide", "planer")
    assert mistaken.code == 2 and mistaken.err == "guide: no page planer; did you mean planner?\n"
    section = command("guide", "LoRA")
    assert section.code == 0 and "Adapters (LoRA)" in section.out and "How many spares" not in section.out
    assert "; see xlperf guide planner mooncake" in command("guide", "mooncake").err


def test_the_name_of_a_command_opens_its_part_of_the_guide(command: Command) -> None:
    fleet = command("guide", "fleet")
    assert fleet.code == 0 and fleet.out.startswith("## Buy B200 now or wait?") and "xlperf rl" not in fleet.out
    for name in ("serve", "diagnose", "chip", "worth", "calibrate"):
        assert f"xlperf {name}" in command("guide", name).out, name
    assert command("guide", "functions").out.startswith("# Functions")


def test_the_command_prints_the_parts_of_a_page_that_have_some_words(command: Command) -> None:
    columns = command("guide", "columns", "micro batch size").out
    assert "## training" in columns and "**micro batch size**" in columns and len(columns.splitlines()) < 60
    formula = command("guide", "equations", "poisson").out
    assert "$$" in formula and "`defects`" in formula and len(formula.splitlines()) < 60
    assert command("guide", "columns", "micro", "batch", "size").out == columns
    nothing = command("guide", "glossary", "no such words")
    assert nothing.code == 2 and nothing.err.startswith("guide: the page glossary has no no such words; choose from ")


def test_words_that_no_page_is_called_name_the_pages_that_have_them(command: Command) -> None:
    for words in (("think", "time"), ("glossary", "think", "time")):
        error = command("guide", *words).err
        assert "xlperf guide columns think time" in error
    assert "**think time (s)**" in command("guide", "columns", "think", "time").out
    assert command("guide", "Adapters", "(LoRA)").out == command("guide", "LoRA").out
    assert command("guide", "glossary", "host", "memory").code == 0  # its names have underscores


def glossary() -> dict[str, str]:
    """Units by name."""
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| .+ \|$", page("glossary"), re.MULTILINE)
    assert len(dict(rows)) == len(rows), "a name is listed twice"
    return dict(rows)


def test_parameters_of_formulas_have_the_unit_of_the_glossary() -> None:
    units = glossary()
    wrong = [
        f"{name}: {entry.name} [{entry.unit}], glossary [{units[entry.name]}]"
        for name, function in contract.formulas().items()
        for entry in contract.section(contract.documentation(function), "Parameters")
        if units.get(entry.name, entry.unit) != entry.unit
    ]
    assert not wrong


def test_names_of_the_glossary_exist() -> None:
    known = {column.name for table in schema().values() for column in table.columns}
    for function in contract.formulas().values():
        text = contract.documentation(function)
        known |= {entry.name for title in ("Parameters", "Returns") for entry in contract.section(text, title)}
    assert 120 <= len(glossary()) <= 180
    assert not sorted(set(glossary()) - known)


def test_changes_list_the_new_spelling_of_every_old_name() -> None:
    rows = dict(re.findall(r"^\| `xlperf (\w+).*?` \| `xlperf (.+?)`", page("changes"), re.MULTILINE))
    for spelling, task in cli.tasks().items():
        name, _, flag = spelling.partition(" ")
        if flag:
            assert rows[str(task.name)].startswith(name) and flag in rows[str(task.name)].split(), spelling


def test_files_that_the_guide_tells_to_touch_exist() -> None:
    """A path with a folder is one below the package or the project; a name alone is anywhere."""
    names = [name for name in re.findall(r"`([\w./]+\.(?:csv|py))`", page("extend")) if "NAME" not in name]
    assert len(names) > 20
    known = {path.name for folder in ("xlperf", "workbooks", "tests") for path in (ROOT / folder).rglob("*.*")}
    missing = [
        name
        for name in names
        if not (any((top / name).exists() for top in (GUIDE.parent, ROOT)) if "/" in name else name in known)
    ]
    assert not missing


def test_commands_named_in_the_guide_exist() -> None:
    texts = [page(name) for name in guide_pages.written_pages() if name != "changes"]
    named = set(re.findall(r"`xlperf ([a-z]+)", "\n".join(texts)))
    assert named <= set(cli.commands), "an old name, or none"


def test_options_named_in_the_guide_exist() -> None:
    known = {
        option
        for task in cli.tasks().values()
        for parameter in task.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {flag for spelling in cli.tasks() for flag in spelling.split() if flag.startswith("--")}
    known |= {"--help", "--rows", "--studies", "--template", "--validation", "--checked"}
    for name in guide_pages.written_pages():
        words = re.sub(r"^```.*?^```", "", page(name), flags=re.MULTILINE | re.DOTALL)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words)) <= known, name


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"(\w+)\.md$", (ROOT / ".docs" / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == PAGES


def test_links_between_pages_lead_somewhere() -> None:
    for name in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)", page(name)):
            assert (GUIDE / target).exists(), f"{name}: {target}"
        for topic in re.findall(r"`xlperf guide (\w+)", page(name)):
            assert topic in PAGES, f"{name}: {topic}"


def test_start_and_accuracy_are_short() -> None:
    assert len(page("accuracy").splitlines()) <= 110, "two pages"
    assert len(page("start").splitlines()) <= 260


def test_prose_of_the_guide_names_the_subject() -> None:
    """Rates per 1,000 words of grammar that hides who acts; limits are twice the worst of six other projects."""
    text = " ".join(page(name) for name in guide_pages.written_pages() if name != "glossary")
    prose = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    limits = {"those|that of": 1.4, "what": 2.6, "where": 3.8, "told|said|stands?|kept|taken": 1.0}
    rates = {words: 1000 * len(re.findall(rf"\b({words})\b", prose, re.I)) / len(prose.split()) for words in limits}
    assert not {words: rate for words, rate in rates.items() if rate > limits[words]}
