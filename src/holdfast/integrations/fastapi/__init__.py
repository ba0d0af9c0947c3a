"""Holdfast in a FastAPI app: start runs from routes, and stream what happens in them to browsers.

``holdfast_lifespan`` opens a client for the app and, if the app has workflows of its own, a worker in the same process.
Routes get the client as ``HoldfastClient``, ``stream_run`` responds with the events of a run, and ``error_handlers``
turns Holdfast's errors into responses.

Nothing of a run is kept in the app's process: after a crash or a deployment, the next process continues the run, and
the browser continues its stream where it was cut off.
"""

try:
    from holdfast.integrations.fastapi.client import HoldfastClient, get_client
    from holdfast.integrations.fastapi.errors import error_handlers
    from holdfast.integrations.fastapi.event_stream import stream_run
    from holdfast.integrations.fastapi.lifespan import holdfast_lifespan
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[fastapi]' installs what this integration needs.")
    raise

__all__ = ["HoldfastClient", "error_handlers", "get_client", "holdfast_lifespan", "stream_run"]
