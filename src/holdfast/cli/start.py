"""``holdfast start``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import click

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import make_printable, print_error, print_json
from holdfast.cli.store_access import open_client, try_get_run, with_store_options
from holdfast.cli.values import parse_json_option
from holdfast.client.client import Client
from holdfast.client.handle import Handle
from holdfast.core.states import RunState
from holdfast.errors import NotAllowed, RunUnsuccessful, UnknownWorkflow
from holdfast.reports.agent_result import AgentResult
from holdfast.reports.formatting import value_to_json
from holdfast.reports.run_info import RunInfo
from holdfast.services.input_validation import parse_input

Inputs = tuple[Sequence[Any], Mapping[str, Any]]
"""By position, and by name."""


def start_run(
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
    given = None if inputs is None else _parse_inputs(arguments, inputs)
    return run_in_loop(_start_run(url, workflow, arguments, given, options, wait, as_json))


async def _start_run(
    url: str | None,
    workflow: str,
    arguments: Sequence[str],
    inputs: Inputs | None,
    options: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> int:
    async with open_client(url) as client:
        if inputs is None:
            inputs = _parse_arguments(arguments, await _fetch_schema(client, workflow, options.get("version")))
        args, kwargs = inputs
        handle = await client.options(**options).start(workflow, *args, **kwargs)
        run = await try_get_run(client, handle.run_id)
        told = _started_to_json(handle.run_id, workflow, run)
        if not as_json:
            # With --wait, what stands on stdout is the result alone, for whoever reads it from there.
            print(_describe_started(url, told), file=sys.stderr if wait else sys.stdout)
        failure: RunUnsuccessful | None = None
        if wait:
            ended, failure = await _await_end(client, handle)
            told |= ended
    if as_json:
        print_json(told)
    elif failure is not None:
        print_error(with_store_options(url, str(failure)))
    elif wait:
        output = told["output"]
        print(make_printable(output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)))
    return 0 if failure is None else 1


def _started_to_json(run_id: str, workflow: str, run: RunInfo | None) -> dict[str, Any]:
    state, stalled = (None, None) if run is None else (run.state.value, run.stall_advice)
    return {"id": run_id, "workflow": workflow, "state": state, "stall_reason": stalled}


def _describe_started(url: str | None, started: Mapping[str, Any]) -> str:
    became = "was started" if started["state"] is None else f"is {started['state']}"
    words = f"run {started['id']!r} of workflow {started['workflow']!r} {became}"
    return make_printable(
        words if started["stall_reason"] is None else f"{words}\n{with_store_options(url, started['stall_reason'])}"
    )


async def _await_end(client: Client, handle: Handle[Any]) -> tuple[dict[str, Any], RunUnsuccessful | None]:
    """How the run has ended, once it has."""
    told: dict[str, Any] = {"state": RunState.COMPLETED.value, "stall_reason": None, "output": None, "error": None}
    try:
        return {**told, "output": value_to_json(_extract_output(await handle.result()))}, None
    except RunUnsuccessful as failure:
        run = await try_get_run(client, handle.run_id)
        error = None if run is None or run.error is None else asdict(run.error)
        return {**told, "state": failure.state, "error": error}, failure


def _extract_output(result: Any) -> Any:
    """What is meant by the result of an agent: its answer."""
    return cast("AgentResult[Any]", result).output if isinstance(result, AgentResult) else result


def _parse_inputs(arguments: Sequence[str], text: str) -> Inputs:
    """What ``--inputs`` says."""
    if arguments:
        raise click.UsageError("--inputs are all inputs: give them there, or one by one.")
    given = parse_json_option("--inputs", text)
    if isinstance(given, dict):
        return [], cast("dict[str, Any]", given)
    if isinstance(given, list):
        return cast("list[Any]", given), {}
    raise click.UsageError('--inputs are an object, as in \'{"customer": "acme"}\', or an array.')


async def _fetch_schema(client: Client, workflow: str, version: str | None) -> Mapping[str, Any]:
    """What the inputs must be, as far as this user may know it."""
    try:
        return await client.inputs_schema(workflow, version=version)
    except (UnknownWorkflow, NotAllowed):
        return {}  # the start says it


def _parse_arguments(arguments: Sequence[str], schema: Mapping[str, Any]) -> Inputs:
    """The inputs that were given one by one, each read by its type."""
    names = list(schema.get("properties", {}))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in arguments:
        name, is_named, value = text.partition("=")
        if not is_named or not name.isidentifier():  # a sentence may have the sign in it
            args.append(parse_input(schema, names[len(args)] if len(args) < len(names) else "", text))
        elif name in kwargs:
            raise click.UsageError(f"{name} is given twice.")
        else:
            kwargs[name] = parse_input(schema, name, value)
    return args, kwargs
