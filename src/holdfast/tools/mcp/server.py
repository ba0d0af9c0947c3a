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
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.argument_errors import format_names
from holdfast.agents.tool_approvals import ApprovalRule
from holdfast.agents.tools import Tool, check_name
from holdfast.agents.toolsets import ListedTool, Toolset
from holdfast.codec.formatting import truncate
from holdfast.core.states import Effect
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import DefinitionError, HoldfastError, McpError, McpUnavailable, UsageError
from holdfast.tools.mcp.connection import Connection, Connector, HeaderSource, OpenConnection
from holdfast.tools.mcp.schema_parameters import find_schema_problem
from holdfast.tools.mcp.secret_redaction import SecretRedactor
from holdfast.tools.mcp.tool import ToolDeclaration, make_mcp_tool, make_retry_policy

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")

log = logging.getLogger("holdfast.tools.mcp")

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_RETRIES = 2
OPEN_TIMEOUT_S = 60.0
"""Seconds that a server may take to start, and to say who it is; longer if its calls may take longer."""

MAX_DESCRIPTION_CHARS = 4000
MAX_SCHEMA_CHARS = 50_000
MAX_TOOLS = 500


class McpServer(Toolset):
    """The tools of an MCP server. Made by ``mcp_stdio`` and ``mcp_http``."""

    def __init__(
        self,
        make_connector: Callable[[], Connector],
        secrets: SecretRedactor,
        *,
        name: str,
        prefix: str,
        only: Collection[str] | None,
        timeout: Duration | None,
        retries: int,
        effect: Effect | str | Mapping[str, Effect | str] | None,
        requires_approval: ApprovalRule | Mapping[str, ApprovalRule],
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,64}", name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"name={name!r}: an MCP server has a name of letters, digits, '_', '-' and '.'")
        where = f"MCP server {name!r}"
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"{where}: retries={retries!r} must be a whole number, 0 or more")
        if isinstance(only, str):
            raise DefinitionError(f"{where}: only is a collection of names, not one string: only=[{only!r}]")
        if prefix:
            check_name(prefix, f"{where}: prefix={prefix!r}", "with `prefix=...`")
        self.name = name
        self.retry: RetryPolicy = make_retry_policy(retries)
        self._make_connector = make_connector
        self._secrets = secrets
        self._prefix = prefix
        self._only = None if only is None else frozenset(only)
        self._timeout_s = declared_seconds(timeout, f"{where}: timeout")
        self._retries = retries
        self._effects = _parse_by_name(effect, lambda one: _parse_effect(one, where))
        self._approvals = _parse_by_name(requires_approval, lambda one: one)
        self._library: Any = None
        self._omitted_tools: set[str] = set()
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    # What an agent's run asks for

    async def list_tools(self) -> list[ListedTool]:
        """The server's tools, as they are now."""
        library = await self._load_library()

        async def ask(live: OpenConnection) -> list[mcp_types.Tool]:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await library.list_all_tools(live, self.name)
            except TimeoutError:
                limit = f"within its time-out of {self._timeout_s:g} s"
                raise McpUnavailable(
                    f"the MCP server {self.name!r} did not list its tools {limit}", self.name
                ) from None

        found = await self._run(ask)
        self._check_known_names({tool.name for tool in found})
        return await asyncio.to_thread(self._select_tools, found)  # of many tools, their schemas take a while

    def make_tool(self, listed: ListedTool) -> Tool:
        """One of its tools."""
        name = str(listed.metadata["name"])
        hinted = Effect(listed.metadata["effect"])
        behaviour = ToolDeclaration(
            effect=self._effects.get(name, self._effects.get(None, hinted)),
            requires_approval=self._approvals.get(name, self._approvals.get(None, False)),
            timeout_s=self._timeout_s,
            retries=self._retries,
        )
        return make_mcp_tool(self.name, listed, behaviour, self._call_tool)

    async def _call_tool(
        self, name: str, arguments: dict[str, Any], with_timeout: Callable[[Awaitable[Any]], Awaitable[Any]]
    ) -> Any:
        library = await self._load_library()
        return await self._run(lambda live: with_timeout(library.call_tool(live, self.name, name, arguments)))

    async def _run(self, operation: Callable[[OpenConnection], Awaitable[T]]) -> T:
        try:
            return await self._get_connection().run(operation, get_step_executor().engine)
        except HoldfastError as error:
            error.args = (self._secrets.redact(str(error)), *error.args[1:])
            raise

    def _get_connection(self) -> Connection:
        """The connection of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None:
            limit = max(OPEN_TIMEOUT_S, self._timeout_s or OPEN_TIMEOUT_S)
            found = self._connections[loop] = Connection(self.name, self._make_connector(), limit)
        return found

    async def _load_library(self) -> Any:
        """What speaks the protocol; imported in a thread, for that takes more than a second."""
        if self._library is not None:
            return self._library
        if find_spec("mcp") is None:
            raise UsageError(
                f"the MCP server {self.name!r} cannot be asked: the package `mcp` is not installed in this process's "
                f"environment. Install it with: pip install 'holdfast-agents[mcp]'"
            )
        self._library = await asyncio.to_thread(importlib.import_module, "holdfast.tools.mcp.connect")
        return self._library

    # What is made of a listing

    def _check_known_names(self, known: set[str]) -> None:
        named = {"only": self._only or (), "effect": self._effects, "requires_approval": self._approvals}
        for option, names in named.items():
            unknown = [name for name in names if name is not None and name not in known]
            if unknown:
                raise McpError(
                    f"the MCP server {self.name!r} has no tool {unknown[0]!r}, which `{option}=` names; it has: "
                    f"{format_names(sorted(known)) or 'none'}",
                    self.name,
                )

    def _select_tools(self, found: list[mcp_types.Tool]) -> list[ListedTool]:
        """The tools that a model can be offered, by names that a model can call them by."""
        fit: dict[str, ListedTool] = {}
        for tool in found:
            if self._only is not None and tool.name not in self._only:
                continue
            name = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{self._prefix}{tool.name}")[:64]
            problem = _find_tool_problem(name, tool, fit)
            if problem is not None:
                if tool.name not in self._omitted_tools:  # it is told once, and not in every run
                    self._omitted_tools.add(tool.name)
                    known = truncate(tool.name, 100)
                    log.warning("the MCP server %r: its tool %r is left out: %s", self.name, known, problem)
                continue
            described = truncate((tool.description or tool.title or "").strip(), MAX_DESCRIPTION_CHARS)
            notes = {"name": tool.name, "effect": str(_effect_from_hints(tool))}
            fit[name] = ListedTool(name, described, tool.input_schema, notes)
        return list(fit.values())


def mcp_stdio(
    *command: str,
    name: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    prefix: str = "",
    only: Collection[str] | None = None,
    timeout: Duration | None = DEFAULT_TIMEOUT_S,
    retries: int = DEFAULT_RETRIES,
    effect: Effect | str | Mapping[str, Effect | str] | None = None,
    requires_approval: ApprovalRule | Mapping[str, ApprovalRule] = False,
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
    secrets = SecretRedactor(environment.values())

    def dial() -> Connector:
        from holdfast.tools.mcp.connect import make_process_connector

        return make_process_connector(name, command, environment, cwd, secrets)

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
    headers: HeaderSource | None = None,
    prefix: str = "",
    only: Collection[str] | None = None,
    timeout: Duration | None = DEFAULT_TIMEOUT_S,
    retries: int = DEFAULT_RETRIES,
    effect: Effect | str | Mapping[str, Effect | str] | None = None,
    requires_approval: ApprovalRule | Mapping[str, ApprovalRule] = False,
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
        raise DefinitionError(f"mcp_http: a URL begins with https:// or http://, and not {truncate(repr(url), 100)}")
    if parts.username or parts.password:
        raise DefinitionError("mcp_http: a URL must not have a password in it: pass headers={'Authorization': ...}")
    given: HeaderSource = {} if headers is None else headers
    if not callable(given) and not hasattr(given, "items"):
        raise DefinitionError("mcp_http: headers is a mapping, or a function that returns one")

    secrets = SecretRedactor()

    def dial() -> Connector:
        from holdfast.tools.mcp.connect import make_http_connector

        return make_http_connector(name, url, given, secrets)

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


def _parse_by_name(given: Any, parse: Callable[[Any], T]) -> dict[str | None, T]:
    """What holds for each tool, by name; under ``None``, what holds for all others."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {name: parse(one) for name, one in cast("Mapping[str, Any]", given).items()}
    return {None: parse(given)}


def _parse_effect(given: Any, source: str) -> Effect:
    try:
        return Effect(given)
    except ValueError:
        raise DefinitionError(f"{source}: effect={given!r} is none of {', '.join(Effect)}") from None


def _effect_from_hints(tool: mcp_types.Tool) -> Effect:
    """What a server says of its tool, which it may know best, but need not be right."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return Effect.READ
    if hints is not None and hints.idempotent_hint:
        return Effect.IDEMPOTENT
    return Effect.ONCE


def _find_tool_problem(name: str, tool: mcp_types.Tool, taken_names: Collection[str]) -> str | None:
    """Why a tool cannot be offered to a model."""
    try:
        check_name(name, "it", "with `prefix=...`")
    except DefinitionError as error:
        return str(error)
    if name in taken_names:
        return f"another one is called {name!r} already, which is all that a model can call it"
    if len(taken_names) >= MAX_TOOLS:
        return f"there are more than {MAX_TOOLS}: choose with `only=[...]`"
    if len(json.dumps(tool.input_schema)) > MAX_SCHEMA_CHARS:
        return f"its schema has more than {MAX_SCHEMA_CHARS:,} characters"
    problem = find_schema_problem(tool.input_schema)
    return None if problem is None else f"its schema is none: {problem}"
