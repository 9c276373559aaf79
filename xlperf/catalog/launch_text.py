"""Launch scripts, arguments, YAML and TOML as text, read and written without running anything."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import NamedTuple

LONGEST_NAME = 200
"""Characters of a setting that are looked at for its name. [-]"""
DEEPEST = 30
"""Levels of nested keys at the most. [-]"""
_TABLE = re.compile(r"^\[[\w.\-\"]+\]\s*(#.*)?$", re.MULTILINE)
_KEY = re.compile(r"^(\s*)((?:-\s+)*)([\"']?)([-\w.+/]+)\3\s*:(?:\s+(.*)|\s*)$")
_ITEM = re.compile(r"^(\s*)-\s+(.*)$")
_OPTION = re.compile(r"--?[A-Za-z][\w.\-]*")
_DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_][\w.\-/]*")
_INSIDE = re.compile(r"\S\s+(--[a-z][\w-]+|[a-z_]+\.[a-z_.]+=)")
_END = re.compile(r"[|&;<>()]|\d?>&?\d?|.*[^-\w]>.*")


_DUMPED = re.compile(
    r"^[^\w\n]{0,40}(?:\w{1,40}\]?: ?)?[ \t]{1,40}([a-z][a-z0-9_]{1,60}) \.{2,60} (\S.{0,500})$", re.MULTILINE
)
_ENGINES = ("ServerArgs(", "non-default args: {")
MOST_ENGINE = 20_000
"""Characters of the arguments that an engine prints. [-]"""
_PAIR = re.compile(r"'?([a-z][a-z0-9_]+)'?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[\w.+-]+)")
_TYPED = re.compile(r"(?:torch|AttnBackend|\w+Backend)\.\w+")
FEWEST_DUMPED = 5
"""Arguments that a log has to list to be taken for one. [-]"""


class Setting(NamedTuple):
    """A name as it is written, ``--tp-size``, ``trainer.devices=`` or ``vllm serve``, and what follows."""

    name: str
    arguments: tuple[str, ...]

    @property
    def argument(self) -> str:
        """The first argument; "" for a switch."""
        return self.arguments[0] if self.arguments else ""

    @property
    def words(self) -> str:
        """As it is written."""
        shown = " ".join(self.arguments)
        return self.name + shown if self.name.endswith("=") else f"{self.name} {shown}".rstrip()


_MOVES = re.compile(
    r"(tensor|pipeline|context|expert|data|sequence|model|ulysses)[-.]?(model[-.]?)?parallel(?!ism)"
    r"|(^|[-.])(tp|pp|vpp|cp|ep|etp|dp|sp|mp|fsdp|hsdp|zero|mbs|gbs)([-.](size|degree|stage|world-size|shard-size))?$"
    r"|(micro|global|local|train|device)-?batch|(^|[-.])batch-?size|accumulat(e|ion)[-.](steps|grad-batches)"
    r"|(^|[-.])(max-)?(seq|sequence|context|cutoff)-?len(gth)?$|(^|[-.])(max-length|n-ctx)$"
    r"|(^|[-.])(precision|dtype|torch-dtype|compute-dtype|param-dtype|quantization|quantize|bf16|fp16|fp8|fp4|mxfp8)$"
    r"|recompute|(activation|gradient|activations)-?checkpoint(ing)?|offload|zero-stage|(^|[-.])deepspeed$"
    r"|lora|(^|[-.])peft|adapter|(^|[-.])shard|fsdp|sharding"
    r"|(^|[-.])(num-layers|hidden-size|intermediate-size|num-experts|num-hidden-layers|num-attention-heads)$"
    r"|(^|[-.])(nnodes|num-nodes|num-gpus|gpus-per-node|world-size)$|in-(first|last)-pipeline-stage"
)
_STILL = ("", "false", "no", "none", "null", "off", "0", "1", "[]", "{}")
"""Arguments that leave a degree or a switch as it is without them."""


def moves(words: str) -> bool:
    """Whether a setting, by its name, moves a result: parallelism, batch, lengths, precision, recomputation, offload.

    ``words``: a setting as it is written.

    >>> moves("--ulysses_parallel_size 8"), moves("--ulysses_parallel_size 1"), moves("--log-interval 10")
    (True, False, False)
    """
    parts = re.split(r"[=:\s]+", words[:LONGEST_NAME].strip(), maxsplit=1)
    name = parts[0].lstrip("-").replace("_", "-").casefold()
    argument = parts[1].strip("\"'").casefold() if len(parts) > 1 else None
    return argument not in _STILL and _MOVES.search(name) is not None


def settings_of(text: str, given: Mapping[str, str] | None = None, commands: Sequence[str] = ()) -> list[list[Setting]]:
    """Settings of a launch file, command by command; YAML and TOML are one.

    ``text``: arguments, a shell script, YAML or TOML. ``given``: variables of the environment. ``commands``: commands
    whose first argument has no name, as ``vllm serve``.
    """
    logged = logged_settings(text)
    if logged:
        return [logged]
    if _TABLE.search(text):
        try:
            return [list(_flat(tomllib.loads(text), "", 0))]
        except (tomllib.TOMLDecodeError, RecursionError):
            pass
    if _is_yaml(text):
        return [list(_yaml(text, given or {}, commands))]
    found = []
    for command in Shell(given or {}).commands(text):
        if isinstance(command, list):
            found.append(list(_of_words(command, commands)))
        elif _is_yaml(command):
            found.append(list(_yaml(command, {}, commands)))
    return found


def logged_settings(text: str) -> list[Setting]:
    """Arguments that a log lists at its start, or that the JSON of a benchmark states; none where it is neither.

    ``text``: megatron-LM's list of arguments; the engine arguments that vLLM and SGLang print; JSON.
    """
    found = [(name, value.strip()) for name, value in _DUMPED.findall(text)]
    if len(found) < FEWEST_DUMPED:
        starts = [text.find(one) + len(one) for one in _ENGINES if one in text]
        lines = [text[start : start + MOST_ENGINE].partition("\n")[0] for start in starts]
        found = [pair for line in lines for pair in _PAIR.findall(line)]
    if found:
        stated = {name: value.strip("'\"") for name, value in found if not _TYPED.search(value)}
        if stated.get("group_query_attention") == "False":
            stated.pop("num_query_groups", None)
        if stated.get("num_experts") in ("None", "0"):
            stated = {name: value for name, value in stated.items() if not name.startswith("moe_")}
        return [Setting(f"{name}:", (value,)) for name, value in stated.items()]
    if text.lstrip().startswith("{"):
        try:
            return [one for one in _flat(json.loads(text), "", 0) if not one.name.endswith("s:") or one.argument]
        except (ValueError, RecursionError):
            return []
    return []


def _of_words(words: Sequence[str], commands: Sequence[str], depth: int = 0) -> Iterator[Setting]:
    """Settings of the words of one command, and of commands inside quotes."""
    inside = [word for word in words if _INSIDE.search(word) and not _OPTION.match(word)]
    for word in inside if depth < DEEPEST else ():
        yield from _of_words(word.split(), commands, depth + 1)
    words = [word for word in words if word not in inside]
    if len(words) == 2 and _KEY.match(" ".join(words)):  # a key of YAML among the lines of a script
        yield Setting(words[0], (words[1],))
        return
    joined = [" ".join(words[place : place + 2]) for place in range(len(words))]
    for place, word in enumerate(words):
        named = next((one for one in commands if one in (word.rpartition("/")[2], joined[place])), "")
        if named:
            following = words[place + len(named.split()) : place + len(named.split()) + 1]
            if following and not following[0].startswith("-"):
                yield Setting(named, tuple(following))
            continue
        head, equals, after = word.partition("=")
        if _OPTION.fullmatch(head):
            rest: list[str] = [after] if equals else []
            for other in () if equals else words[place + 1 :]:
                if _OPTION.fullmatch(other.partition("=")[0]) or _END.fullmatch(other):
                    break
                rest.append(other)
            yield from _with_json(head, tuple(rest))
        elif equals and _DOTTED.fullmatch(head):
            yield Setting(f"{head.lstrip('+~')}=", (after,))


def _with_json(name: str, arguments: tuple[str, ...]) -> Iterator[Setting]:
    """A setting, and those inside where its argument is a JSON object."""
    yield Setting(name, arguments)
    if arguments and arguments[0].startswith("{"):
        try:
            yield from _flat(json.loads(arguments[0]), name, 0)
        except (ValueError, RecursionError):
            return


def _flat(value: object, name: str, depth: int) -> Iterator[Setting]:
    if isinstance(value, dict) and depth < DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, list):
        yield Setting(f"{name}:", tuple(str(one) for one in value))
    elif value is not None:
        yield Setting(f"{name}:", (str(value),))


def _is_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    keys = sum(bool(_KEY.match(line)) for line in lines)
    alike = keys + sum(bool(_ITEM.match(line)) and not _KEY.match(line) for line in lines)
    return keys > 0 and alike >= 0.6 * len(lines) and not text.startswith("#!")


def _yaml(text: str, given: Mapping[str, str], commands: Sequence[str]) -> Iterator[Setting]:
    """Keys of nested mappings by their path; items of lists are words of a command."""
    path: list[tuple[int, str]] = []
    items: list[str] = []
    block: tuple[int, list[str]] | None = None
    shell = Shell(given)
    for line in [*text.splitlines(), ""]:
        depth = len(line) - len(line.lstrip())
        if block is not None:
            if not line.strip() or depth > block[0]:
                block[1].append(line)
                continue
            yield from (one for group in settings_of("\n".join(block[1]), given, commands) for one in group)
            block = None
        key = _KEY.match(line)
        if key is None:
            item = _ITEM.match(line)
            if item is not None:
                items += shell.words(_uncommented(item.group(2)))
            continue
        if items:
            yield from _of_words(items, commands)
            items = []
        indent = len(key.group(1)) + len(key.group(2))
        path = [one for one in path if one[0] < indent][:DEEPEST]
        value = _uncommented(key.group(5) or "")
        path.append((indent, key.group(4)))
        if value[:1] in "|>" and value:
            block = indent, []
        elif value:
            name = ".".join(own for _, own in path)
            listed = re.fullmatch(r"\[(.*)\]", value)
            words = [one.strip().strip("\"'") for one in listed.group(1).split(",")] if listed else [_plain(value)]
            yield Setting(f"{name}:", tuple(shell.filled(word) for word in words))
    if items:
        yield from _of_words(items, commands)
    if block is not None:
        yield from (one for group in settings_of("\n".join(block[1]), given, commands) for one in group)


def _uncommented(text: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", text).strip()


def _plain(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


MOST_VALUE = 20_000
"""Characters of a variable at the most. [-]"""
_DEEPEST = 20
"""Defaults within defaults that are filled in at the most. [-]"""

_ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare(?:\s+-\w+)?)\s+)?([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ASSIGNED_BEFORE = re.compile(r"(?:[A-Za-z_]\w*=(?:\"[^\"]*\"|'[^']*'|[^\s\"'(]*)\s+)+(?=\S)")
_SIMPLE = re.compile(r"\$(?:\{(\w+)(?:\[[@*0]\])?\}|([A-Za-z_]\w*))")
_DEFAULT = re.compile(r"\$\{(\w+)(?:\[[@*]\])?(:?[-=+])((?:[^{}$]|\$(?!\{))*)\}")
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()$]*\)[^()$]*)*)\)\)")
_COMMAND = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_WORD = re.compile(rf"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|{_COMMAND.pattern}|\$\{{[^}}]*\}}+|\$(?![({{])|[^\s\"'$])*")
_HELD = "\1"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TEST = re.compile(r"\[\[?\s+(.*?)\s+\]\]?(?=\s|$)", re.DOTALL)
_NUMBERS = {"-eq": "==", "-ne": "!=", "-gt": ">", "-ge": ">=", "-lt": "<", "-le": "<="}


class Shell:
    """Reads a script, statement by statement.

    ``given``: variables of the environment.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = dict(given)
        self.variables = dict(given)

    def commands(self, text: str) -> Iterator[list[str] | str]:
        """Words of each command in turn; the text of a here-document as a whole."""
        taken: list[bool | None] = []  # of each condition around a statement: taken, not, or another branch was
        subjects: list[str] = []
        for statement in _statements(text):
            if statement.startswith("\0"):
                if all(taken):
                    yield self.filled(statement[1:])
                continue
            statement = re.sub(r"^(?:(?:then|do|\{)\s+)+", "", statement)
            word, _, rest = statement.partition(" ")
            branch = re.match(r"\(?([^()\s$=]+)\)\s*", statement) if subjects else None
            if branch is not None and taken:
                wanted = any(fnmatch(subjects[-1], one.strip("\"'")) for one in branch.group(1).split("|"))
                taken[-1] = wanted if taken[-1] is False else None
                if all(taken):
                    yield from self._simple(statement[branch.end() :])
            elif word == "case":
                subjects.append(_unquoted(self.filled(rest.partition(" in")[0], unknown=False)))
                taken.append(False)
            elif word in ("if", "while", "until", "for"):
                if word == "for":
                    self._first_of(rest)
                holds = self.holds(rest) if word == "if" else True
                taken.append(holds)
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

    def _simple(self, statement: str) -> Iterator[list[str]]:
        assigned = _ASSIGNMENT.fullmatch(statement)
        if assigned is not None and _is_assignment(assigned.group(3)):
            name, added, value = assigned.groups()
            words = self.words(value[1:-1]) if value.startswith("(") else [self.filled(_unquoted(value))]
            found = " ".join(word if " " not in word or value[0] != "(" else _kept(word) for word in words)
            found = f"{self.variables.get(name, '')} {found}" if added else found
            if name not in self.given:
                self.variables[name] = found[:MOST_VALUE]
            return
        before = _ASSIGNED_BEFORE.match(statement)
        yield self.words(statement[before.end() :] if before else statement)

    def _first_of(self, rest: str) -> None:
        name, _, values = rest.partition(" in ")
        words = self.words(values)
        if words and name.strip().isidentifier() and name.strip() not in self.given:
            self.variables[name.strip()] = words[0]

    def words(self, text: str) -> list[str]:
        """Words of a text, variables filled in; a word with options inside quotes is taken apart."""
        text = self.filled(text)[: 10 * MOST_VALUE]
        try:
            words = shlex.split(text, comments=False)
        except ValueError:  # a quote that is not closed
            words = text.replace('"', " ").replace("'", " ").split()
        found: list[str] = []
        for word in words:
            several = " " in word.strip() and re.match(r"\s*--?[A-Za-z]", word)
            found += word.split() if several else [word]
        return found

    def filled(self, text: str, unknown: bool = True) -> str:
        """A text with its variables; those not known stay, or are empty."""

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
            return value or _unquoted(other)

        def arithmetic(match: re.Match[str]) -> str:
            value = self.number(match.group(1))
            return inserted(match.group(0)) if value is None else f"{value:g}" if value % 1 else f"{value:.0f}"

        for _ in range(_DEEPEST):
            before = text
            text = _DEFAULT.sub(default, _SIMPLE.sub(simple, text))
            text = _ARITHMETIC.sub(arithmetic, text)
            if text == before or len(text) > 10 * MOST_VALUE:
                break
        return _COMMAND.sub(lambda match: re.sub(r"\s+", "", match.group(0)), text.replace(_HELD, "$"))

    def number(self, text: str) -> float | None:
        """Value of an arithmetic expression; None where a variable is not known or there is more than numbers."""
        chosen = re.fullmatch(r"([^?]+)\?([^:?]+):([^:?]+)", text)
        if chosen is not None:
            holds = self.number(chosen.group(1))
            return None if holds is None else self.number(chosen.group(2 if holds else 3))
        text = re.sub(r"[A-Za-z_]\w*", lambda match: self.variables.get(match.group(0), match.group(0)), text)
        if len(text) > 200 or not re.fullmatch(r"[\d\s.+\-*/%()<>=!]+", text) or "**" in text:
            return None
        try:
            return _value(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
            return None

    def holds(self, condition: str) -> bool:
        """Whether a test holds; False where it is of files or commands."""
        text = re.sub(r";\s*then\s*$", "", condition.strip())
        arithmetic = re.fullmatch(r"\(\((.*)\)\)", text)
        if arithmetic:
            return bool(self.number(self.filled(arithmetic.group(1))))
        found = False
        for either in re.split(r"\|\|", re.sub(r"\]\]?\s*(&&|\|\|)\s*\[\[?", r"\1", text)):
            tests = [self._test(one) for one in re.split(r"&&", either)]
            found = found or all(tests)
        return found

    def _test(self, text: str) -> bool:
        text = self.filled(text, unknown=False).strip()
        inner = _TEST.search(f"[ {text} ]" if not text.startswith("[") else text)
        try:
            words = shlex.split(re.sub(r"^\[+\s|\s\]+$", "", inner.group(1) if inner else text))
        except ValueError:
            return False
        negated = bool(words) and words[0] == "!"
        words = words[negated:]
        holds = False
        if len(words) == 1 and words[0] in ("-z", "-n"):
            holds = words[0] == "-z"
        elif len(words) == 2 and words[0] in ("-z", "-n"):
            holds = bool(words[1]) == (words[0] == "-n")
        elif len(words) == 3 and words[1] in ("=", "==", "!="):
            pattern = "".join(".*" if sign == "*" else re.escape(sign) for sign in words[2])
            holds = bool(re.fullmatch(pattern, words[0])) == (words[1] != "!=")
        elif len(words) == 3 and words[1] in _NUMBERS:
            holds = bool(self.number(f"{words[0]} {_NUMBERS[words[1]]} {words[2]}"))
        return holds != negated


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        one, other = _value(node.left), _value(node.comparators[0])
        found = {ast.Eq: one == other, ast.NotEq: one != other, ast.Gt: one > other, ast.GtE: one >= other,
                 ast.Lt: one < other, ast.LtE: one <= other}  # fmt: skip
        return float(found[type(node.ops[0])])
    if isinstance(node, ast.BinOp):
        one, other = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return one + other
        if isinstance(node.op, ast.Sub):
            return one - other
        if isinstance(node.op, ast.Mult):
            return one * other
        if isinstance(node.op, ast.Div | ast.FloorDiv):
            return one // other
        if isinstance(node.op, ast.Mod):
            return one % other
    raise ValueError


def _is_assignment(value: str) -> bool:
    """Whether a value is one word, or an array: otherwise it is a command with a variable before it."""
    if value.startswith("("):
        return value.rstrip().endswith(")")
    return _WORD.fullmatch(value) is not None


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _kept(word: str) -> str:
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
