"""Restate: a service that its server calls over HTTP/2, and a client of that server.

The store names the server's ports and the service's own: ``INGRESS,ADMIN,SERVICE``. Processes of the same service
share that port, as they would share an address behind a load balancer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
import uuid
from typing import Any

import httpx
import peer_protocol
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

sequence = restate.Service("sequence")


@sequence.handler()
async def run(ctx: restate.Context, request: dict[str, Any]) -> int:
    for number in range(1, request["steps"] + 1):
        await ctx.run_typed("one", peer_protocol.run_step, ledger=request["ledger"], number=number)
    return request["steps"]


class Restate:
    async def open(self, store: str, variant: str) -> None:
        ingress, admin, port = map(int, store.split(","))
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        config = Config()
        config.bind = [f"fd://{listener.fileno()}"]
        config.h2_max_concurrent_streams = 2147483647
        config.keep_alive_timeout = 2147483647
        self._listener = listener
        self._server_task = asyncio.create_task(serve(restate.app([sequence]), config))  # type: ignore[arg-type]
        await asyncio.to_thread(_register_service, admin, port)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{ingress}", timeout=None, limits=limits)

    async def _call(self, ledger: str, steps: int, *, send: bool = False) -> None:
        path = "/sequence/run/send" if send else "/sequence/run"
        wanted = {"ledger": ledger, "steps": steps}
        answer = await self._client.post(path, json=wanted, headers={"idempotency-key": str(uuid.uuid4())})
        answer.raise_for_status()

    async def run_many(self, runs: int, steps: int) -> None:
        await asyncio.gather(*[self._call("", steps) for _ in range(runs)])

    async def start_run(self, ledger: str) -> None:
        await self._call(ledger, peer_protocol.STEP_COUNT, send=True)

    async def resume_run(self, ledger: str) -> None:
        raise NotImplementedError


def _register_service(admin: int, port: int) -> None:
    body = json.dumps({"uri": f"http://127.0.0.1:{port}"}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{admin}/deployments", body, headers)
    urllib.request.urlopen(request).close()


peer_protocol.serve(Restate())
