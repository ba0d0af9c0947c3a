"""A platform over a store, on a port, which notices sooner than usual that a listener is gone."""

from __future__ import annotations

import sys

import uvicorn

from holdfast.server.app import create_app
from holdfast.server.background import sweeper
from holdfast.server.deliveries import listener_registry

if __name__ == "__main__":
    listener_registry.RECONNECT_GRACE_S = sweeper.SWEEP_INTERVAL_S = 0.3
    url, port = sys.argv[1:]
    uvicorn.run(create_app(url), port=int(port), log_level="warning", timeout_graceful_shutdown=1)
