"""A server as a process of its own: ``python server_process.py URL PORT``. Webhooks may be sent to this machine."""

from __future__ import annotations

import sys

import uvicorn

from holdfast.server.app import Settings, create_app
from holdfast.server.webhooks import response_outcomes, sender

if __name__ == "__main__":
    response_outcomes.FIRST_DELAY_S = 0.2
    sender.POLL_INTERVAL_S = 0.1
    app = create_app(sys.argv[1], settings=Settings(allowed_webhook_hosts=("127.0.0.1",)))
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
