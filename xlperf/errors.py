"""The one family of errors that xlperf raises on purpose.

Bad input is reported in one line per fault: where it stands, what was found, what would do.
"""

from __future__ import annotations

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
        What is wrong; at least one.
    """

    def __init__(self, faults: Sequence[Fault] | Fault) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
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


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Say which known names are nearest to an unknown one: ``did you mean A, B?`` or the start of the list.

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
    """
    import difflib

    names = list(known)
    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(candidate.casefold(), candidate)
    close = [folded[key] for key in difflib.get_close_matches(name.casefold(), list(folded), n=count, cutoff=0.5)]
    if close:
        return f"did you mean {', '.join(close)}?"
    shown = ", ".join(names[:8])
    return f"known: {shown}{', ...' if len(names) > 8 else ''}" if names else "none is known"
