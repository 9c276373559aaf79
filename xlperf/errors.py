"""The one family of errors that xlperf raises on purpose.

Bad input is reported in one line per fault: where it stands, what was found, what would do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class XlperfError(Exception):
    """Base of every error that xlperf raises on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with the input: ``place: problem``."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}" if self.place else self.problem


class InputError(XlperfError):
    """The input is malformed; carries every fault found, in reading order.

    Parameters
    ----------
    faults : sequence of Fault
        What is wrong; at least one. The same fault is said once.
    """

    def __init__(self, faults: Sequence[Fault] | Fault) -> None:
        given = (faults,) if isinstance(faults, Fault) else faults
        self.faults: tuple[Fault, ...] = tuple(dict.fromkeys(given))
        super().__init__("\n".join(str(fault) for fault in self.faults))

    def lines(self, most: int = 50) -> list[str]:
        """A line per fault; beyond ``most`` a last line says how many more there are.

        >>> InputError([Fault("a", "x"), Fault("b", "x"), Fault("c", "x")]).lines(2)
        ['a: x', 'b: x', '... and 1 more fault']
        """
        rest = len(self.faults) - most
        shown = [str(fault) for fault in self.faults[: most if rest > 0 else None]]
        return [*shown, f"... and {rest:,} more fault{'s' if rest > 1 else ''}"] if rest > 0 else shown


class HostError(XlperfError):
    """A spreadsheet host (LibreOffice, Excel, the worker) could not do what was asked."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""A text for a terminal: control characters, which could move its cursor or retitle it, are written out.

    >>> printable("plan\x1b[2J")
    'plan\\x1b[2J'
    """
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Say which known names are nearest to an unknown one: ``did you mean A, B?`` or the start of the list.

    Names that start with the unknown one come first, then those that hold it, then those that are spelled alike; case,
    spaces and marks between words do not count.

    Parameters
    ----------
    name : str
        The unknown name.
    known : iterable of str
        Names that would do.
    count : int, default 3
        How many to list at the most.

    Returns
    -------
    str
        A clause that starts with ``did you mean`` or ``known:``.

    >>> nearest("H100", ["A100", "H100-SXM-80GB", "DGX-H100"])
    'did you mean H100-SXM-80GB, DGX-H100, A100?'
    """
    import difflib

    names = list(known)
    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(candidate.casefold(), candidate)
    wanted = _plain(name)
    close = [candidate for candidate in folded.values() if len(wanted) > 1 and _plain(candidate).startswith(wanted)]
    close += [candidate for candidate in folded.values() if len(wanted) > 2 and wanted in _plain(candidate)]
    alike = difflib.get_close_matches(name.casefold(), list(folded), n=count, cutoff=0.5)
    close = list(dict.fromkeys([*close, *(folded[key] for key in alike)]))[:count]
    if close:
        return f"did you mean {', '.join(_quoted(close))}?"
    shown = ", ".join(_quoted(names[:8]))
    return f"known: {shown}{', ...' if len(names) > 8 else ''}" if names else "none is known"


def _plain(name: str) -> str:
    """Letters and digits of a name, without case."""
    return re.sub(r"[\W_]+", "", name.casefold())


def _quoted(names: list[str]) -> list[str]:
    """Names in quotes where one of them holds a comma and could be taken for two."""
    return [f'"{name}"' for name in names] if any("," in name for name in names) else names
