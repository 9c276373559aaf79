"""Completion of the command line in bash, zsh and fish: files, names of the catalog, studies, columns, results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/xlperf",
    "zsh": "~/.zfunc/_xlperf",
    "fish": "~/.config/fish/completions/xlperf.fish",
}
"""Files from which each shell reads the completion of a command."""
_OBJECTIVES = ("--objective", "--result", "--limit", "--target")


def install(shell: str | None = None) -> str:
    """Write the completion of a shell, by default that of the user's account; a line with its place."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise InputError(Fault("", f"the shell {name or 'is not known'}: name one of {', '.join(SHELLS)}".strip()))
    script = get_completion_class(name)
    assert script is not None  # click has those of SHELLS
    path = Path(SHELLS[name]).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as temporary:
        temporary.write_text(
            script(click.get_current_context().find_root().command, {}, "xlperf", "_XLPERF_COMPLETE").source(),
            encoding="utf-8",
        )
    more = "; in ~/.zshrc: fpath+=~/.zfunc; autoload -U compinit; compinit" if name == "zsh" else ""
    return f"{path}: completion of xlperf in {name}, in new terminals{more}"


def uninstall() -> str:
    """Remove what :func:`install` wrote; a line with their names."""
    paths = [path for path in (Path(name).expanduser() for name in SHELLS.values()) if path.is_file()]
    for path in paths:
        path.unlink()
    return f"removed: {', '.join(map(str, paths))}" if paths else "no completion of xlperf is installed"


def files(incomplete: str) -> list[CompletionItem]:
    """The files that the shell itself offers."""
    return [CompletionItem(incomplete, type="file")]


def names_of(kind: str) -> Complete:
    """Names in a sheet of the shipped catalog."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from xlperf.catalog.catalog import load_catalog
        from xlperf.catalog.schema import table_schema

        return _matching(load_catalog().tables[kind].text(table_schema(kind).key.name).tolist(), incomplete)

    return complete


def words_of(words: Sequence[str]) -> Complete:
    """Some words."""
    return lambda _context, _parameter, incomplete: _matching(words, incomplete)


def complete_option(option: str) -> Complete | None:
    """Completion of the values of an option by its name; None if there is none."""
    return {"--study": _studies, "--vary": _columns, **dict.fromkeys(_OBJECTIVES, _results)}.get(option)


def _studies(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.studies import NAMES

    return _matching(["list", *NAMES], incomplete)


def _columns(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.catalog.schema import PLAN_TABLES, table_schema

    columns = (column.name for kind in PLAN_TABLES for column in table_schema(kind).columns)
    return _matching([f"{name}=" for name in columns], incomplete)


def _results(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from xlperf.catalog.schema import PLAN_TABLES, results_of

    columns = (column for kind in PLAN_TABLES for column in results_of(kind).columns if column.kind == "result")
    return _matching([column.name for column in columns], incomplete)


def _matching(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Words that begin as the incomplete one does, whatever their case."""
    start = incomplete.casefold()
    return [CompletionItem(word) for word in dict.fromkeys(words) if word.casefold().startswith(start)]
