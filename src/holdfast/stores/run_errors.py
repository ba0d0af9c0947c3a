"""Errors that stores record for a run, in the form that ``codec.recorded_errors`` reads, and how searches read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.core.states import RunState
from holdfast.errors import RunErased, StepOutcomeUnknown, WorkflowDisabled
from holdfast.stores import live_events
from holdfast.stores.operations import LiveEvent, Run

ONLY_CLAIMED_RUN = "this was the only run it held"


def encode_death_error(
    run_id: str,
    delivery_count: int,
    worker: str = "",
    events: Iterable[LiveEvent] = (),
    *,
    circumstance: str = ONLY_CLAIMED_RUN,
) -> bytes:
    """The encoded error of a run whose workers died too often.

    ``events`` are the live events of its steps. ``circumstance`` says why these deaths count against this run.
    """
    in_flight = _list_steps_in_flight(events)
    steps = ", ".join(
        f"step {step['position'] + 1} ({step['name']}, attempt {step['attempt']})" for step in in_flight[:3]
    )
    others = f" and {len(in_flight) - 3} more" if len(in_flight) > 3 else ""
    advice = f"In flight: {steps}{others}. Look at what that" if in_flight else "Look at what its next step"
    times = "once" if delivery_count == 1 else f"{delivery_count} times"
    last = f" (last worker {worker})" if worker else ""
    message = (
        f"the worker of run {run_id!r} died {times} while {circumstance}, with nothing new recorded in between"
        f"{last}. {advice} does to the process (memory, a crash in native code, os._exit, a blocked "
        f"event loop), then let it go on with: holdfast retry {run_id}"
    )
    attributes = {"run_id": run_id, "state": "dead", "error": ""}
    return _encode_error("RunDead", message, attributes, worker=worker, in_flight=in_flight)


def _list_steps_in_flight(events: Iterable[LiveEvent]) -> list[dict[str, Any]]:
    """The last attempt of each step that has begun and has no recorded outcome.

    A step that killed its worker within a tenth of a second may be missing: its live event was not written yet.
    """
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.kind != live_events.STARTED:
            continue
        try:
            data: Any = json.loads(event.data)
            found[event.position] = {
                "position": event.position,
                "name": str(data["name"]),
                "attempt": int(data.get("attempt") or 0),
                "at": event.at,
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return [found[position] for position in sorted(found)]


def encode_deadline_error(run_id: str) -> bytes:
    """The encoded error of a run by delivery whose deadline has passed."""
    return _encode_error("RunTimedOut", f"run {run_id!r} did not end within its deadline", {})


def encode_corrupt_error(message: str) -> bytes:
    """The encoded error of a run whose row cannot be read."""
    return _encode_error("StoreCorrupt", message, {})


def _encode_error(name: str, message: str, attributes: dict[str, Any], **extra: Any) -> bytes:
    error: dict[str, Any] = {
        "type": f"holdfast.errors.{name}",
        "qualname": name,
        "message": message,
        "args": None,
        "attributes": attributes,
        "traceback": "",
        "cause": None,
        **extra,
    }
    return json.dumps(error, ensure_ascii=False, separators=(",", ":")).encode()


def encode_child_failure(run_id: str, state: RunState, error: bytes | None) -> bytes:
    """The recorded outcome of a child that ended without a result.

    It holds enough to raise what the child's own caller would have seen.
    """
    return json.dumps({"child": run_id, "state": state, "error": None if error is None else error.decode()}).encode()


def is_child_failure(payload: bytes | None) -> bool:
    """Whether ``encode_child_failure`` made this payload.

    Otherwise the child could not be started, or is not the run that was meant.
    """
    return (payload or b"").startswith(b'{"child": ')


def make_unknown_outcome_error(run_id: str, step: str, restored_from: str = "") -> StepOutcomeUnknown:
    """The recorded error of a ``once`` step that was in flight when its worker died.

    ``restored_from``: its run was restored from this backup, and the step may have been executed after that was made.
    """
    reason = (
        f"has no outcome in {restored_from}, from which its run was restored, and may have been executed after that "
        f"was made"
        if restored_from
        else "was in flight when its worker died"
    )
    return StepOutcomeUnknown(
        f"step {step!r} of run {run_id!r} {reason}. Its effect is `once`, so it is not run again: it may or may not "
        f"have happened. Check first, then act on what you find.",
        step,
    )


def make_erased_error(run_id: str) -> RunErased:
    """The error for using a run that was erased."""
    return RunErased(
        f"what run {run_id!r} recorded was erased, so it cannot be retried, settled, forked, or joined: start a new "
        f"run under another id",
        run_id,
    )


def make_disabled_error(workflow: str, consequence: str) -> WorkflowDisabled:
    """The error for a run that is not started because its workflow is disabled; ``consequence`` completes it."""
    return WorkflowDisabled(
        f"workflow {workflow!r} is disabled: {consequence}. `holdfast enable {workflow}` enables it again."
    )


def get_error_text(error: bytes | None) -> str:
    """The text that a search finds in an encoded error: its type and its message."""
    try:
        fields: Any = json.loads(error or b"")
        return f"{fields['type']} {fields['message']}"
    except (ValueError, TypeError, KeyError):
        return ""


def has_text(run: Run, text: str) -> bool:
    """Whether a search for a text finds this run: see ``RunFilter.text``."""
    folded = text.casefold()
    return any(folded in words.casefold() for words in (run.id, run.workflow, *run.tags, get_error_text(run.error)))
