"""A platform over HTTP, on a port of this machine."""

from __future__ import annotations

import os

import uvicorn

from holdfast.server.app import create_app


class Server(uvicorn.Server):
    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        print("ready", flush=True)


Server(uvicorn.Config(create_app(), port=int(os.environ["PORT"]), timeout_graceful_shutdown=3)).run()
