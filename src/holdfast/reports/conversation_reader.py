"""Reads the conversation of a run from its journal, without the code of its agent."""

from __future__ import annotations

from holdfast.core.records import Attempt, RecordKind
from holdfast.reports.conversations import ConversationMessage, build_conversation
from holdfast.reports.formatting import format_count
from holdfast.reports.model_replies import is_agent_model_call
from holdfast.reports.program_conversation import build_program_conversation
from holdfast.reports.recorded_reply import AGENT_STEPS
from holdfast.services.lookup import find_run
from holdfast.services.timestamps import to_datetime
from holdfast.stores.contract import History, Store
from holdfast.stores.operations import Run
from holdfast.stores.served_versions import make_served_name


async def read_conversation(store: Store, run_id: str) -> list[ConversationMessage]:
    """The conversation of a run so far; empty if it is not an agent's and calls no models. Raises ``RunNotFound``."""
    run = await find_run(store, run_id)
    [history] = await store.get_histories([run.key])
    if any(record.kind is RecordKind.CALL for record in history.records):
        messages = build_program_conversation(history.records)
        return [*messages, *(_build_in_flight_notes(run, history) if messages else ())]
    spec = (await store.get_workflow_specs(run.workflow)).get(make_served_name(run.workflow, run.version))
    if not (spec is not None and spec.is_agent) and not any(is_agent_model_call(record) for record in history.records):
        return []
    return [*build_conversation(run.inputs, history.records), *_build_in_flight_notes(run, history)]


def _build_in_flight_notes(run: Run, history: History) -> list[ConversationMessage]:
    """The model call in flight."""
    if run.state.is_terminal:
        return []
    return [
        ConversationMessage(
            "note",
            f"the model {_describe_attempt(attempt)}: {format_count(attempt.attempt, 'attempt')} so far",
            attempt.position + 1,
        )
        for attempt in history.attempts.values()
        if attempt.name in AGENT_STEPS
    ]


def _describe_attempt(attempt: Attempt) -> str:
    if attempt.retry_at is None:
        return "is being asked"
    return f"is asked again at {to_datetime(attempt.retry_at):%Y-%m-%d %H:%M:%S} UTC"
