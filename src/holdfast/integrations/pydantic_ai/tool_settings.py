"""How each tool of an agent is carried out as a step.

``Durable(tools={"charge": {"effect": "once"}, "clock": False})``, or beside the tool itself, as
``metadata={"holdfast": {"retries": 3}}``. What ``tools=`` says of a tool is all that counts for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from holdfast.authoring.step import define_step
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import DefinitionError

METADATA_KEY = "holdfast"
"""Under which the library keeps what we are told of a tool."""

_DEFAULT_OPTIONS: dict[str, Any] = {
    "retries": 0,
    "backoff": 1.0,
    "max_backoff": 60.0,
    "retry_on": None,
    "give_up_on": (),
    "retry": None,
    "timeout": None,
    "effect": Effect.IDEMPOTENT,
}


class ToolSettings:
    """What was said of an agent's tools."""

    def __init__(self, agent: str, options_by_tool: Mapping[str, Any]) -> None:
        self._agent = agent
        self._step_by_tool: dict[str, StepDefinition | Literal[False]] = {
            name: _define_tool_step(agent, name, options, "tools=") for name, options in options_by_tool.items()
        }
        self._default_step: StepDefinition | Literal[False] = _define_tool_step(agent, "tool", {}, "")

    def get_step(self, name: str, metadata: Mapping[str, Any] | None) -> StepDefinition | Literal[False]:
        """The step of a tool, without what it does; ``False``: it is none."""
        made: StepDefinition | Literal[False] | None = self._step_by_tool.get(name)
        if made is None and metadata and metadata.get(METADATA_KEY) is not None:
            made = _define_tool_step(self._agent, name, metadata[METADATA_KEY], "metadata of the tool")
        return self._default_step if made is None else made


async def _do_nothing() -> None: ...


def _define_tool_step(agent: str, tool: str, options: Any, subject: str) -> StepDefinition | Literal[False]:
    if options is False:
        return False
    told = f"agent {agent!r}, tool {tool!r} ({subject})"
    if not isinstance(options, Mapping):
        raise DefinitionError(
            f"{told}: {options!r} is neither False nor settings of a step, such as {{'retries': 3, 'timeout': 30}}"
        )
    given = dict(cast("Mapping[str, Any]", options))
    transaction = given.pop("transaction", False)
    unknown = sorted(given.keys() - _DEFAULT_OPTIONS.keys())
    if unknown:
        known = ", ".join([*_DEFAULT_OPTIONS, "transaction"])
        raise DefinitionError(f"{told}: {', '.join(unknown)} is no setting of a tool's step. There are: {known}.")
    made = define_step(_do_nothing, tool, **(_DEFAULT_OPTIONS | given), noun="tool")
    if transaction and made.effect is Effect.ONCE:
        raise DefinitionError(
            f"{told}: with transaction=True it is run again only if nothing of it was committed: drop effect='once'"
        )
    return replace(made, is_transactional=bool(transaction))
