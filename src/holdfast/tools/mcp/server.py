"""``mcp_stdio`` and ``mcp_http``: the tools of an MCP server, for an agent.

A recorded step lists a server's tools at the beginning of each run. Everything from the server (names, descriptions,
schemas, hints, results) is untrusted: it is bounded, and validated where it matters.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
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
from holdfast.codec import codec_for
from holdfast.codec.formatting import truncate
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import (
    DefinitionError,
    HoldfastError,
    McpError,
    McpUnavailable,
    StepOutcomeUnknown,
    StepTimedOut,
    UsageError,
)
from holdfast.tools.mcp.connection import Connection, Connector, HeaderSource, OpenConnection
from holdfast.tools.mcp.schema_parameters import SchemaParameters, find_schema_problem
from holdfast.tools.mcp.secret_redaction import SecretRedactor

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")

log = logging.getLogger("holdfast.tools.mcp")

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_RETRIES = 2
OPEN_TIMEOUT_S = 60.0
"""How long a server may take to start and to initialize a session; longer if its calls may take longer."""

BACKOFF_S = 0.5
MAX_BACKOFF_S = 20.0

MAX_DESCRIPTION_CHARS = 4000
MAX_SCHEMA_CHARS = 50_000
MAX_TOOLS = 500


class McpServer(Toolset):
    """The tools of an MCP server. Made by ``mcp_stdio`` and ``mcp_http``."""

    def __init__(
        self,
        make_connector: Callable[[Any], Connector],
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
        self.retry = RetryPolicy(
            retries=retries,
            backoff=BACKOFF_S,
            max_backoff=MAX_BACKOFF_S,
            give_up_after=None,
            retry_on=(McpUnavailable,),
            read_retry_after=lambda error: error.retry_after_s if isinstance(error, McpUnavailable) else None,
        )
        self._make_connector = make_connector
        self._secrets = secrets
        self._prefix = prefix
        self._only = None if only is None else frozenset(only)
        self._timeout_s = declared_seconds(timeout, f"{where}: timeout")
        self._effects = _parse_by_name(effect, lambda value: _parse_effect(value, where))
        self._approvals = _parse_by_name(requires_approval, lambda value: value)
        self._library: Any = None
        self._omitted_tools: set[str] = set()
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    # Toolset

    async def list_tools(self) -> list[ListedTool]:
        """The server's current tools."""
        library = await self._load_library()
        found: list[mcp_types.Tool] = await self._run(
            lambda connection: library.list_all_tools(connection, self.name),
            lambda limit: McpUnavailable(
                f"the MCP server {self.name!r} did not list its tools within {limit}", self.name
            ),
        )
        self._check_known_names({tool.name for tool in found})
        return await asyncio.to_thread(self._select_tools, found)  # the schemas of many tools take a while

    def make_tool(self, listed: ListedTool) -> Tool:
        """One of its tools: a call is a step that calls the server."""
        name = str(listed.metadata["name"])
        effect = self._effects.get(name, self._effects.get(None, Effect(listed.metadata["effect"])))

        async def call(arguments: dict[str, Any]) -> Any:
            try:
                return await self._call_tool(listed.name, name, arguments)
            except McpUnavailable as error:
                if effect is not Effect.ONCE or not error.is_sent:
                    raise
                raise StepOutcomeUnknown(
                    f"{error}: the call of {name!r} may or may not have happened, and its effect is `once`, so it is "
                    f"not made again. Check first, then act on what you find.",
                    listed.name,
                ) from error

        definition = StepDefinition(
            listed.name,
            call,
            True,
            codec_for(Any),
            parameters=(),
            namespace={},
            retry=self.retry,
            effect=effect,
            is_tool=True,
        )
        requires_approval = self._approvals.get(name, self._approvals.get(None, False))
        return Tool(
            definition, listed.description, SchemaParameters(listed.name, listed.schema), None, requires_approval
        )

    async def _call_tool(self, step: str, name: str, arguments: dict[str, Any]) -> Any:
        library = await self._load_library()
        return await self._run(
            lambda connection: library.call_tool(connection, self.name, name, arguments),
            lambda limit: StepTimedOut(f"the MCP server {self.name!r} took longer than {limit}", step),
        )

    async def _run(
        self, operation: Callable[[OpenConnection], Awaitable[T]], make_timeout_error: Callable[[str], HoldfastError]
    ) -> T:
        """Run an operation on the connection of the running loop. The timeout does not include opening it."""

        async def run_bounded(connection: OpenConnection) -> T:
            scope = asyncio.timeout(self._timeout_s)
            try:
                async with scope:
                    return await operation(connection)
            except TimeoutError:
                if not scope.expired():
                    raise
                raise make_timeout_error(f"its time-out of {self._timeout_s:g} s") from None

        try:
            return await self._get_connection().run(run_bounded, get_step_executor().engine)
        except HoldfastError as error:
            error.args = (self._secrets.redact(str(error)), *error.args[1:])
            raise

    def _get_connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            open_timeout_s = max(OPEN_TIMEOUT_S, self._timeout_s or OPEN_TIMEOUT_S)
            connection = Connection(self.name, self._make_connector(self._library), open_timeout_s)
            self._connections[loop] = connection
        return connection

    async def _load_library(self) -> Any:
        """The module that implements the protocol, imported in a thread because that takes more than a second."""
        if self._library is not None:
            return self._library
        if find_spec("mcp") is None:
            raise UsageError(
                f"the MCP server {self.name!r} cannot be asked: the package `mcp` is not installed in this process's "
                f"environment. Install it with: pip install 'holdfast-agents[mcp]'"
            )
        self._library = await asyncio.to_thread(importlib.import_module, "holdfast.tools.mcp.connect")
        return self._library

    # Selecting tools

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
        """The tools that a model can use, under names that it can use."""
        selected: dict[str, ListedTool] = {}
        for tool in found:
            if self._only is not None and tool.name not in self._only:
                continue
            name = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{self._prefix}{tool.name}")[:64]
            problem = _find_tool_problem(name, tool, selected)
            if problem is not None:
                if tool.name not in self._omitted_tools:  # logged once, not in every run
                    self._omitted_tools.add(tool.name)
                    shown = truncate(tool.name, 100)
                    log.warning("the MCP server %r: its tool %r is left out: %s", self.name, shown, problem)
                continue
            description = truncate((tool.description or tool.title or "").strip(), MAX_DESCRIPTION_CHARS)
            metadata = {"name": tool.name, "effect": str(_effect_from_hints(tool))}
            selected[name] = ListedTool(name, description, tool.input_schema, metadata)
        return list(selected.values())


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
    """The tools of an MCP server that is started as a process and uses its stdin and stdout.

    Args:
        command: the program and its arguments, without a shell.
        name: the server's name in the journal and in messages.
        env: environment variables for the server, in addition to those that programs need to start (``PATH``, ``HOME``,
            and so on). Never recorded.
        cwd: the folder that it is started in.
        prefix: a prefix for the name of each tool, as the model uses it.
        only: the tools to offer, by the server's names. Default: all.
        timeout: seconds that one call may take.
        retries: how many more attempts if the server could not be started, or died, before the model sees the error.
        effect: ``read``, ``idempotent``, or ``once``, for all tools or by the server's names, in place of the server's
            own hints. A tool without either is ``once``.
        requires_approval: as for ``@tool``, for all tools or by the server's names.
    """
    if not command or not all(isinstance(part, str) and part for part in command):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"mcp_stdio: a command is a program and its arguments, each a text, not {command!r}")
    environment = dict(env or {})
    secrets = SecretRedactor(environment.values())
    return McpServer(
        lambda library: partial(library.open_process_session, name, command, environment, cwd, secrets),
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
    """The tools of an MCP server over HTTP (the transport that MCP calls streamable HTTP).

    Args:
        url: the server's URL. Redirects are not followed.
        name: the server's name in the journal and in messages.
        headers: headers for every request, such as ``{"Authorization": ...}``; or a function that returns them and is
            called for every request. Never recorded.
        prefix: a prefix for the name of each tool, as the model uses it.
        only: the tools to offer, by the server's names. Default: all.
        timeout: seconds that one call may take.
        retries: how many more attempts if the server could not be reached, before the model sees the error.
        effect: ``read``, ``idempotent``, or ``once``, for all tools or by the server's names, in place of the server's
            own hints. A tool without either is ``once``.
        requires_approval: as for ``@tool``, for all tools or by the server's names.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DefinitionError(f"mcp_http: a URL begins with https:// or http://, and not {truncate(repr(url), 100)}")
    if parts.username or parts.password:
        raise DefinitionError("mcp_http: a URL must not have a password in it: pass headers={'Authorization': ...}")
    source: HeaderSource = {} if headers is None else headers
    if not callable(source) and not hasattr(source, "items"):
        raise DefinitionError("mcp_http: headers is a mapping, or a function that returns one")
    secrets = SecretRedactor()
    return McpServer(
        lambda library: partial(library.open_http_session, name, url, source, secrets),
        secrets,
        name=name,
        prefix=prefix,
        only=only,
        timeout=timeout,
        retries=retries,
        effect=effect,
        requires_approval=requires_approval,
    )


def _parse_by_name(option: Any, parse: Callable[[Any], T]) -> dict[str | None, T]:
    """The values of an option by tool; under ``None``, the value for all other tools."""
    if option is None:
        return {}
    if isinstance(option, Mapping):
        return {name: parse(value) for name, value in cast("Mapping[str, Any]", option).items()}
    return {None: parse(option)}


def _parse_effect(effect: Any, source: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise DefinitionError(f"{source}: effect={effect!r} is none of {', '.join(Effect)}") from None


def _effect_from_hints(tool: mcp_types.Tool) -> Effect:
    """The effect according to the server's hints, which may be wrong."""
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return Effect.READ
    if hints is not None and hints.idempotent_hint:
        return Effect.IDEMPOTENT
    return Effect.ONCE


def _find_tool_problem(name: str, tool: mcp_types.Tool, taken_names: Collection[str]) -> str | None:
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
