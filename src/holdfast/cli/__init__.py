"""The ``holdfast`` command: what it offers.

Each command is declared in ``commands``, with its help, and carried out by the module that its function imports: so
``--help`` is quick, and a command loads only what it needs. Errors of Holdfast are shown as one message, without a
traceback.
"""

from __future__ import annotations

import click

from holdfast.cli.commands import COMMANDS
from holdfast.cli.options import MainGroup
from holdfast.installation import __version__


@click.group(
    cls=MainGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nFirst time here?  holdfast demo",
)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Holdfast makes agent runs durable: every step's outcome is recorded before the run goes on, and another process
    takes over where a dead one stopped.
    """


for _command in COMMANDS:
    main.add_command(_command)
