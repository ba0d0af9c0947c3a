"""``holdfast start``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from holdfast.cli.shared.formatting import make_printable, print_error, print_json
from holdfast.cli.shared.options import command, duration_option, json_option, url_option
from holdfast.cli.shared.parsing import parse_json_option
from holdfast.cli.shared.store_access import run_client, try_get_run, with_store_options
from holdfast.client.client import Client
from holdfast.client.handle import Handle
from holdfast.core.states import RunState
from holdfast.errors import NotAllowed, RunUnsuccessful, UnknownWorkflow
from holdfast.reports.agent_result import AgentResult
from holdfast.reports.formatting import value_to_json
from holdfast.services.input_validation import parse_input
from holdfast.services.json_form import to_json

Inputs = tuple[Sequence[Any], Mapping[str, Any]]
"""By position, and by name."""


@command(
    "holdfast start report acme",
    "holdfast start order customer=acme amount=1200 --tag eu",
    "holdfast start research 'What is entanglement?' --wait",
    'holdfast start order --inputs \'{"customer": "acme", "amount": 1200}\' --id order-7',
)
@click.argument("workflow")
@click.argument("arguments", metavar="[[NAME=]VALUE]...", nargs=-1)
@click.option("--inputs", metavar="JSON", help="All inputs at once: an object by name, or an array in order.")
@click.option("--id", "id_", metavar="ID", help="The run's id. Starting again with the same ID joins the same run.")
@click.option("--queue", metavar="Q", help="The queue it waits in. Default: that of its workflow.")
@click.option("--key", metavar="KEY", help="Its key in the queue.")
@click.option("--dedup", metavar="KEY", help="Join the unfinished run that was started with this KEY, if there is one.")
@click.option("--priority", type=int, metavar="N", help="Among runs that are due, a higher priority starts first.")
@duration_option("--delay", min_s=0, help="Start this much later: 90, '10 min', or 1h30m.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of the run; may be repeated.")
@click.option("--version", metavar="V", help="The version of its code. Default: the newest that is served.")
@click.option("--wait", is_flag=True, help="Wait until it ends, and print what it returned.")
@json_option(
    "A JSON object: id, workflow, state (null if the key cannot read), stall_reason (why it does not continue); with "
    "--wait, also output and error."
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
    """Start a run of a workflow or an agent, for any worker that serves it.

    Give inputs in order or as NAME=VALUE. A value is parsed by the type of its input: as JSON (`true`, `3`,
    `{"customer": "acme"}`), or as a string. Invalid inputs are refused before anything is stored. If the run exists
    already, by its id or by the id template of its workflow, you join it. The workflow must have been announced: a
    worker that has its code does so when it starts.
    """
    given = None if inputs is None else _parse_inputs(arguments, inputs)
    given_options: dict[str, Any] = {"id": id_, **options}
    chosen = {name: value for name, value in given_options.items() if value not in (None, ())}

    async def start_run(client: Client) -> int:
        args, kwargs = given or _parse_arguments(arguments, await _fetch_schema(client, workflow, options["version"]))
        handle = await client.options(**chosen).start(workflow, *args, **kwargs)
        run = await try_get_run(client, handle.run_id)
        state, stalled = (None, None) if run is None else (run.state.value, run.stall_advice)
        started = {"id": handle.run_id, "workflow": workflow, "state": state, "stall_reason": stalled}
        if not as_json:
            # With --wait, stdout has the result alone, so that it can be piped.
            print(_describe_started(url, started), file=sys.stderr if wait else sys.stdout)
        ended, failure = await _await_end(client, handle) if wait else ({}, None)
        if as_json:
            print_json(started | ended)
        elif failure is not None:
            print_error(with_store_options(url, str(failure)))
        elif wait:
            output = ended["output"]
            text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
            print(make_printable(text))
        return 0 if failure is None else 1

    sys.exit(run_client(url, start_run))


def _describe_started(url: str | None, started: Mapping[str, Any]) -> str:
    became = "was started" if started["state"] is None else f"is {started['state']}"
    words = f"run {started['id']!r} of workflow {started['workflow']!r} {became}"
    stalled = started["stall_reason"]
    return make_printable(words if stalled is None else f"{words}\n{with_store_options(url, stalled)}")


async def _await_end(client: Client, handle: Handle[Any]) -> tuple[dict[str, Any], RunUnsuccessful | None]:
    """The end of the run as JSON fields, and its error if it has no result."""
    ended: dict[str, Any] = {"state": RunState.COMPLETED.value, "stall_reason": None, "output": None, "error": None}
    try:
        result = await handle.result()
    except RunUnsuccessful as failure:
        run = await try_get_run(client, handle.run_id)
        error = None if run is None or run.error is None else to_json(run.error)
        return {**ended, "state": failure.state, "error": error}, failure
    # The output of an agent's run is its answer.
    output = cast("AgentResult[Any]", result).output if isinstance(result, AgentResult) else result
    return {**ended, "output": value_to_json(output)}, None


def _parse_inputs(arguments: Sequence[str], text: str) -> Inputs:
    """The inputs in ``--inputs``."""
    if arguments:
        raise click.UsageError("--inputs are all inputs: give them there, or one by one.")
    given = parse_json_option("--inputs", text)
    if isinstance(given, dict):
        return [], cast("dict[str, Any]", given)
    if isinstance(given, list):
        return cast("list[Any]", given), {}
    raise click.UsageError('--inputs are an object, as in \'{"customer": "acme"}\', or an array.')


async def _fetch_schema(client: Client, workflow: str, version: str | None) -> Mapping[str, Any]:
    """The schema of the inputs; empty if this key may not read it."""
    try:
        return await client.inputs_schema(workflow, version=version)
    except (UnknownWorkflow, NotAllowed):
        return {}  # the start raises the error


def _parse_arguments(arguments: Sequence[str], schema: Mapping[str, Any]) -> Inputs:
    """The inputs that were given one by one, each parsed by its type."""
    names = list(schema.get("properties", {}))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in arguments:
        name, is_named, value = text.partition("=")
        if not is_named or not name.isidentifier():  # a sentence may contain an equals sign
            args.append(parse_input(schema, names[len(args)] if len(args) < len(names) else "", text))
        elif name in kwargs:
            raise click.UsageError(f"{name} is given twice.")
        else:
            kwargs[name] = parse_input(schema, name, value)
    return args, kwargs
