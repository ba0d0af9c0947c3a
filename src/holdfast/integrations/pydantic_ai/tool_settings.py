"""The settings of each tool's step.

They come from ``Durable(tools={"charge": {"effect": "once"}, "clock": False})``, or from the tool itself, as
``metadata={"holdfast": {"retries": 3}}``. For a tool in ``tools=``, its metadata is ignored.
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
"""The key of a tool's settings in its metadata."""

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
    """The settings of an agent's tools."""

    def __init__(self, agent: str, options_by_tool: Mapping[str, Any]) -> None:
        self._agent = agent
        self._step_by_tool: dict[str, StepDefinition | Literal[False]] = {
            name: _define_tool_step(agent, name, options, "tools=") for name, options in options_by_tool.items()
        }
        self._default_step: StepDefinition | Literal[False] = _define_tool_step(agent, "tool", {}, "")

    def get_step(self, name: str, metadata: Mapping[str, Any] | None) -> StepDefinition | Literal[False]:
        """The step of a tool, without its function; ``False``: the tool is not a step."""
        step: StepDefinition | Literal[False] | None = self._step_by_tool.get(name)
        if step is None and metadata and metadata.get(METADATA_KEY) is not None:
            step = _define_tool_step(self._agent, name, metadata[METADATA_KEY], "metadata of the tool")
        return self._default_step if step is None else step


async def _do_nothing() -> None: ...


def _define_tool_step(agent: str, tool: str, options: Any, subject: str) -> StepDefinition | Literal[False]:
    if options is False:
        return False
    where = f"agent {agent!r}, tool {tool!r} ({subject})"
    if not isinstance(options, Mapping):
        raise DefinitionError(
            f"{where}: {options!r} is neither False nor settings of a step, such as {{'retries': 3, 'timeout': 30}}"
        )
    own = dict(cast("Mapping[str, Any]", options))
    transaction = own.pop("transaction", False)
    unknown = sorted(own.keys() - _DEFAULT_OPTIONS.keys())
    if unknown:
        known = ", ".join([*_DEFAULT_OPTIONS, "transaction"])
        raise DefinitionError(f"{where}: {', '.join(unknown)} is no setting of a tool's step. There are: {known}.")
    step = define_step(_do_nothing, tool, **(_DEFAULT_OPTIONS | own), noun="tool")
    if transaction and step.effect is Effect.ONCE:
        raise DefinitionError(
            f"{where}: with transaction=True it is run again only if nothing of it was committed: drop effect='once'"
        )
    return replace(step, is_transactional=bool(transaction))
