"""An app for tests of streams, errors, and the lifespan: ``python stream_app.py PORT [URL]``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

from holdfast import current_step, step, wait_for_signal, workflow
from holdfast.errors import UsageError
from holdfast.integrations.fastapi import HoldfastClient, error_handlers, holdfast_lifespan, stream_run

LOG = Path("log.txt")
URL = sys.argv[2] if len(sys.argv) > 2 else None
resources: list[str] = []


def log(line: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{line}\n")


@step
async def use_resource(seconds: float) -> str:
    log(f"uses {resources}")
    current_step().publish_text("working")
    await asyncio.sleep(seconds)
    log("has used it")
    return "used"


@step
async def load(number: int) -> str:
    return str(number) * 200_000


@workflow(id="use-{name}")
async def use(name: str, seconds: float) -> str:
    return await use_resource(seconds)


@workflow(id="wait-{name}")
async def wait(name: str) -> Any:
    return await wait_for_signal("go")


@workflow(id="load-{name}")
async def load_much(name: str) -> int:
    for number in range(30):
        await load(number % 10)
    return 30


@workflow(id="fail-{name}")
async def fail(name: str) -> None:
    raise ValueError("a secret of another run")


@asynccontextmanager
async def own_lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
    log("opens the resource")
    resources.append("database")
    yield {"resource": "database"}
    resources.clear()
    log("closes the resource")


app = FastAPI(
    lifespan=holdfast_lifespan(URL, workflows=[] if URL else [use, wait, load_much, fail], lifespan=own_lifespan),
    exception_handlers=error_handlers,
)
mounted = FastAPI()
app.mount("/mounted", mounted)
bare = FastAPI(exception_handlers=error_handlers)


@mounted.get("/runs/{run_id}")
@app.get("/runs/{run_id}")
async def get_run(run_id: str, client: HoldfastClient, request: Request) -> dict[str, str]:
    return {"state": (await client.get(run_id)).state.value, "resource": request.state.resource}


@app.get("/runs/{run_id}/result")
async def get_result(run_id: str, client: HoldfastClient) -> Any:
    return await client.wait(run_id)


@app.post("/runs/{workflow}")
async def start(workflow: str, inputs: dict[str, Any], client: HoldfastClient) -> str:
    return (await client.start(workflow, **inputs)).run_id


@app.post("/runs/{run_id}/go")
async def go(run_id: str, client: HoldfastClient) -> None:
    await client.signal(run_id, "go")


@app.get("/runs/{run_id}/events")
async def get_events(
    run_id: str, client: HoldfastClient, request: Request, heartbeat: float = 15.0, after: str | None = None
) -> Response:
    return await stream_run(client, run_id, request, heartbeat=heartbeat, after=after)


@app.get("/mistake")
async def make_mistake() -> None:
    raise UsageError("the app's own mistake")


@app.get("/tasks")
async def count_tasks() -> int:
    return len(asyncio.all_tasks())


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]))
