"""Names as people write them: ``H100``, ``meta-llama/Llama-3.1-70B``, ``llama3 70b`` and ``3nm`` find their rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from xlperf.catalog.table import Table

MARK = "\x1f"
"""Stands between a name and the number of a copy of its row, where a sweep gives plans rows of their own."""
_BETWEEN_WORDS = re.compile(r"[^\w.]+|_+")


def aliases(table: Table) -> list[tuple[int, str]]:
    """Other spellings of the names of a table: (row, spelling); none where it has no such column."""
    return [
        (row, word.strip())
        for row, text in enumerate(table.text("aliases").tolist() if "aliases" in table.schema.by_name else ())
        for word in str(text).split(";")
        if word.strip()
    ]


def words_of(name: str) -> tuple[str, ...]:
    """Words of a name without regard to case, blanks and punctuation; a point stays, 3.1 is not 31.

    >>> words_of("Llama-3.1-70B (Instruct)")
    ('llama', '3.1', '70b', 'instruct')
    """
    return tuple(word for word in _BETWEEN_WORDS.split(name.casefold()) if word)


class Spellings:
    """Names of one table by how they may be spelled.

    ``table``: with a column of names, and perhaps one of aliases.
    """

    def __init__(self, table: Table) -> None:
        names = [str(name) for name in table.text(table.schema.key.name).tolist()]
        self._spelled = [(name, words_of(name)) for name in dict.fromkeys(names)]
        self._spelled += [(names[row], words_of(word)) for row, word in aliases(table)]

    def names(self, text: str) -> list[str]:
        """Names that a text may mean.

        The same words however they are joined (``llama3 70b``), those after the owner's name and a slash
        (``meta-llama/Llama-3.1-70B``), or else the first words of a name (``H200``).

        ``text``: what a cell says. In the order of the rows; none where nothing is like it.
        """
        for own in (words_of(text), words_of(text.rpartition("/")[2])):
            joined = "".join(own)
            same = _distinct(name for name, words in self._spelled if joined and "".join(words) == joined)
            if same:
                return same
        begun = words_of(text)
        if not any(map(str.isalpha, "".join(begun))):
            return []
        return _distinct(name for name, words in self._spelled if words[: len(begun)] == begun)


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))


def copied_name(name: str) -> str:
    r"""Name of the row that a copy was made of; any other name as it is.

    >>> copied_name("H100-SXM-80GB\x1f7"), copied_name("H100-SXM-80GB")
    ('H100-SXM-80GB', 'H100-SXM-80GB')
    """
    return name.partition(MARK)[0]
