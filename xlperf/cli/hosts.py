"""Commands that put xlperf into a spreadsheet program: ``install`` and ``uninstall``."""

from __future__ import annotations

import click

from xlperf.cli.common import examples, say
from xlperf.cli.files import Command

HOSTS = click.Choice(["libreoffice"])


@click.command(
    cls=Command,
    short_help="Add the XLPERF_ functions to a spreadsheet program.",
    epilog=examples("xlperf install libreoffice"),
)
@click.argument("host", type=HOSTS)
def install(host: str) -> None:
    """Add the worksheet functions to HOST for this user; cells are computed by the environment that installs."""
    from xlperf.addin.libreoffice import install as installed

    say(installed())


@click.command(
    cls=Command,
    short_help="Remove the XLPERF_ functions from a spreadsheet program.",
    epilog=examples("xlperf uninstall libreoffice"),
)
@click.argument("host", type=HOSTS)
def uninstall(host: str) -> None:
    """Remove the worksheet functions from HOST."""
    from xlperf.addin.libreoffice import uninstall as uninstalled

    say(uninstalled())
