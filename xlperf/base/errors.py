"""The one family of errors that xlperf raises on purpose.

A fault of the input is one line: place, problem, remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

MOST_FAULTS_SHOWN = 50
_MOST_ALIKE = 3  # most faults of one wording with a line each; more share a line [-]


class XlperfError(Exception):
    """Base of every error that xlperf raises on purpose."""


Hint = Callable[[], str]  # remedy in words, computed only for display: a search for similar names takes milliseconds


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the input: ``place: problem; hint``."""

    place: str  # Where it stands, and what was found
    problem: str  # Where it stands, and what was found
    hint: Hint | None = field(default=None, compare=False, repr=False)  # What would do

    def __str__(self) -> str:
        words = f"{self.problem}; {self.hint()}" if self.hint is not None else self.problem
        return printable(f"{self.place}: {words}" if self.place else words)

    @property
    def brief(self) -> str:
        """The fault without its hint."""
        return printable(f"{self.place}: {self.problem}" if self.place else self.problem)


class InputError(XlperfError):
    """The input is malformed; carries at least one fault, in reading order, without duplicates."""

    def __init__(self, faults: Sequence[Fault] | Fault) -> None:
        given = (faults,) if isinstance(faults, Fault) else faults
        self.faults: tuple[Fault, ...] = tuple(dict.fromkeys(given))
        super().__init__(self.faults)

    def __str__(self) -> str:
        """A line per gathered fault, with hints for as many as a command shows."""
        faults, most = self.gathered(), MOST_FAULTS_SHOWN
        return "\n".join([*map(str, faults[:most]), *(fault.brief for fault in faults[most:])])

    def gathered(self) -> list[Fault]:
        """Faults in reading order; more than three of one wording on one sheet become one with their number.

        >>> [str(fault) for fault in InputError([Fault(place, "x") for place in "abcd"]).gathered()]
        ['a and 3 more, the last at d: x']
        """
        alike: dict[tuple[str, str], list[Fault]] = {}
        for fault in self.faults:
            alike.setdefault(_sheet_and_problem(fault), []).append(fault)
        gathered = []
        for fault in self.faults:
            group = alike[_sheet_and_problem(fault)]
            if len(group) <= _MOST_ALIKE:
                gathered.append(fault)
            elif fault is group[0]:
                place = f"{fault.place} and {len(group) - 1:,} more, the last at {group[-1].place}"
                gathered.append(Fault(place, fault.problem, fault.hint))
        return gathered

    def lines(self, most: int = MOST_FAULTS_SHOWN) -> list[str]:
        """A line per gathered fault; beyond ``most`` a last line with the number of further faults.

        >>> InputError([Fault("a", "x"), Fault("b", "x"), Fault("c", "x")]).lines(2)
        ['a: x', 'b: x', '... and 1 more fault']
        """
        faults = self.gathered()
        more = len(faults) - most
        lines = [str(fault) for fault in faults[: most if more > 0 else None]]
        return [*lines, f"... and {more:,} more fault{'s' if more > 1 else ''}"] if more > 0 else lines


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise all faults at once, if there are any."""
    if faults:
        raise InputError(faults)


class OptionError(InputError):
    """Options that do not go together, or one is missing; a command adds its name and where its help is."""

    def __init__(self, problem: str) -> None:
        super().__init__(Fault("", problem))


def _sheet_and_problem(fault: Fault) -> tuple[str, str]:
    sheet, mark, _ = fault.place.rpartition("!")
    return sheet if mark else "", fault.problem


class HostError(XlperfError):
    """A spreadsheet host (LibreOffice, Excel, the worker) failed."""


# Controls except the tab, line and paragraph separators, format characters except joiners (of emoji and scripts), and
# surrogates: a terminal hides or obeys them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
_SHORT = {"\n": "\\n", "\r": "\\r"}


def printable(text: str) -> str:
    r"""A text as one line for a terminal or a message; characters that move a cursor or hide text are escaped.

    >>> printable("plan\x1b[2J"), printable("a\nb\u202e")
    ('plan\\x1b[2J', 'a\\nb\\u202e')
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in _SHORT:
        return _SHORT[match[0]]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A clause with the nearest known names, ``did you mean A, B?``, or with the first ones, ``known: ...``."""
    return _nearest(name, tuple(known), count)


@lru_cache(maxsize=4096)
def _nearest(name: str, names: tuple[str, ...], count: int) -> str:
    import difflib

    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(candidate.casefold(), candidate)
    wanted = _plain(name)
    close = [candidate for candidate in folded.values() if len(wanted) > 1 and _plain(candidate).startswith(wanted)]
    within = [candidate for candidate in folded.values() if len(wanted) > 2 and wanted in _plain(candidate)]
    close += sorted(within, key=len)
    spelled = {key.partition(" (")[0]: candidate for key, candidate in reversed(folded.items())} | folded
    alike = difflib.get_close_matches(name.casefold(), list(spelled), n=count, cutoff=0.5)
    close = list(dict.fromkeys([*close, *(spelled[key] for key in alike)]))[:count]
    if close:
        return f"did you mean {', '.join(_quoted(close))}?"
    shown = ", ".join(_quoted(list(names[:8])))
    return f"known: {shown}{', ...' if len(names) > 8 else ''}" if names else "none is known"


def _plain(name: str) -> str:
    """Letters and digits of a name, without case."""
    return re.sub(r"[\W_]+", "", name.casefold())


def _quoted(names: list[str]) -> list[str]:
    """Names in quotes if one of them contains a comma."""
    return [f'"{name}"' for name in names] if any("," in name for name in names) else names
