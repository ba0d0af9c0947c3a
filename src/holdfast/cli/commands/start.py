"""The command that starts a run by the name of its workflow."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.cli.datetimes import parse_duration
from holdfast.cli.options import format_example, json_option, url_option


@click.command(
    epilog=format_example(
        "holdfast start report acme",
        "holdfast start order customer=acme amount=1200 --tag eu",
        "holdfast start research 'What is entanglement?' --wait",
        'holdfast start order --inputs \'{"customer": "acme", "amount": 1200}\' --id order-7',
    )
)
@click.argument("workflow")
@click.argument("arguments", metavar="[[NAME=]VALUE]...", nargs=-1)
@click.option("--inputs", metavar="JSON", help="All inputs at once: an object by their names, or an array in order.")
@click.option("--id", "id_", metavar="ID", help="The run's id: starting again under the same ID is the same run.")
@click.option("--queue", metavar="Q", help="The queue it waits in, if not that of its workflow.")
@click.option("--key", metavar="KEY", help="Its key in the queue.")
@click.option("--dedup", metavar="KEY", help="Join the unfinished run that was started with this KEY, if there is one.")
@click.option("--priority", type=int, metavar="N", help="The higher goes first among the runs that are due.")
@click.option("--delay", type=parse_duration, metavar="LENGTH", help="Begin so much later, such as 90s, 10m or 2h.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Give it this tag; may be repeated.")
@click.option("--version", metavar="V", help="The version of its code, if not the newest that is served.")
@click.option("--wait", is_flag=True, help="Wait for its end, and print what it returned.")
@json_option(
    "A JSON object: id, workflow, state (null if the key cannot read), stall_reason (why it does not go on); with "
    "--wait, output and error, too."
)
@url_option
def start(
    workflow: str,
    arguments: tuple[str, ...],
    inputs: str | None,
    wait: bool,
    as_json: bool,
    url: str | None,
    id_: str | None,
    **options: Any,
) -> None:
    """Start a run of a workflow or an agent, for whichever worker serves it.

    Inputs are given in their order or as NAME=VALUE. A value is read by the type of its input: as JSON (`true`, `3`,
    `{"customer": "acme"}`), or as a string. Inputs that do not fit are refused before anything is stored. A run that is
    there already, by its id or by the id template of its workflow, is joined. The workflow must have been announced: a
    worker that has its code does so when it starts.
    """
    from holdfast.cli.start import start_run as carry_out

    given = {"id": id_, **options}
    chosen = {word: value for word, value in given.items() if value not in (None, ())}
    sys.exit(carry_out(url, workflow, arguments, inputs, chosen, wait=wait, as_json=as_json))
