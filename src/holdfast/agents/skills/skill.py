"""``@skill`` and ``Skill``: a bundle of instructions and tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, overload

from holdfast.agents.docstrings import parse_docstring
from holdfast.agents.run_context import RunContext
from holdfast.agents.tools import Tool, check_name, to_tool
from holdfast.authoring.introspection import format_location, is_async, is_function
from holdfast.errors import DefinitionError

MAX_DESCRIPTION_CHARS = 1024
"""The description is part of the agent's instructions in every turn."""

Instructions = str | Callable[..., str | Awaitable[str]]
"""A text, or a function that returns one, and may take a ``RunContext``."""


class Skill:
    """Instructions, tools, and files that a model loads when it needs them.

    Args:
        name: its name for the model: at most 64 ASCII letters, digits, _ and -.
        description: its purpose, and when to use it. The model always sees it, so it is short.
        instructions: what the model gets when it loads the skill: a text, or a function that returns one. The function
            may be async, and take a ``RunContext``; the step that loads the skill calls it.
        tools: tools that the model sees after it has loaded the skill: functions, with ``@tool`` or without.
    """

    def __init__(
        self,
        name: str,
        description: str,
        instructions: Instructions,
        tools: Sequence[Callable[..., Any] | Tool] = (),
    ) -> None:
        where = f"skill {name!r}"
        check_name(name, where, hint="with name=")
        self.name = name
        self.description = _validate_description(description, where)
        self.tools: tuple[Tool, ...] = tuple(to_tool(item, where) for item in tools)
        self.has_context = False
        """Its instructions are a function that takes a ``RunContext``."""
        if isinstance(instructions, str):
            if not instructions.strip():
                raise DefinitionError(f"{where}: its instructions are empty, and that is what the model would load")
        elif not callable(instructions):
            raise DefinitionError(f"{where}: instructions is a text, or a function that returns one")
        else:
            self.has_context = _has_context(instructions, where)
        self._instructions = instructions

    folder: Path | None = None
    """The folder with its files, if it has any."""

    async def load(self, context: RunContext[Any] | None) -> str:
        """The instructions of the skill. Called in a step."""
        if isinstance(self._instructions, str):
            return self._instructions
        function: Any = self._instructions
        args = (context,) if self.has_context else ()
        text: Any = await function(*args) if is_async(function) else await asyncio.to_thread(function, *args)
        if not isinstance(text, str):
            raise TypeError(f"the function of skill {self.name!r} returned {type(text).__name__}, not a text")
        return text

    def __repr__(self) -> str:
        return f"<skill {self.name!r}>"


@overload
def skill(function: Callable[..., str | Awaitable[str]], /) -> Skill: ...
@overload
def skill(
    *,
    name: str | None = None,
    description: str | None = None,
    tools: Sequence[Callable[..., Any] | Tool] = (),
) -> Callable[[Callable[..., str | Awaitable[str]]], Skill]: ...
def skill(
    function: Callable[..., str | Awaitable[str]] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    tools: Sequence[Callable[..., Any] | Tool] = (),
) -> Any:
    """Make a function a skill: it returns the instructions that the model gets when it loads the skill.

    The recorded step that loads the skill calls the function. It may be async, and may take a ``RunContext``.

    Args:
        function: returns the instructions.
        name: the skill's name for the model. Default: the function's name.
        description: its purpose, and when to use it. Default: the docstring.
        tools: tools that the model sees after it has loaded the skill.
    """

    def decorate(function: Callable[..., str | Awaitable[str]]) -> Skill:
        if not is_function(function):
            raise DefinitionError(f"@skill goes on a function that returns the instructions, not on {function!r}")
        about = parse_docstring(function.__doc__).text if description is None else description
        if not about.strip():
            raise DefinitionError(
                f"skill {function.__name__!r} ({format_location(function)}) has no description: write a docstring that "
                f"says what it is for, and when to use it"
            )
        return Skill(name or function.__name__, about, function, tools)

    return decorate if function is None else decorate(function)


def _validate_description(value: Any, subject: str) -> str:
    """The description in one line, as in the catalog."""
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(f"{subject} has no description: say what it is for, and when to use it")
    text = " ".join(value.split())
    if len(text) > MAX_DESCRIPTION_CHARS:
        raise DefinitionError(
            f"{subject}: its description has {len(text)} characters, and at most {MAX_DESCRIPTION_CHARS} are allowed, "
            f"because the model reads it in every turn: say there when to use the skill, and the rest in its "
            f"instructions"
        )
    return text


def _has_context(function: Callable[..., Any], subject: str) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) > 1 or any(item.kind is inspect.Parameter.KEYWORD_ONLY for item in parameters):
        raise DefinitionError(
            f"{subject} ({format_location(function)}): the function that returns its instructions takes a RunContext, "
            f"`ctx: RunContext[...]`, or nothing"
        )
    return bool(parameters)
