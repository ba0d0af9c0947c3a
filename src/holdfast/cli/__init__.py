"""The ``holdfast`` command: what it offers.

Each command is declared in ``commands``, with its help, and carried out by the module that its function imports: so
``--help`` is quick, and a command loads only what it needs. Errors of Holdfast are shown as one message, without a
traceback.
"""

from __future__ import annotations

import click

from holdfast.cli.commands import (
    addresses as _addresses,
)
from holdfast.cli.commands import (
    human_input as _human_input,
)
from holdfast.cli.commands import (
    inspection as _inspection,
)
from holdfast.cli.commands import (
    journals as _journals,
)
from holdfast.cli.commands import (
    queues as _queues,
)
from holdfast.cli.commands import (
    retention as _retention,
)
from holdfast.cli.commands import (
    run_control as _run_control,
)
from holdfast.cli.commands import (
    schedules as _schedules,
)
from holdfast.cli.commands import (
    server as _server,
)
from holdfast.cli.commands import (
    start as _start,
)
from holdfast.cli.commands import (
    worker as _worker,
)
from holdfast.cli.options import Main
from holdfast.installation import __version__


@click.group(
    cls=Main,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nFirst time here?  holdfast demo",
)
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Holdfast makes agent runs durable: every step's outcome is recorded before the run goes on, and another process
    takes over where a dead one stopped.
    """


for _command in (  # in the order in which one meets them
    _worker.demo,
    _worker.worker,
    _start.start,
    _inspection.runs,
    _inspection.show,
    _inspection.events,
    _inspection.tail,
    _human_input.signal,
    _human_input.approvals,
    _human_input.approve,
    _human_input.deny,
    _run_control.cancel,
    _run_control.pause,
    _run_control.resume,
    _run_control.budget,
    _inspection.costs,
    _run_control.retry,
    _run_control.settle,
    _run_control.fork,
    _retention.dead,
    _retention.prune,
    _inspection.agents,
    _run_control.kill,
    _schedules.schedules,
    _queues.queues,
    _addresses.send,
    _addresses.addresses,
    _addresses.policies,
    _server.serve,
    _server.keys,
    _server.encryption_key,
    _server.audit,
    _journals.export,
    _journals.import_,
    _journals.replay,
    _journals.check,
    _journals.namespaces,
    _journals.doctor,
):
    main.add_command(_command)
