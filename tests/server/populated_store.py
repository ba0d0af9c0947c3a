"""A store with something of everything in it, so that requests which are made up lead somewhere now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from asgi_server import AsgiServer

from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import FinishRun
from holdfast.stores.workers import NewWorker

Known = Mapping[str, Sequence[str]]
"""What there is, by the word for it in paths."""

RUNS = ("done", "failed", "held", "waiting")


async def furnish(served: AsgiServer, token: str) -> Known:
    """Runs in several states, a schedule, a queue, a memory, deliveries, a question, a policy."""
    caller = served.caller(token)

    async def ask(method: str, path: str, body: Any) -> Any:
        answer = await caller.request(method, path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    store = (await served.app.platform.tenants.get_tenant("default")).store
    await store.announce_workflows([WorkflowSpec("known", ("payload",))])
    for id in RUNS:
        await ask("POST", "/v1/runs", {"workflow": "known", "args": [1], "id": id, "budget": {"tokens": 9}})
    worker = await store.workers.register(NewWorker("test", "test", 1, ("known",)), 60.0)
    done, failed, _ = await store.claims.claim(worker, workflows=["known"], queues=None, limit=3)
    await store.commit(
        [
            FinishRun(done.key, done.epoch, RunState.COMPLETED, b"1", None, 0.0),
            FinishRun(failed.key, failed.epoch, RunState.FAILED, None, encode_error(ValueError("no")), 0.0),
        ]
    )
    await ask("PUT", "/v1/schedules/often", {"workflow": "known", "every": "1 h", "args": [1]})
    await ask("PATCH", "/v1/queues/known", {"concurrency": 2})
    await ask("PUT", "/v1/memories/notes/known", {"value": {"a": 1}})
    await ask("PUT", "/v1/agents/known/policy", {"runs_per_day": 1000})
    deliveries = list[str]()
    for number in range(5):
        await ask("POST", "/v1/addresses/place/send", {"payload": number, "id": f"sent-{number}"})
        deliveries.append((await ask("POST", "/v1/addresses/place/claim?wait=20", {"name": f"host-{number}"}))["id"])
    await ask("POST", f"/v1/deliveries/{deliveries[0]}/ask", {"name": "requested", "question": "May I?"})
    [question] = (await ask("GET", "/v1/approvals", None))["items"]
    return {
        "runs": [*RUNS, "sent-0", "sent-1"],
        "approvals": [question["id"]],
        "schedules": ["often"],
        "queues": ["known"],
        "namespace": ["notes"],
        "key": ["known"],
        "agents": ["known", "place"],
        "addresses": ["place"],
        "deliveries": deliveries,
    }


def known_parts(path: str, known: Known) -> dict[str, Sequence[str]]:
    """For each part of a path that has a name: what it may be of what there is."""
    parts = path.strip("/").split("/")
    named = {part[1:-1]: before for before, part in pairwise(parts) if part.startswith("{")}
    return {name: known[name] if name in known else known.get(before, ()) for name, before in named.items()}
