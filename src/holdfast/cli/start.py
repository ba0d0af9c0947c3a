"""``holdfast start``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import click

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import echo_json, printable, tell_error
from holdfast.cli.store_access import placed, reached, seen
from holdfast.cli.values import json_of
from holdfast.client.client import Client
from holdfast.client.handle import Handle
from holdfast.core.states import RunState
from holdfast.errors import NotAllowed, RunUnsuccessful, UnknownWorkflow
from holdfast.reports.agent_result import AgentResult
from holdfast.reports.formatting import jsonable
from holdfast.reports.run_info import RunInfo
from holdfast.services.input_validation import value_of_text

Inputs = tuple[Sequence[Any], Mapping[str, Any]]
"""By position, and by name."""


def start(
    url: str | None,
    workflow: str,
    arguments: Sequence[str],
    inputs: str | None,
    options: Mapping[str, Any],
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Start a run, and say what it is called; or wait for its end, and say what it returned."""
    given = None if inputs is None else _all_inputs(arguments, inputs)
    return in_loop(_start(url, workflow, arguments, given, options, wait, as_json))


async def _start(
    url: str | None,
    workflow: str,
    arguments: Sequence[str],
    inputs: Inputs | None,
    options: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> int:
    async with reached(url) as client:
        if inputs is None:
            inputs = _typed_inputs(arguments, await _schema(client, workflow, options.get("version")))
        args, kwargs = inputs
        handle = await client.options(**options).start(workflow, *args, **kwargs)
        run = await seen(client, handle.run_id)
        told = _begun(handle.run_id, workflow, run)
        if not as_json:
            # With --wait, what stands on stdout is the result alone, for whoever reads it from there.
            print(_in_words(url, told), file=sys.stderr if wait else sys.stdout)
        failure: RunUnsuccessful | None = None
        if wait:
            ended, failure = await _ended(client, handle)
            told |= ended
    if as_json:
        echo_json(told)
    elif failure is not None:
        tell_error(placed(url, str(failure)))
    elif wait:
        output = told["output"]
        print(printable(output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)))
    return 0 if failure is None else 1


def _begun(run_id: str, workflow: str, run: RunInfo | None) -> dict[str, Any]:
    state, stalled = (None, None) if run is None else (run.state.value, run.stalled)
    return {"id": run_id, "workflow": workflow, "state": state, "stalled": stalled}


def _in_words(url: str | None, told: Mapping[str, Any]) -> str:
    became = "was started" if told["state"] is None else f"is {told['state']}"
    words = f"run {told['id']!r} of workflow {told['workflow']!r} {became}"
    return printable(words if told["stalled"] is None else f"{words}\n{placed(url, told['stalled'])}")


async def _ended(client: Client, handle: Handle[Any]) -> tuple[dict[str, Any], RunUnsuccessful | None]:
    """How the run has ended, once it has."""
    told: dict[str, Any] = {"state": RunState.COMPLETED.value, "stalled": None, "output": None, "error": None}
    try:
        return {**told, "output": jsonable(_output(await handle.result()))}, None
    except RunUnsuccessful as failure:
        run = await seen(client, handle.run_id)
        error = None if run is None or run.error is None else asdict(run.error)
        return {**told, "state": failure.state, "error": error}, failure


def _output(result: Any) -> Any:
    """What is meant by the result of an agent: its answer."""
    return cast("AgentResult[Any]", result).output if isinstance(result, AgentResult) else result


def _all_inputs(arguments: Sequence[str], text: str) -> Inputs:
    """What ``--inputs`` says."""
    if arguments:
        raise click.UsageError("--inputs are all inputs: give them there, or one by one.")
    given = json_of("--inputs", text)
    if isinstance(given, dict):
        return [], cast("dict[str, Any]", given)
    if isinstance(given, list):
        return cast("list[Any]", given), {}
    raise click.UsageError('--inputs are an object, as in \'{"customer": "acme"}\', or an array.')


async def _schema(client: Client, workflow: str, version: str | None) -> Mapping[str, Any]:
    """What the inputs must be, as far as this user may know it."""
    try:
        return await client.inputs_schema(workflow, version=version)
    except (UnknownWorkflow, NotAllowed):
        return {}  # the start says it


def _typed_inputs(arguments: Sequence[str], schema: Mapping[str, Any]) -> Inputs:
    """The inputs that were given one by one, each read by its type."""
    names = list(schema.get("properties", {}))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in arguments:
        name, is_named, value = text.partition("=")
        if not is_named or not name.isidentifier():  # a sentence may have the sign in it
            args.append(value_of_text(schema, names[len(args)] if len(args) < len(names) else "", text))
        elif name in kwargs:
            raise click.UsageError(f"{name} is given twice.")
        else:
            kwargs[name] = value_of_text(schema, name, value)
    return args, kwargs
