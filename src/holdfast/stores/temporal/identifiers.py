"""The names of things in Temporal, shared by the code that writes them and the code that reads them.

**Task queues.** A Temporal worker receives all tasks of the task queues that it polls, including tasks that it has no
code for. So each workflow, and each version of it, has a task queue of its own in every queue: ``default/etl``,
``gpu/etl@2``. A worker polls the task queues of the workflows that it serves.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from holdfast.stores.served_versions import make_served_name

MAX_NAME_BYTES = 500
"""The longest name, in bytes, that becomes part of an id; a digest replaces longer ones."""

RESERVED_PREFIX = "holdfast."
"""The prefix of Holdfast's own messages, activities, and workflow types."""

ANSWER_SIGNAL = RESERVED_PREFIX + "answer"
"""Carries a person's answer to an approval: the approval's id, and the answer."""
PAUSE_SIGNAL = RESERVED_PREFIX + "pause"
RESUME_SIGNAL = RESERVED_PREFIX + "resume"

STATUS_QUERY = "status"
PLAN_QUERY = "plan"
"""Queries for people, so without the prefix."""
JOURNAL_QUERY = RESERVED_PREFIX + "journal"
"""Asks for a run's records, as its code saw them."""

WITHDRAW_UPDATE = RESERVED_PREFIX + "withdraw"
"""The update with which a step withdraws an approval of its run."""

AWAIT_RUN_ACTIVITY = RESERVED_PREFIX + "await run"
"""The activity that waits for a run that is not a child of the waiting run."""

PROGRAM_ACTIVITY = RESERVED_PREFIX + "program"
"""The activity that executes the program of a run: see ``program_updates``."""
RECORD_UPDATE = RESERVED_PREFIX + "record"
MESSAGES_UPDATE = RESERVED_PREFIX + "messages"
"""The updates that this activity sends to its run: what to record, and the request for what was sent to the run."""
STOP_NOTE = "stop"
REWIND_NOTE = "rewind"
"""The notes on its result: why the program stopped, and what a retry of the run takes back."""

ANNOUNCEMENT_TYPE = RESERVED_PREFIX + "announcement"
"""The type of the workflows that announce workflows to clients. No worker executes them."""
ANNOUNCEMENT_ID_PREFIX = "holdfast/workflows/"

ENTITY_TASK_QUEUE = "holdfast/entities"
"""The task queue of entity workflows (see ``entity_workflows``): every worker polls it."""
ACCOUNT_TYPE = RESERVED_PREFIX + "account"
"""The type of the entity workflows that hold the account of a budget."""
RESERVE_UPDATE = RESERVED_PREFIX + "reserve"
"""A step asks an account whether it may use something."""
IN_FLIGHT_QUERY = RESERVED_PREFIX + "in flight"
"""Asks an account for the steps that have a reservation."""
USED_SIGNAL = RESERVED_PREFIX + "used"
SET_BUDGET_SIGNAL = RESERVED_PREFIX + "budget"
"""Signals to an account: the usage of a step, and a new budget."""
SESSION_TYPE = RESERVED_PREFIX + "session"
"""The type of the entity workflows that hold the order of the runs in a session."""
JOIN_UPDATE = RESERVED_PREFIX + "join"
"""A run asks which run came before it in its session."""
JOINED_SIGNAL = RESERVED_PREFIX + "joined"
"""A client tells a session that it started a run."""

ENDING_NOTE = "ending"
"""The note on a recorded error that says whether the run failed or is dead."""
HANDOVER_FAILURE = RESERVED_PREFIX + "handed over"
"""The failure type of an activity whose worker stops."""

DEADLINE_SUMMARY = "deadline"
DELAY_SUMMARY = "delay"
"""The summaries of the timers for a run's deadline, and for the delay before it begins."""


def format_task_queue(queue: str, workflow: str, version: str) -> str:
    """The task queue of a workflow's runs and of their steps."""
    return f"{queue}/{make_served_name(workflow, version)}"


def format_account_id(run_id: str) -> str:
    """The workflow id of the account of a run's budget."""
    return _make_id("holdfast/budgets/", run_id)


def format_session_id(workflow: str, session: str) -> str:
    """The workflow id of a session."""
    return _make_id("holdfast/sessions/", f"{quote(workflow, safe='')}/{session}")


def _make_id(prefix: str, name: str) -> str:
    """An id that Temporal accepts, however long the name is."""
    encoded = name.encode()
    return prefix + (name if len(encoded) <= MAX_NAME_BYTES else hashlib.blake2b(encoded, digest_size=32).hexdigest())


def format_program_id(number: int) -> str:
    """The id of the activity that executes a program: the execution of its run may start several, one after another."""
    return f"program {number}"


def parse_program_id(activity_id: str) -> int:
    """The number in such an id."""
    return int(activity_id.removeprefix("program "))


def format_activity_id(position: int) -> str:
    """The id of the activity for the command at this position, counted from 1 for people."""
    return str(position + 1)


def parse_activity_position(activity_id: str) -> int:
    """The position of an activity's command."""
    return int(activity_id) - 1
