"""A run's row as it is reported: every field in its place, and the bytes of its JSON form."""

from __future__ import annotations

import json

import pytest

from holdfast.admission.usage import Usage
from holdfast.codec import encode_error
from holdfast.core.states import RunState
from holdfast.reports.run_info import RunErrorInfo, RunInfo
from holdfast.services.json_form import to_json_bytes
from holdfast.services.stalls import RunEnvironment, find_stall
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import RunUsage
from holdfast.stores.operations import CancelState, Run

ENVIRONMENT = RunEnvironment([], (), 100.0, {})
USAGE = Usage(calls=2, input_tokens=30, output_tokens=4)


def make_run(state: RunState, paused_at: float | None = None) -> Run:
    """A row whose values all differ."""
    return Run(
        key=1, id="greet-é", workflow="greet", queue="slow", state=state, epoch=3, owner=4, starter=5, delivery_count=6,
        max_deliveries=7, wake_at=8.5, waits_for="signal 'paid'", priority=9, deadline=10.0,
        inputs=b'{"name":"\xe2\x82\xac","$key":[1,null]}', digest=b"d", seed=b"s", output=b'\x01{"$tuple":[1,2]}',
        error=encode_error(ValueError("no\n")), tags=("a", "b"), python_version="3.12", created_at=11.25,
        finished_at=12.0, clock_started_at=13.0, cancel_state=CancelState.REQUESTED, paused_at=paused_at,
        rewind=None, parent="parent", forked_from="source", rewind_points=(), session="session",
        previous_run="previous", has_budget=True, version="v2", queue_key="key", is_limited=False, is_delivery=False,
        suspicion=0,
    )  # fmt: skip


@pytest.mark.parametrize("paused_at", [None, 14.0])
@pytest.mark.parametrize("state", RunState)
def test_every_field_comes_from_its_column(state: RunState, paused_at: float | None):
    run = make_run(state, paused_at)
    is_unfinished = not state.is_terminal
    is_paused = is_unfinished and paused_at is not None
    stall = find_stall(run, ENVIRONMENT)
    expected = RunInfo(
        id="greet-é",
        workflow="greet",
        state=state,
        queue="slow",
        queue_key="key",
        created_at=to_datetime(11.25),
        finished_at=to_datetime(12.0),
        inputs={"name": "€", "$key": [1, None]},
        output=(1, 2),
        error=RunErrorInfo("builtins.ValueError", "no\n"),
        waits_for="signal 'paid'" if state is RunState.WAITING else "",
        tags=("a", "b"),
        wake_at=to_datetime(8.5),
        is_paused=is_paused,
        paused_at=to_datetime(14.0) if is_paused else None,
        is_cancelling=is_unfinished,
        parent="parent",
        forked_from="source",
        version="v2",
        stall_advice=None if stall is None else stall.advice,
        stall_summary=None if stall is None else stall.summary,
        has_started=True,
        is_claimed=False,
        usage=USAGE,
    )
    assert (stall is not None) == is_unfinished
    assert RunInfo.from_row(run, ENVIRONMENT, RunUsage(USAGE, None)) == expected


@pytest.mark.parametrize("state", RunState)
def test_the_json_of_a_run_has_these_bytes(state: RunState):
    run = make_run(state)
    stall = find_stall(run, ENVIRONMENT)
    expected = {
        "id": "greet-é",
        "workflow": "greet",
        "state": state.value,
        "queue": "slow",
        "queue_key": "key",
        "created_at": "1970-01-01T00:00:11.250000Z",
        "finished_at": "1970-01-01T00:00:12Z",
        "inputs": {"name": "€", "$key": [1, None]},
        "output": [1, 2],
        "error": {"type": "builtins.ValueError", "message": "no\n"},
        "waits_for": "signal 'paid'" if state is RunState.WAITING else "",
        "tags": ["a", "b"],
        "wake_at": "1970-01-01T00:00:08.500000Z",
        "is_paused": False,
        "paused_at": None,
        "is_cancelling": not state.is_terminal,
        "parent": "parent",
        "forked_from": "source",
        "version": "v2",
        "stall_advice": None if stall is None else stall.advice,
        "stall_summary": None if stall is None else stall.summary,
        "has_started": True,
        "is_claimed": False,
        "usage": None,
    }
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    assert to_json_bytes(RunInfo.from_row(run, ENVIRONMENT)) == text.encode()
