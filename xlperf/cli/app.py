"""The command ``xlperf``: sections, tasks, errors as one line and an exit code.

No module of the commands imports numpy, pandas or openpyxl before a command runs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from xlperf import __version__
from xlperf.base.errors import HostError, InputError
from xlperf.cli import WORDS, Stop
from xlperf.cli.command import Command, Task
from xlperf.cli.hardware import accelerator, add, cost, device, launch, model, optimise, plan, time
from xlperf.cli.output import say
from xlperf.cli.plans import evaluate, explain, frontier, report
from xlperf.cli.published import calibrate, validate
from xlperf.cli.questions import ASK
from xlperf.cli.search import diagnose, search, solve, sweep, uncertainty, worth
from xlperf.cli.sheets import check, functions, guide, install, new, show, uninstall

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130


_SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Ask": ASK,
    "Plans": (report, evaluate, search, explain, launch),
    "Judge": (diagnose, uncertainty, worth, validate, calibrate),
    "Hardware": (cost, add),
    "Files": (new, check),
    "Setup": (guide, install, uninstall),
}
_TASKS: dict[str, tuple[Task, ...]] = {
    "chip": (Task(("--devices",), device, "device"),),
    "evaluate": (Task(("--vary", "--result", "--objective", "--limit", "--top"), sweep, "sweep", dropped=False),),
    "search": (
        Task(("--target", "--least", "--largest"), solve, "solve", dropped=False),
        Task(("--frontier",), frontier, "frontier"),
        Task(("--shares",), optimise, "optimise"),
    ),
    "explain": (Task(("--operation",), time, "time"),),
    "launch": (Task(("--read",), plan, "plan"),),
    "add": (Task(("model",), model, "model"), Task(("accelerator",), accelerator, "accelerator")),
    "check": (Task(("--text",), show, "show"),),
    "install": (Task(("--list",), functions, "functions"),),
}


class _Sections(click.Group):
    """Commands by section of the help, their tasks, and the names that they had in the last release."""

    def tasks(self) -> dict[str, click.Command]:
        """Every task by its spelling, such as ``search --frontier``."""
        known = dict(self.commands)
        for name, tasks in _TASKS.items():
            known |= {f"{name} {task.chosen_by[0]}": task.command for task in tasks}
        return known

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command or the task that the arguments name; for an old name, a line that says the new one."""
        for command, tasks in _TASKS.items():
            for task in tasks:
                if args[0] == task.old_name:
                    new = f"xlperf {command} {task.chosen_by[0]}"
                    say(f"xlperf {args[0]} is now `{new}`: the old name goes in the next release", err=True)
                    return args[0], task.command, args[1:]
        name, command_, left = super().resolve_command(ctx, args)
        return command_.task_of(name, left) if isinstance(command_, Command) and name else (name, command_, left)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list of commands for each section."""
        wide = max(map(len, self.commands))
        for title, commands in _SECTIONS.items():
            lines = [
                (str(one.name).ljust(wide), one.get_short_help_str(formatter.width - 6 - wide)) for one in commands
            ]
            with formatter.section(title):
                formatter.write_dl(lines)


@click.group(
    cls=_Sections,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nStart here:\n"
    "  xlperf serve --model DeepSeek-V3 --accelerator H200 --users 10000\n"
    "  xlperf guide start           three questions, answered step by step\n"
    "  xlperf report -o report.xlsx the shipped plans, computed, with charts\n"
    "  xlperf new study.xlsx        a workbook of your own to edit\n"
    "  xlperf report study.xlsx     ... and its report\n\n"
    "\b\nExit codes: 0 done, 1 the answer is no, 2 bad input (its cell is named).",
)
@click.version_option(__version__, prog_name="xlperf", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """How long does a training step or a generated token take, does it fit, and how much does it cost?

    A plan is a row of a sheet: a model on accelerators with its parallel degrees, batch and precision. xlperf computes
    time, memory, energy and cost of every plan from the hardware that other sheets describe.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (command for commands in _SECTIONS.values() for command in commands):
    cli.add_command(_command)
    if isinstance(_command, Command):
        _command.tasks = _TASKS.get(_command.name or "", ())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; faults of the input or the machine are lines on standard error. Returns 0 done, 1 the answer is
    no, 2 bad input, 130 or 143 stopped.
    """
    _open_what_is_closed()
    _write_what_cannot_be_encoded_as_escapes()
    with Stop() as stop:
        try:
            code = cli.main(None if arguments is None else list(arguments), "xlperf", standalone_mode=False)
            sys.stdout.flush()
            stop.over = True
        except BaseException as error:
            stop.over = True
            if not stop.number:
                return _failed(error)
            _say(*([""] if sys.stderr.isatty() else []), WORDS)
            return stop.exit_code
    return code if isinstance(code, int) else DONE


def _failed(error: BaseException) -> int:
    """Print the cause of a failure; faults of xlperf itself are raised again."""
    match error:
        case InputError():
            return _say(*error.lines())
        case HostError():
            return _say(str(error))
        case click.UsageError():
            return _say(_usage(error))
        case click.ClickException():
            return _say(error.format_message())
        case click.Abort() | KeyboardInterrupt():
            _say(WORDS)
            return INTERRUPTED
        case BrokenPipeError() | SystemExit():  # click exits where the reader of our output (head, less) has left
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        case OSError():
            return _say(_system(error))
        case MemoryError():
            return _say("there is not enough memory for this; evaluate the plans in several files")
    raise error


def _open_what_is_closed() -> None:
    """Open the null device for each closed standard stream: otherwise the next file gets its number and messages."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR if number else os.O_RDONLY)
            setattr(sys, name, os.fdopen(nothing, "w" if number else "r", encoding="utf-8"))


def _write_what_cannot_be_encoded_as_escapes() -> None:
    """Escape characters that the encoding of a terminal or a pipe lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _say(*lines: str) -> int:
    for line in lines:
        say(line, err=True)
    return BAD_INPUT


def _usage(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx is not None else "xlperf"
    problem = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and (tasks := _tasks_with(error.option_name, command)):
        problem = f"{error.option_name} goes with {' or '.join(tasks)}"
    elif isinstance(error, click.NoSuchOption) and (alike := _options_with_words_of(error)):
        problem = f"no such option {error.option_name}; did you mean {' or '.join(alike)}?"
    elif isinstance(error, click.NoSuchOption) and (name := _column_of(error)):
        problem = f"no such option {error.option_name}; write --set '{name}=...'"
    stop = "" if problem.endswith("?") else ";"
    return f'{command}: {problem[:1].lower()}{problem[1:]}{stop} see "{command} --help"'


def _tasks_with(option: str, path: str) -> list[str]:
    """Spellings of the tasks of a command that have an option."""
    first = path.split()[1]
    known = [(f"xlperf {name}", one) for name, one in cli.tasks().items() if name.split()[0] == first]
    return [name for name, one in known if any(option in parameter.opts for parameter in one.params)]


def _column_of(error: click.NoSuchOption) -> str:
    """Column of a plan that an unknown option of a command with ``--set`` names; "" if none."""
    from xlperf.catalog.schema import PLAN_TABLES, table_schema

    name = error.option_name.strip("-").replace("-", "_")
    settable = error.ctx is not None and any("--set" in one.opts for one in error.ctx.command.params)
    known = settable and any(name in table_schema(kind).by_name for kind in PLAN_TABLES)
    return name.replace("_", " ") if known else ""


def _options_with_words_of(error: click.NoSuchOption) -> list[str]:
    """Options of the command in whose names all words of the unknown option are: ``--facility-power-limit`` of
    ``--power``.
    """
    asked = set(error.option_name.strip("-").split("-"))
    parameters = error.ctx.command.params if error.ctx is not None else []
    return [name for one in parameters for name in one.opts if asked <= set(name.strip("-").split("-"))]


def _system(error: OSError) -> str:
    """Say a fault of the machine in a line: ``out.csv: no space left on device``."""
    cause = (error.strerror or str(error) or type(error).__name__).lower()
    names = [str(name) for name in (error.filename2, error.filename) if name is not None]
    return f"{names[0]}: {cause}" if names else cause
