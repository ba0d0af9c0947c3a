"""What things are called in Temporal, by those who write them and those who read them.

**Task queues.** A Temporal worker is handed whatever is in the task queues that it polls, also work that it has no code
for. So each workflow, and each version of it, has a task queue of its own in every queue: ``default/etl``,
``gpu/etl@2``. A worker polls those of what it serves.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from urllib.parse import quote

from holdfast.stores.served_versions import make_served_name

MAX_NAME_BYTES = 500
"""Bytes of a name in an id; longer ones are told by a digest."""

RESERVED_PREFIX = "holdfast."
"""What the names of Holdfast's own messages and activities begin with."""

ANSWER_SIGNAL = RESERVED_PREFIX + "answer"
"""The signal with a person's answer to a question: its id, and the answer."""
PAUSE_SIGNAL = RESERVED_PREFIX + "pause"
RESUME_SIGNAL = RESERVED_PREFIX + "resume"

STATUS_QUERY = "status"
PLAN_QUERY = "plan"
"""Queries for people, in the words that they see."""
JOURNAL_QUERY = RESERVED_PREFIX + "journal"
"""The query for a run's records, as its code has seen them."""

WITHDRAW_UPDATE = RESERVED_PREFIX + "withdraw"
REMIND_UPDATE = RESERVED_PREFIX + "remind"
"""Updates by which a step of a run changes a question of it."""

AWAIT_RUN_ACTIVITY = RESERVED_PREFIX + "await run"
"""The activity that waits for a run which is no child of the one that waits."""

ANNOUNCEMENT_TYPE = RESERVED_PREFIX + "announcement"
"""The type of the workflows that tell clients which workflows there are. Nobody executes them."""
ANNOUNCEMENT_ID_PREFIX = "holdfast/workflows/"
"""What their ids begin with."""

ENTITY_TASK_QUEUE = "holdfast/keepers"
"""The task queue of entity workflows (see ``entity_workflows``): every worker polls it."""
ACCOUNT_TYPE = RESERVED_PREFIX + "account"
"""The type of those that keep the account of a budget."""
RESERVE_UPDATE = RESERVED_PREFIX + "reserve"
"""The update by which a step asks an account whether it may use something."""
IN_FLIGHT_QUERY = RESERVED_PREFIX + "in flight"
"""The query for the steps that something is reserved for."""
USED_SIGNAL = RESERVED_PREFIX + "used"
SET_BUDGET_SIGNAL = RESERVED_PREFIX + "budget"
"""Signals to an account: what a step has used, and another budget."""
SESSION_TYPE = RESERVED_PREFIX + "session"
"""The type of those that keep the order of the runs in a session."""
JOIN_UPDATE = RESERVED_PREFIX + "join"
"""The update by which a run learns which one came before it in its session."""
JOINED_SIGNAL = RESERVED_PREFIX + "joined"
"""The signal with which a session hears of a run when it is started."""

ENDING_NOTE = "ending"
"""The note on a recorded error: whether what it ended has failed or is dead."""
HANDOVER_FAILURE = RESERVED_PREFIX + "handed over"
"""The type of the failure of an activity whose worker stops."""

DEADLINE_SUMMARY = "deadline"
DELAY_SUMMARY = "delay"
"""What is written on the timer of a run's deadline, and on that which a run waits for before it begins."""


def format_task_queue(queue: str, workflow: str, version: str) -> str:
    """Where the tasks of a workflow's runs are, and of their steps."""
    return f"{queue}/{make_served_name(workflow, version)}"


def format_account_id(run_id: str) -> str:
    """The workflow id of the account of a run's budget."""
    return _make_id("holdfast/budgets/", run_id)


def format_session_id(workflow: str, session: str) -> str:
    """The workflow id of what keeps the order of the runs in a session."""
    return _make_id("holdfast/sessions/", f"{quote(workflow, safe='')}/{session}")


def _make_id(prefix: str, name: str) -> str:
    """An id that Temporal takes, whatever users have called things."""
    encoded = name.encode()
    return prefix + (name if len(encoded) <= MAX_NAME_BYTES else hashlib.blake2b(encoded, digest_size=32).hexdigest())


def format_activity_id(position: int) -> str:
    """The id of the activity for the command at this position: as people count."""
    return str(position + 1)


def parse_activity_position(activity_id: str) -> int:
    """The position of the command that an activity is for."""
    return int(activity_id) - 1


def format_timer_summary(position: int, name: str, due_at: float) -> str:
    """What is written on a timer, for people and for readers of the history."""
    return f"timer {position + 1}: {name}, due {datetime.fromtimestamp(due_at, UTC).isoformat(timespec='microseconds')}"


def parse_timer_position(summary: str) -> int | None:
    """The place of a timer, by what is written on it; ``None``: it is the run's deadline."""
    if summary == DEADLINE_SUMMARY:
        return None
    return int(summary.removeprefix("timer ").partition(":")[0]) - 1


def parse_timer_name(summary: str) -> str:
    """What a journal calls a timer, by what is written on it."""
    return summary.partition(": ")[2].rpartition(", due ")[0]


def parse_timer_due(summary: str) -> float:
    """When a timer is due, by what is written on it; the run's deadline is due before all."""
    return 0.0 if summary == DEADLINE_SUMMARY else datetime.fromisoformat(summary.rpartition(", due ")[2]).timestamp()
