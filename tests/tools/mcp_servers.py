"""MCP servers for tests, made with the server side of the package ``mcp``: over stdio, and over HTTP.

What they do to the world they write to a ledger in their folder (``mcp_ledger``).

A call with the ``name`` N stands still as long as there is a file ``N.hold`` in the folder. A call that was told to
stop is in the ledger with ``"cancelled": true``.

As a script, ``python mcp_servers.py FOLDER``, this is a server over stdio. With ``noisy`` behind that, it writes to
stdout and stderr what belongs to no protocol.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp_ledger import note

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n no picture, but some bytes").decode()
SECRET = "tok-0123456789abcdef"

READ = types.ToolAnnotations(read_only_hint=True)
AGAIN = types.ToolAnnotations(idempotent_hint=True)


def schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string"}
NAMED = schema(["name"], name=TEXT)

PAGES = [
    [
        types.Tool(
            name="add",
            description="Adds.",
            input_schema=schema(["a", "b"], a={"type": "integer"}, b={"type": "integer", "minimum": 0}),
            annotations=READ,
        ),
        types.Tool(name="look", description="Looks. " * 1000, input_schema=NAMED, annotations=READ),
        types.Tool(name="put", description="Puts.", input_schema=NAMED, annotations=AGAIN),
    ],
    [
        types.Tool(name="book", description="Books.", input_schema=NAMED),
        types.Tool(name="fail", description="Fails.", input_schema=schema(why=TEXT)),
        types.Tool(name="refuse", description="Is refused.", input_schema=schema()),
    ],
    [
        types.Tool(name="show", description="Shows a picture.", input_schema=schema(), annotations=READ),
        types.Tool(name="papers", description="Gives papers.", input_schema=schema(), annotations=READ),
        types.Tool(name="tell all", description="Tells all.", input_schema=schema(), annotations=READ),
        types.Tool(name="tell.all", description="Tells all, too.", input_schema=schema(), annotations=READ),
        types.Tool(name="odd", description="Has no schema.", input_schema=schema(a={"type": "nonsense"})),
        types.Tool(name="environment", description="Tells its variables.", input_schema=schema(), annotations=READ),
    ],
]


def make_server(folder: Path) -> Server[Any]:
    """A server that writes to the ledger in this folder."""

    async def on_list(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        page = int(params.cursor) if params is not None and params.cursor else 0
        note(folder, tool="tools/list", name=str(page))
        following = str(page + 1) if page + 1 < len(PAGES) else None
        return types.ListToolsResult(tools=PAGES[page], next_cursor=following)

    async def on_call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        name = arguments.get("name", "")
        note(folder, tool=params.name, name=name)
        try:
            while name and (folder / f"{name}.hold").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            note(folder, tool=params.name, name=name, cancelled=True)
            raise
        return result_of(params.name, arguments)

    return Server("for-tests", version="1", on_list_tools=on_list, on_call_tool=on_call)


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def result_of(tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
    match tool:
        case "add":
            total = arguments["a"] + arguments["b"]
            return types.CallToolResult(content=[text(str(total))], structured_content={"sum": total})
        case "look" | "put" | "book":
            return types.CallToolResult(content=[text(f"{tool}: {arguments['name']}")])
        case "fail":
            return types.CallToolResult(content=[text(f"No: {arguments.get('why')}")], is_error=True)
        case "refuse":
            raise types_error(f"It does not do that. Your token is {SECRET}.")
        case "show":
            picture = types.ImageContent(data=PIXEL, mime_type="image/png")
            return types.CallToolResult(content=[text("Look:"), picture])
        case "papers":
            page = types.TextResourceContents(uri="paper://1", text="one", mime_type="text/plain")
            film = types.BlobResourceContents(uri="film://1", blob=PIXEL, mime_type="video/mp4")
            return types.CallToolResult(
                content=[
                    types.EmbeddedResource(resource=page),
                    types.EmbeddedResource(resource=film),
                    types.ResourceLink(uri="paper://2", name="two"),
                    types.AudioContent(data=PIXEL, mime_type="audio/wav"),
                ]
            )
        case "environment":
            return types.CallToolResult(content=[], structured_content=dict(os.environ))
        case _:
            return types.CallToolResult(content=[text("much " * 100_000)])


def types_error(message: str) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(-32000, message)


# Over stdio


def command(folder: Path, *flags: str) -> tuple[str, ...]:
    """What starts a server over stdio."""
    return (sys.executable, __file__, str(folder), *flags)


async def serve_stdio(folder: Path) -> None:
    from mcp.server.stdio import stdio_server

    server = make_server(folder)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def main(folder: Path, flags: Sequence[str]) -> None:
    note(folder, tool="start", name="")
    if "noisy" in flags:
        print("Welcome!\n{not json\n[]\n" + "x" * 5000, flush=True)
        print(f"on stderr: {os.environ.get('TOKEN')}", file=sys.stderr, flush=True)
    asyncio.run(serve_stdio(folder))


# Over HTTP


class HttpServer:
    """A server over HTTP, in a thread of this process; it can be stopped and started again on the same port.

    ``legacy``: it knows only the versions of the protocol that have sessions. ``before`` is asked first about each
    request that is no probe: the status and the headers to answer with, or ``None``. A request that has ``silent`` in
    it is never answered.
    """

    def __init__(self, folder: Path, *, legacy: bool = False, json_response: bool = False) -> None:
        self.folder = folder
        self.before: Callable[[dict[str, str], bytes], tuple[int, dict[str, str]] | None] = lambda headers, body: None
        self.silent = b"\0"
        self.requests: list[dict[str, str]] = []
        self._legacy = legacy
        self._json = json_response
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/mcp"
        self._socket.close()

    def __enter__(self) -> HttpServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        import uvicorn

        app = make_server(self.folder).streamable_http_app(json_response=self._json)
        port = int(self.url.rpartition(":")[2].partition("/")[0])
        config = uvicorn.Config(self._guarded(app), port=port, log_level="critical", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.002)

    def stop(self) -> None:
        """As if it were killed: what is in flight is cut off."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    def _guarded(self, app: Any) -> Any:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            message = await receive()
            body = message.get("body", b"")
            while self.silent in body and message["type"] != "http.disconnect":
                message = await receive()
            if scope["method"] != "POST":
                answer = None
            elif self._legacy and b"server/discover" in body:
                answer = 400, {}
            else:
                self.requests.append(headers)
                answer = self.before(headers, body)
            if answer is not None:
                status, extra = answer
                given = [(name.encode(), value.encode()) for name, value in extra.items()]
                await send({"type": "http.response.start", "status": status, "headers": given})
                await send({"type": "http.response.body", "body": SECRET.encode()})
                return None
            messages = [message]

            async def again() -> Any:
                return messages.pop() if messages else await receive()

            return await app(scope, again, send)

        return guarded


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
