"""``holdfast start``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from holdfast.cli.event_loop import in_loop
from holdfast.cli.opening import placed, reached, seen
from holdfast.cli.values import json_of, json_or_text
from holdfast.cli.wording import echo_json, printable, tell_error
from holdfast.client.agent_result import AgentResult
from holdfast.client.handle import Handle
from holdfast.client.run_info import RunInfo
from holdfast.client.stories.wording import jsonable
from holdfast.core.states import RunState
from holdfast.errors import RunUnsuccessful


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
    args, kwargs = _inputs(arguments, inputs)
    return in_loop(_start(url, workflow, args, kwargs, options, wait, as_json))


async def _start(
    url: str | None,
    workflow: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    wait: bool,
    as_json: bool,
) -> int:
    async with reached(url) as client:
        handle = await client.options(**options).start(workflow, *args, **kwargs)
        run = await seen(client, handle.run_id)
        told = _begun(handle.run_id, workflow, run)
        if not as_json:
            # With --wait, what stands on stdout is the result alone, for whoever reads it from there.
            print(_in_words(url, told), file=sys.stderr if wait else sys.stdout)
        if wait:
            told |= await _ended(handle)
    if as_json:
        echo_json(told)
    elif told.get("error"):
        tell_error(placed(url, told["error"]))
    elif wait:
        output = told["output"]
        print(printable(output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)))
    return 1 if told.get("error") else 0


def _begun(run_id: str, workflow: str, run: RunInfo | None) -> dict[str, Any]:
    state, stalled = (None, None) if run is None else (run.state.value, run.stalled)
    return {"id": run_id, "workflow": workflow, "state": state, "stalled": stalled}


def _in_words(url: str | None, told: Mapping[str, Any]) -> str:
    became = "was started" if told["state"] is None else f"is {told['state']}"
    words = f"run {told['id']!r} of workflow {told['workflow']!r} {became}"
    return printable(words if told["stalled"] is None else f"{words}\n{placed(url, told['stalled'])}")


async def _ended(handle: Handle[Any]) -> dict[str, Any]:
    """How the run has ended, once it has."""
    told: dict[str, Any] = {"state": RunState.COMPLETED.value, "stalled": None, "output": None, "error": None}
    try:
        return {**told, "output": jsonable(_output(await handle.result()))}
    except RunUnsuccessful as error:
        return {**told, "state": error.state, "error": str(error)}


def _output(result: Any) -> Any:
    """What is meant by the result of an agent: its answer."""
    return cast("AgentResult[Any]", result).output if isinstance(result, AgentResult) else result


def _inputs(arguments: Sequence[str], inputs: str | None) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """By position, and by name."""
    if inputs is not None:
        if arguments:
            raise click.UsageError("--inputs are all inputs: give them there, or one by one.")
        given = json_of("--inputs", inputs)
        if isinstance(given, dict):
            return [], cast("dict[str, Any]", given)
        if isinstance(given, list):
            return cast("list[Any]", given), {}
        raise click.UsageError('--inputs are an object, as in \'{"customer": "acme"}\', or an array.')
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in arguments:
        name, is_named, value = text.partition("=")
        if not is_named or not name.isidentifier():  # a sentence may have the sign in it
            args.append(json_or_text(text))
        elif name in kwargs:
            raise click.UsageError(f"{name} is given twice.")
        else:
            kwargs[name] = json_or_text(value)
    return args, kwargs
