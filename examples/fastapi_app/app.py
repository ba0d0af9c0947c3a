"""The app: it starts a run for each message, streams what happens in it, and takes the answers to its questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse

from holdfast.integrations.fastapi import HoldfastClient, error_handlers, holdfast_lifespan, stream_run
from holdfast.reports.events import Event

from .clerk import clerk

PAGE = Path(__file__).with_name("page.html")
TOOLS = ("find_order", "refund")

app = FastAPI(
    title="A chat with a clerk",
    lifespan=holdfast_lifespan(workflows=[clerk]),
    exception_handlers=error_handlers,
)


@app.get("/")
async def get_page() -> FileResponse:
    return FileResponse(PAGE)


@app.get("/chats/{chat}")
async def list_messages(chat: str, client: HoldfastClient) -> list[dict[str, str]]:
    """What a page shows that is loaded again: the messages of a chat, and their runs."""
    runs = await client.list(tag=f"chat:{chat}", limit=100)
    return [{"run": run.id, "text": str(run.inputs["prompt"])} for run in reversed(runs)]


@app.post("/chats/{chat}/messages/{id}", status_code=202)
async def send_message(
    chat: str, id: str, text: Annotated[str, Body(embed=True, max_length=1000)], client: HoldfastClient
) -> dict[str, str]:
    """Start a run. The page chooses the message's id, so it can send the message again if it gets no response."""
    starter = client.options(id=f"{chat}-{id}", tags=[f"chat:{chat}"])
    run = await starter.start("clerk", text, session=chat)
    return {"run": run.run_id}


@app.get("/runs/{run_id}/events")
async def get_events(run_id: str, request: Request, client: HoldfastClient, after: str | None = None) -> Response:
    return await stream_run(client, run_id, request, after=after, encode=encode_event)


@app.post("/runs/{run_id}/approvals/{id}", status_code=204)
async def answer_approval(
    run_id: str, id: str, approved: Annotated[bool, Body(embed=True)], client: HoldfastClient
) -> None:
    if id not in [approval.id for approval in await client.approvals(run_id, all=True)]:
        raise HTTPException(404, "The run has not asked that.")
    if approved:
        await client.approve(id, by="the customer")
    else:
        await client.deny(id, by="the customer")


def encode_event(event: Event) -> Any:
    """What the browser gets to see of an event."""
    match event.kind:
        case "text" | "retracted":
            return {"step": event.step, "text": event.text}
        case "step" if event.name in TOOLS and event.data["ok"]:
            return {"step": event.step, "tool": event.name}
        case "approval":
            shown = ("id", "state", "tool", "arguments", "approved")
            return {name: event.data[name] for name in shown if name in event.data}
        case "ended":
            return {"state": event.data["state"]}
    return None
