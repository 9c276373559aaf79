"""Shell scripts as text: statements, variables and tests, read without running anything.

Work is bounded: a script whose variables grow without end, or whose blocks nest without end, raises :class:`Endless`.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

MOST_VALUE = 20_000  # characters of a variable at the most
_DEEPEST = 20  # defaults within defaults that are filled in at the most
MOST_WORK = 2_000_000  # characters that the variables of one script make at the most
_MOST_BLOCKS = 200  # conditions and loops within each other at the most
_MOST_PATTERN = 200  # characters of a pattern with wildcards at the most
_MOST_CALLED = 50_000  # statements of functions that are called, each as often as it is
_MOST_ARGUMENTS = 100  # words of a call at the most
_CALLED = "\2"

_ASSIGNMENT = re.compile(r"((?:export|local|readonly|declare(?:\s+-\w+)?)\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SET = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SIMPLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*0]\])?\}|([A-Za-z_]\w*|\d))")
_DEFAULT = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(:?[-=+])((?:[^{}$]|\$(?!\{))*)\}")
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
_COMMAND = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_WORD = re.compile(rf"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|{_COMMAND.pattern}|\$\{{[^}}]*\}}|\$(?![({{])|[^\s\"'$])*")
_HELD = "\1"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}


_OPERATIONS: Mapping[type[ast.AST], Callable[[float, float], float]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


_DIRECTIVE = re.compile(r"^#SBATCH\s+(--?[A-Za-z-]{1,40})[= ]\s*(?:gpu:(?:\w{1,20}:)?)?(\d{1,6})\b", re.MULTILINE)
_SCHEDULED = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), "--gres": ("SLURM_GPUS_ON_NODE",),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",), "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "-n": ("SLURM_NTASKS", "SLURM_NPROCS"),
}  # fmt: skip


def _split(text: str) -> list[str]:
    """Words of a text as a POSIX shell splits them; shlex, which reads sign by sign, only if the text quotes any."""
    return shlex.split(text) if re.search(r"[\"'\\]", text) else re.findall(r"[^ \t\r\n]+", text)


def _of_scheduler(text: str) -> dict[str, str]:
    """Variables that Slurm sets from the directives of a script.

    >>> _of_scheduler("#SBATCH --gres=gpu:h100:4")
    {'SLURM_GPUS_ON_NODE': '4'}
    """
    return {name: value for option, value in _DIRECTIVE.findall(text) for name in _SCHEDULED.get(option, ())}


_STEP = re.compile(r"(?:^| )(--?[A-Za-z-]{1,40})[= ](?:gpu:(?:\w{1,20}:)?)?(\d{1,6})(?= |$)")


def _of_step(words: list[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Nodes and accelerators of a step that srun starts, by its options or the directives of the script.

    >>> _of_step(["srun", "-N", "4", "python"], {"SLURM_NNODES": "8", "SLURM_NTASKS_PER_NODE": "8"})
    {'SLURM_NNODES': '4', 'NUM_GPUS_PER_NODE': '8'}
    """
    if words[0].rpartition("/")[2] != "srun":
        return {}
    options = _STEP.findall(" ".join(words)[:2000])
    stated = {name: value for option, value in options for name in _SCHEDULED.get(option, ())}
    known = {**variables, **stated}
    devices = (known.get(f"SLURM_{name}", "") for name in ("GPUS_PER_NODE", "GPUS_ON_NODE", "NTASKS_PER_NODE"))
    step = {"SLURM_NNODES": known.get("SLURM_NNODES", ""), "NUM_GPUS_PER_NODE": next(filter(None, devices), "")}
    return {name: value for name, value in step.items() if value.isdigit()}


class Endless(ValueError):
    """Variables of a script grow, or its blocks nest, beyond any script that launches something."""


class Call(NamedTuple):
    """Words of a command; ``before``: its own variables; ``exported``: variables of all commands."""

    words: list[str]
    before: Mapping[str, str]
    exported: Mapping[str, str]


class Shell:
    """Reads a script, statement by statement."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = dict(given)
        self.variables = dict(given)
        self._exported: dict[str, None] = {}
        self._exports_all = False
        self._work = 0

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MOST_WORK:
            raise Endless(f"its variables make more than {MOST_WORK:,} characters")

    def commands(self, text: str) -> Iterator[Call | str]:
        """Each command in turn; a here-document as a whole. Endless if variables grow or blocks nest too far."""
        for name, value in _of_scheduler(text).items():
            self.variables.setdefault(name, value)
        taken: list[bool | None] = []  # of each condition around a statement: taken, not, or another branch was
        subjects: list[str] = []
        for statement in _with_calls(list(_statements(text))):
            if statement.startswith(_CALLED):
                if all(taken):
                    arguments = self.words(statement[1:])[:_MOST_ARGUMENTS]
                    self.variables |= {str(place): word for place, word in enumerate(arguments) if place}
                continue
            if statement.startswith("\0"):
                if all(taken):
                    yield self.filled(statement[1:])
                continue
            statement = re.sub(r"^(?:(?:then|do|\{)\s+)+", "", statement)
            word, _, rest = statement.partition(" ")
            branch = re.match(r"\(?([^()\s$=]+)\)\s*", statement) if subjects else None
            if branch is not None and taken:
                wanted = self._is_one_of(subjects[-1], branch.group(1))
                taken[-1] = wanted if taken[-1] is False else None
                if all(taken):
                    yield from self._simple(statement[branch.end() :])
            elif word in ("case", "if", "while", "until", "for"):
                if len(taken) >= _MOST_BLOCKS:
                    raise Endless(f"its blocks nest more than {_MOST_BLOCKS} deep")
                if word == "case":
                    subjects.append(unquoted(self.filled(rest.partition(" in")[0], unknown=False)))
                elif word == "for":
                    self._first_of(rest)
                taken.append(self.holds(rest) if word == "if" else word != "case")
            elif word in ("elif", "else") and taken:
                done = taken[-1] is not False
                taken[-1] = None if done else (word == "else" or self.holds(rest))
            elif word in ("fi", "done", "esac") and taken:
                taken.pop()
                del subjects[len(subjects) - (word == "esac") :]
            elif word in ("then", "do", "{", "}", ";;") or not all(taken):
                pass
            else:
                yield from self._simple(statement)

    def _is_one_of(self, subject: str, patterns: str) -> bool:
        """Whether a text matches one of the patterns of a branch, separated by strokes."""
        for pattern in (one.strip("\"'") for one in patterns.split("|")):
            self._spend(len(pattern))
            if subject == pattern or pattern == "*":
                return True
            if set(pattern) & set("*?[") and len(pattern) <= _MOST_PATTERN:
                self._spend(1000 + len(subject))  # patterns are compiled
                if fnmatchcase(subject, pattern):
                    return True
        return False

    def _simple(self, statement: str) -> Iterator[Call]:
        assigned = _ASSIGNMENT.fullmatch(statement)
        if assigned is not None and _is_assignment(assigned.group(4)):
            scope, name, added, value = assigned.groups()
            words = self.words(value[1:-1]) if value.startswith("(") else [self.filled(unquoted(value))]
            result = " ".join(word if " " not in word or value[0] != "(" else _quoted(word) for word in words)
            self._assign(name, f"{self.variables.get(name, '')} {result}" if added else result, scope or "")
            return
        words = self.words(statement)
        scope = words.pop(0) if words and words[0] in ("export", "local", "readonly", "env") else ""
        before = {}
        while words and (one := _SET.fullmatch(words[0])) is not None:
            before[one.group(1)] = one.group(2)
            words.pop(0)
        if scope == "export":
            self._exported |= dict.fromkeys(word for word in words if word.isidentifier())
        if scope not in ("", "env") or not words:
            for name, value in before.items():
                self._assign(name, value, scope)
            return
        self._exports_all |= words[:2] in (["set", "-a"], ["set", "-o"])
        self._spend(20 * len(self._exported))
        before = {**_of_step(words, self.variables), **before}
        yield Call(words, before, {name: self.variables[name] for name in self._exported if name in self.variables})

    def _assign(self, name: str, value: str, scope: str) -> None:
        if name not in self.given:
            self.variables[name] = value[:MOST_VALUE]
            self._spend(min(len(value), MOST_VALUE))
        if scope.startswith("export") or self._exports_all:
            self._exported[name] = None

    def _first_of(self, rest: str) -> None:
        name, _, values = rest.partition(" in ")
        words = self.words(values)
        if words and name.strip().isidentifier() and name.strip() not in self.given:
            self.variables[name.strip()] = words[0]

    def words(self, text: str) -> list[str]:
        """Words of a text, variables filled in; a quoted word with options is split."""
        text = self.filled(text)[: 10 * MOST_VALUE]
        self._spend(len(text) // 10)  # what there is but for variables is bounded by the text
        try:
            words = _split(text)
        except ValueError:  # a quote that is not closed
            words = text.replace('"', " ").replace("'", " ").split()
        names: list[str] = []
        for word in words:
            several = " " in word.strip() and re.match(r"\s*--?[A-Za-z]", word)
            names += word.split() if several else [word]
        return names

    def filled(self, text: str, unknown: bool = True) -> str:
        """A text with its variables; unknown ones remain, or are empty."""

        def inserted(value: str) -> str:
            return value.replace("$", _HELD)  # what a variable holds is not filled in again

        def simple(match: re.Match[str]) -> str:
            name = match.group(1) or match.group(2)
            return inserted(self.variables.get(name, match.group(0) if unknown else ""))

        def default(match: re.Match[str]) -> str:
            name, kind, other = match.groups()
            value = inserted(self.variables.get(name, ""))
            if kind.endswith("+"):
                return other if value else ""
            return value or unquoted(other)

        def arithmetic(match: re.Match[str]) -> str:
            value = self.number(match.group(1))
            return inserted(match.group(0)) if value is None else f"{value:g}" if value % 1 else f"{value:.0f}"

        for _ in range(_DEEPEST):
            before = text
            text = self._substituted(_DEFAULT, default, self._substituted(_SIMPLE, simple, text))
            text = self._substituted(_ARITHMETIC, arithmetic, text)
            if text == before or len(text) > 10 * MOST_VALUE:
                break
        return _COMMAND.sub(lambda match: re.sub(r"\s+", "", match.group(0)), text.replace(_HELD, "$"))

    def _substituted(self, pattern: re.Pattern[str], value: Callable[[re.Match[str]], str], text: str) -> str:
        """A text with values put in; as much of it as variables may make."""
        result, place = [], 0
        for match in pattern.finditer(text):
            inserted = value(match)
            if inserted != match.group():
                self._spend(len(inserted) + 1)
            result += [text[place : match.start()], inserted]
            place = match.end()
        return "".join([*result, text[place:]])

    def number(self, text: str) -> float | None:
        """Value of an arithmetic expression; None if a variable is not known or there is more than numbers."""
        if len(text) > _MOST_PATTERN:
            return None
        chosen = re.fullmatch(r"([^?]+)\?([^:?]+):([^:?]+)", text)
        if chosen is not None:
            holds = self.number(chosen.group(1))
            return None if holds is None else self.number(chosen.group(2 if holds else 3))
        text = re.sub(r"[A-Za-z_]\w*", lambda match: self.variables.get(match.group(0), match.group(0)), text)
        self._spend(len(text) // 10)
        if len(text) > _MOST_PATTERN or not re.fullmatch(r"[\d\s.+\-*/%()<>=!]+", text) or "**" in text:
            return None
        try:
            return _value(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
            return None

    def holds(self, condition: str) -> bool:
        """Whether a test holds; False if it is of files or commands."""
        text = re.sub(r";\s*then\s*$", "", condition.strip())
        arithmetic = re.fullmatch(r"\(\((.*)\)\)", text)
        if arithmetic:
            return bool(self.number(self.filled(arithmetic.group(1))))
        result = False
        for either in re.split(r"\|\|", re.sub(r"\]\]?\s*(&&|\|\|)\s*\[\[?", r"\1", text)):
            tests = [self._test(one) for one in re.split(r"&&", either)]
            result = result or all(tests)
        return result

    def _test(self, text: str) -> bool:
        text = self.filled(text, unknown=False)[:MOST_VALUE].strip()
        self._spend(len(text))
        try:
            words = _split(text)
        except ValueError:
            return False
        if words and words[0] in ("[", "[["):
            words = words[1:]
        ends = [place for place, word in enumerate(words) if word in ("]", "]]")]
        words = words[: ends[0]] if ends else words
        negated = bool(words) and words[0] == "!"
        words = words[negated:]
        holds = False
        if len(words) in (1, 2) and words[0] in ("-z", "-n"):
            holds = any(words[1:]) == (words[0] == "-n")
        elif len(words) == 3 and words[1] in ("=", "==", "!="):
            holds = self._is_one_of(words[0], words[2].replace("|", "?")) == (words[1] != "!=")
        elif len(words) == 3 and words[1] in _NUMBERS:
            holds = bool(self.number(f"{words[0]} {_NUMBERS[words[1]]} {words[2]}"))
        return holds != negated


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    operation: Callable[[float, float], float] | None = None
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        operation, left, right = _OPERATIONS.get(type(node.ops[0])), node.left, node.comparators[0]
    elif isinstance(node, ast.BinOp):
        operation, left, right = _OPERATIONS.get(type(node.op)), node.left, node.right
    if operation is None:
        raise ValueError
    return float(operation(_value(left), _value(right)))


def _is_assignment(value: str) -> bool:
    """Whether a value is one word, or an array: otherwise it is a command with a variable before it."""
    if value.startswith("("):
        return value.rstrip().endswith(")")
    return _WORD.fullmatch(value) is not None


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _quoted(word: str) -> str:
    return f'"{word}"' if '"' not in word else f"'{word}'"


def _statements(text: str) -> Iterator[str]:
    """Statements without comments; a here-document is one that starts with a zero character."""
    lines = text.replace("\r\n", "\n").replace("\\\n", " ").split("\n")
    statement, state, place = "", _State(), 0
    while place < len(lines):
        line, place = lines[place], place + 1
        document = _HEREDOC.search(line) if "<<<" not in line and not state.quote else None
        if document is not None:
            content = []
            while place < len(lines) and lines[place].strip() != document.group(2):
                content.append(lines[place])
                place += 1
            place += 1
            statement += line[: document.start()]
            if statement.strip() and not state.depth:
                yield statement.strip()
            yield "\0" + "\n".join(content)
            statement, state = "", _State()
            continue
        for part, ended in state.parts(line):
            statement += part
            if ended or len(statement) > MOST_VALUE:
                if statement.strip():
                    yield statement.strip()
                statement = ""
        statement += "\n" if statement else ""
    if statement.strip():
        yield statement.strip()


_FUNCTION = re.compile(r"(?:function\s+([\w-]{1,80})\s*(?:\(\))?|([\w-]{1,80})\s*\(\))\s*(\{)?\s*")


def _with_calls(statements: Sequence[str]) -> Iterator[str]:
    """Statements with the body of a function at each of its calls, after one with the words of the call.

    A function that no statement calls by its first word stays where it is defined.
    """
    called = {statement.partition(" ")[0] for statement in statements}
    bodies: dict[str, list[str]] = {}
    outside: list[str] = []
    place = 0
    while place < len(statements):
        start = _FUNCTION.fullmatch(statements[place][:_MOST_PATTERN])
        name = (start[1] or start[2]) if start else ""
        if not start or name not in called or name in bodies:
            outside.append(statements[place])
            place += 1
            continue
        place += 1 if start[3] else 2  # the brace may stand on a line of its own
        depth, body = 1, []
        while place < len(statements):
            depth += (statements[place].endswith("{")) - (statements[place] == "}")
            place += 1
            if not depth:
                break
            body.append(statements[place - 1])
        bodies[name] = body
    waiting, left = [iter(outside)], _MOST_CALLED
    while waiting:
        statement = next(waiting[-1], None)
        if statement is None:
            waiting.pop()
            continue
        inside = bodies.get(statement.partition(" ")[0])
        if inside is None or len(waiting) > _DEEPEST:
            yield statement
        else:
            left -= len(inside) + 1
            if left < 0:
                raise Endless(f"its functions run more than {_MOST_CALLED:,} lines")
            yield _CALLED + statement
            waiting.append(iter(inside))


@dataclass
class _State:
    """Open quote and depth of parentheses at a place of a script."""

    quote: str = ""
    depth: int = 0

    def parts(self, line: str) -> Iterator[tuple[str, bool]]:
        """Parts of a line up to each end of a statement, without a comment."""
        start, skip = 0, False
        for place, sign in enumerate(line):
            if skip:
                skip = False
            elif sign == "\\" and self.quote != "'":
                skip = True
            elif self.quote:
                self.quote = "" if sign == self.quote else self.quote
            elif sign in "\"'":
                self.quote = sign
            elif sign == "(":
                self.depth += 1
            elif sign == ")":
                self.depth -= self.depth > 0
            elif sign == "#" and (place == 0 or line[place - 1] in " \t"):
                line = line[:place]
                break
            elif sign == ";" and not self.depth:
                yield line[start:place], True
                start = place + 1
        yield line[start:], not self.quote and not self.depth
