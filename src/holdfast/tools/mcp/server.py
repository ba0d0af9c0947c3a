"""``mcp_stdio`` and ``mcp_http``: the tools of an MCP server, for an agent.

What a server has is listed by a recorded step at the beginning of each run. Whatever comes from it (names,
descriptions, schemas, hints, results) is somebody else's text: it is bounded, and checked where it matters.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.agents.argument_errors import listed
from holdfast.agents.tool_approvals import RequiresApproval
from holdfast.agents.tools import Tool, refuse_name
from holdfast.agents.toolsets import ListedTool, Toolset
from holdfast.codec.formatting import cut
from holdfast.core.retry_policy import RetryPolicy
from holdfast.core.states import Effect
from holdfast.engine.step_context import current
from holdfast.errors import DefinitionError, HoldfastError, McpError, McpUnavailable, UsageError
from holdfast.tools.mcp.connection import Connection, Dial, Headers, Live
from holdfast.tools.mcp.schema_parameters import problem_of
from holdfast.tools.mcp.secret_redaction import Secrets
from holdfast.tools.mcp.tool import Behaviour, mcp_tool, retry_policy

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")

log = logging.getLogger("holdfast.tools.mcp")

TIMEOUT = 60.0
RETRIES = 2
OPENING = 60.0
"""Seconds that a server may take to start, and to say who it is; longer if its calls may take longer."""

LONGEST_DESCRIPTION = 4000
LARGEST_SCHEMA = 50_000
MOST_TOOLS = 500


class McpServer(Toolset):
    """The tools of an MCP server. Made by ``mcp_stdio`` and ``mcp_http``."""

    def __init__(
        self,
        dial: Callable[[], Dial],
        secrets: Secrets,
        *,
        name: str,
        prefix: str,
        only: Collection[str] | None,
        timeout: Duration | None,
        retries: int,
        effect: Effect | str | Mapping[str, Effect | str] | None,
        requires_approval: RequiresApproval | Mapping[str, RequiresApproval],
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"name={name!r}: an MCP server has a name of letters, digits, '_', '-' and '.'")
        where = f"MCP server {name!r}"
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: retries={retries!r} must be a whole number, 0 or more")
        if isinstance(only, str):
            raise DefinitionError(f"{where}: only is a collection of names, not one string: only=[{only!r}]")
        if prefix:
            refuse_name(prefix, f"{where}: prefix={prefix!r}", "with `prefix=...`")
        self.name = name
        self.retry: RetryPolicy = retry_policy(retries)
        self._dial = dial
        self._secrets = secrets
        self._prefix = prefix
        self._only = None if only is None else frozenset(only)
        self._timeout = declared_seconds(timeout, f"{where}: timeout")
        self._retries = retries
        self._effects = _by_name(effect, lambda one: _effect(one, where))
        self._approvals = _by_name(requires_approval, lambda one: one)
        self._protocol: Any = None
        self._left_out: set[str] = set()
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    # What an agent's run asks for

    async def list_tools(self) -> list[ListedTool]:
        """The server's tools, as they are now."""
        library = await self._library()

        async def ask(live: Live) -> list[mcp_types.Tool]:
            try:
                async with asyncio.timeout(self._timeout):
                    return await library.list_all(live, self.name)
            except TimeoutError:
                limit = f"within its time-out of {self._timeout:g} s"
                raise McpUnavailable(
                    f"the MCP server {self.name!r} did not list its tools {limit}", self.name
                ) from None

        found = await self._ask(ask)
        self._refuse_unknown({tool.name for tool in found})
        return await asyncio.to_thread(self._fit, found)  # of many tools, their schemas take a while

    def tool(self, listed: ListedTool) -> Tool:
        """One of its tools."""
        name = str(listed.notes["name"])
        hinted = Effect(listed.notes["effect"])
        behaviour = Behaviour(
            effect=self._effects.get(name, self._effects.get(None, hinted)),
            requires_approval=self._approvals.get(name, self._approvals.get(None, False)),
            timeout=self._timeout,
            retries=self._retries,
        )
        return mcp_tool(self.name, listed, behaviour, self._call)

    async def _call(
        self, name: str, arguments: dict[str, Any], bounded: Callable[[Awaitable[Any]], Awaitable[Any]]
    ) -> Any:
        library = await self._library()
        return await self._ask(lambda live: bounded(library.call(live, self.name, name, arguments)))

    async def _ask(self, ask: Callable[[Live], Awaitable[T]]) -> T:
        try:
            return await self._connection().ask(ask, current.get().engine)
        except HoldfastError as error:
            error.args = (self._secrets.hide(str(error)), *error.args[1:])
            raise

    def _connection(self) -> Connection:
        """The connection of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None:
            limit = max(OPENING, self._timeout or OPENING)
            found = self._connections[loop] = Connection(self.name, self._dial(), limit)
        return found

    async def _library(self) -> Any:
        """What speaks the protocol; imported in a thread, for that takes more than a second."""
        if self._protocol is not None:
            return self._protocol
        if find_spec("mcp") is None:
            raise UsageError(
                f"the MCP server {self.name!r} cannot be asked: the package `mcp` is not installed in this process's "
                f"environment. Install it with: pip install 'holdfast-agents[mcp]'"
            )
        self._protocol = await asyncio.to_thread(importlib.import_module, "holdfast.tools.mcp.connect")
        return self._protocol

    # What is made of a listing

    def _refuse_unknown(self, known: set[str]) -> None:
        named = {"only": self._only or (), "effect": self._effects, "requires_approval": self._approvals}
        for option, names in named.items():
            unknown = [name for name in names if name is not None and name not in known]
            if unknown:
                raise McpError(
                    f"the MCP server {self.name!r} has no tool {unknown[0]!r}, which `{option}=` names; it has: "
                    f"{listed(sorted(known)) or 'none'}",
                    self.name,
                )

    def _fit(self, found: list[mcp_types.Tool]) -> list[ListedTool]:
        """The tools that a model can be offered, by names that a model can call them by."""
        fit: dict[str, ListedTool] = {}
        for tool in found:
            if self._only is not None and tool.name not in self._only:
                continue
            name = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{self._prefix}{tool.name}")[:64]
            problem = _problem(name, tool, fit)
            if problem is not None:
                if tool.name not in self._left_out:  # it is told once, and not in every run
                    self._left_out.add(tool.name)
                    known = cut(tool.name, 100)
                    log.warning("the MCP server %r: its tool %r is left out: %s", self.name, known, problem)
                continue
            described = cut((tool.description or tool.title or "").strip(), LONGEST_DESCRIPTION)
            notes = {"name": tool.name, "effect": str(_hinted(tool))}
            fit[name] = ListedTool(name, described, tool.input_schema, notes)
        return list(fit.values())


def mcp_stdio(
    *command: str,
    name: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    prefix: str = "",
    only: Collection[str] | None = None,
    timeout: Duration | None = TIMEOUT,
    retries: int = RETRIES,
    effect: Effect | str | Mapping[str, Effect | str] | None = None,
    requires_approval: RequiresApproval | Mapping[str, RequiresApproval] = False,
) -> McpServer:
    """The tools of an MCP server that is started as a process, and spoken to through its stdin and stdout.

    Args:
        command: the program and its arguments. No shell reads them.
        name: what the journal and messages call the server.
        env: variables for its environment, which has nothing else but what programs need to start (``PATH``, ``HOME``
            and the like). Never recorded.
        cwd: the folder that it is started in.
        prefix: put before the name of each tool, as the model calls it.
        only: the tools to offer, by the server's names; all unless given.
        timeout: seconds that one call may take.
        retries: how many more attempts if the server could not be started, or died, before the model hears of it.
        effect: ``read``, ``idempotent`` or ``once``, for all tools or by the server's names, in place of what the
            server's own hints say. A tool of which neither says anything is ``once``.
        requires_approval: as for ``@tool``, for all tools or by the server's names.
    """
    if not command or not all(isinstance(part, str) and part for part in command):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"mcp_stdio: a command is a program and its arguments, each a text, not {command!r}")
    environment = dict(env or {})
    secrets = Secrets(environment.values())

    def dial() -> Dial:
        from holdfast.tools.mcp.connect import dial_process

        return dial_process(name, command, environment, cwd, secrets)

    return McpServer(
        dial,
        secrets,
        name=name,
        prefix=prefix,
        only=only,
        timeout=timeout,
        retries=retries,
        effect=effect,
        requires_approval=requires_approval,
    )


def mcp_http(
    url: str,
    *,
    name: str,
    headers: Headers | None = None,
    prefix: str = "",
    only: Collection[str] | None = None,
    timeout: Duration | None = TIMEOUT,
    retries: int = RETRIES,
    effect: Effect | str | Mapping[str, Effect | str] | None = None,
    requires_approval: RequiresApproval | Mapping[str, RequiresApproval] = False,
) -> McpServer:
    """The tools of an MCP server that is asked over HTTP (the transport that MCP calls streamable HTTP).

    Args:
        url: where the server is. Nothing else is asked, whatever it redirects to.
        name: what the journal and messages call the server.
        headers: sent with every request, such as ``{"Authorization": ...}``; or a function that returns them, which is
            called for every request. Never recorded.
        prefix: put before the name of each tool, as the model calls it.
        only: the tools to offer, by the server's names; all unless given.
        timeout: seconds that one call may take.
        retries: how many more attempts if the server could not be reached, before the model hears of it.
        effect: ``read``, ``idempotent`` or ``once``, for all tools or by the server's names, in place of what the
            server's own hints say. A tool of which neither says anything is ``once``.
        requires_approval: as for ``@tool``, for all tools or by the server's names.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DefinitionError(f"mcp_http: a URL begins with https:// or http://, and not {cut(repr(url), 100)}")
    if parts.username or parts.password:
        raise DefinitionError("mcp_http: a URL must not have a password in it: pass headers={'Authorization': ...}")
    given: Headers = {} if headers is None else headers
    if not callable(given) and not hasattr(given, "items"):
        raise DefinitionError("mcp_http: headers is a mapping, or a function that returns one")

    secrets = Secrets()

    def dial() -> Dial:
        from holdfast.tools.mcp.connect import dial_http

        return dial_http(name, url, given, secrets)

    return McpServer(
        dial,
        secrets,
        name=name,
        prefix=prefix,
        only=only,
        timeout=timeout,
        retries=retries,
        effect=effect,
        requires_approval=requires_approval,
    )


def _by_name(given: Any, read: Callable[[Any], T]) -> dict[str | None, T]:
    """What holds for each tool, by name; under ``None``, what holds for all others."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {name: read(one) for name, one in cast("Mapping[str, Any]", given).items()}
    return {None: read(given)}


def _effect(given: Any, where: str) -> Effect:
    try:
        return Effect(given)
    except ValueError:
        raise DefinitionError(f"{where}: effect={given!r} is none of {', '.join(Effect)}") from None


def _hinted(tool: mcp_types.Tool) -> Effect:
    """What a server says of its tool, which it may know best, but need not be right."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return Effect.READ
    if hints is not None and hints.idempotent_hint:
        return Effect.IDEMPOTENT
    return Effect.ONCE


def _problem(name: str, tool: mcp_types.Tool, others: Collection[str]) -> str | None:
    """Why a tool cannot be offered to a model."""
    try:
        refuse_name(name, "it", "with `prefix=...`")
    except DefinitionError as error:
        return str(error)
    if name in others:
        return f"another one is called {name!r} already, which is all that a model can call it"
    if len(others) >= MOST_TOOLS:
        return f"there are more than {MOST_TOOLS}: choose with `only=[...]`"
    if len(json.dumps(tool.input_schema)) > LARGEST_SCHEMA:
        return f"its schema has more than {LARGEST_SCHEMA:,} characters"
    problem = problem_of(tool.input_schema)
    return None if problem is None else f"its schema is none: {problem}"
