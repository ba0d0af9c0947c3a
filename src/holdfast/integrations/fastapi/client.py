"""The app's client as a dependency: ``async def route(client: HoldfastClient)``."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from holdfast.client.client import Client
from holdfast.errors import UsageError

CLIENT_STATE = "holdfast_client"
"""The name of the client in the state that the lifespan hands to requests."""


def get_client(connection: HTTPConnection) -> Client:
    """The client that ``holdfast_lifespan`` opened."""
    client = getattr(connection.state, CLIENT_STATE, None)
    if not isinstance(client, Client):
        raise UsageError(
            "this app has no Holdfast client: create it as FastAPI(lifespan=holdfast_lifespan()), and in tests use "
            "`with TestClient(app) as http:`, which runs the lifespan"
        )
    return client


HoldfastClient = Annotated[Client, Depends(get_client)]
"""The type of a route's parameter that gets the app's client."""
