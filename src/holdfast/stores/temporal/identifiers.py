"""What things are called in Temporal, by those who write them and those who read them.

**Task queues.** A Temporal worker is handed whatever is in the task queues that it polls, also work that it has no code
for. So each workflow, and each version of it, has a task queue of its own in every queue: ``default/etl``,
``gpu/etl@2``. A worker polls those of what it serves.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from urllib.parse import quote

from holdfast.stores.served_versions import served_name

LONGEST_NAME = 500
"""Bytes of a name in an id; longer ones are told by a digest."""

PREFIX = "holdfast."
"""What the names of Holdfast's own messages and activities begin with."""

ANSWER = PREFIX + "answer"
"""The signal with a person's answer to a question: its id, and the answer."""
PAUSE = PREFIX + "pause"
RESUME = PREFIX + "resume"

STATUS = "status"
PLAN = "plan"
"""Queries for people, in the words that they see."""
JOURNAL = PREFIX + "journal"
"""The query for a run's records, as its code has seen them."""

WITHDRAW = PREFIX + "withdraw"
REMIND = PREFIX + "remind"
"""Updates by which a step of a run changes a question of it."""

AWAIT_RUN = PREFIX + "await run"
"""The activity that waits for a run which is no child of the one that waits."""

ANNOUNCEMENT = PREFIX + "announcement"
"""The type of the workflows that tell clients which workflows there are. Nobody executes them."""
ANNOUNCED_AS = "holdfast/workflows/"
"""What their ids begin with."""

KEEPERS = "holdfast/keepers"
"""The task queue of entity workflows (see ``entity_workflows``): every worker polls it."""
ACCOUNT = PREFIX + "account"
"""The type of those that keep the account of a budget."""
RESERVE = PREFIX + "reserve"
"""The update by which a step asks an account whether it may use something."""
IN_FLIGHT = PREFIX + "in flight"
"""The query for the steps that something is reserved for."""
USED = PREFIX + "used"
BUDGET = PREFIX + "budget"
"""Signals to an account: what a step has used, and another budget."""
SESSION = PREFIX + "session"
"""The type of those that keep the order of the runs in a session."""
JOIN = PREFIX + "join"
"""The update by which a run learns which one came before it in its session."""
JOINED = PREFIX + "joined"
"""The signal with which a session hears of a run when it is started."""

ENDING = "ending"
"""The note on a recorded error: whether what it ended has failed or is dead."""
HANDED_OVER = PREFIX + "handed over"
"""The type of the failure of an activity whose worker stops."""

DEADLINE = "deadline"
DELAY = "delay"
"""What is written on the timer of a run's deadline, and on that which a run waits for before it begins."""


def task_queue(queue: str, workflow: str, version: str) -> str:
    """Where the tasks of a workflow's runs are, and of their steps."""
    return f"{queue}/{served_name(workflow, version)}"


def account_id(run_id: str) -> str:
    """The workflow id of the account of a run's budget."""
    return _short("holdfast/budgets/", run_id)


def session_id(workflow: str, session: str) -> str:
    """The workflow id of what keeps the order of the runs in a session."""
    return _short("holdfast/sessions/", f"{quote(workflow, safe='')}/{session}")


def _short(prefix: str, name: str) -> str:
    """An id that Temporal takes, whatever users have called things."""
    encoded = name.encode()
    return prefix + (name if len(encoded) <= LONGEST_NAME else hashlib.blake2b(encoded, digest_size=32).hexdigest())


def activity_id(position: int) -> str:
    """The id of the activity for the command at this position: as people count."""
    return str(position + 1)


def position_of(activity_id: str) -> int:
    """The position of the command that an activity is for."""
    return int(activity_id) - 1


def timer_summary(position: int, name: str, due: float) -> str:
    """What is written on a timer, for people and for readers of the history."""
    return f"timer {position + 1}: {name}, due {datetime.fromtimestamp(due, UTC).isoformat(timespec='microseconds')}"


def timer_position(summary: str) -> int | None:
    """The place of a timer, by what is written on it; ``None``: it is the run's deadline."""
    if summary == DEADLINE:
        return None
    return int(summary.removeprefix("timer ").partition(":")[0]) - 1


def timer_name(summary: str) -> str:
    """What a journal calls a timer, by what is written on it."""
    return summary.partition(": ")[2].rpartition(", due ")[0]


def timer_due(summary: str) -> float:
    """When a timer is due, by what is written on it; the run's deadline is due before all."""
    return 0.0 if summary == DEADLINE else datetime.fromisoformat(summary.rpartition(", due ")[2]).timestamp()
