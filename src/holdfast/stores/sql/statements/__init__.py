"""Every SQL statement that the stores share, written once: see ``templates``.

There is a module for each subject. ``Statements`` has all of them as attributes. Statements that only one database has
are in its own ``statements`` module.
"""

from __future__ import annotations

from holdfast.stores.sql.statements.approvals import ApprovalStatements, LiveEventStatements
from holdfast.stores.sql.statements.claims import ClaimStatements, ScheduleStatements, WorkerStatements
from holdfast.stores.sql.statements.erasure import ErasureStatements
from holdfast.stores.sql.statements.journals import JournalStatements, MailboxStatements, RewindStatements
from holdfast.stores.sql.statements.lists import ListStatements
from holdfast.stores.sql.statements.queues import QueueStatements
from holdfast.stores.sql.statements.retention import RetentionStatements
from holdfast.stores.sql.statements.runs import RunStatements
from holdfast.stores.sql.statements.usage import ServerStatements, UsageStatements, ValueStatements

MAX_INT64 = 2**63 - 1
"""A limit, or an upper bound, that nothing reaches."""


class Statements(
    RunStatements,
    JournalStatements,
    MailboxStatements,
    RewindStatements,
    ApprovalStatements,
    LiveEventStatements,
    ClaimStatements,
    WorkerStatements,
    ScheduleStatements,
    QueueStatements,
    ListStatements,
    UsageStatements,
    ValueStatements,
    ServerStatements,
    RetentionStatements,
    ErasureStatements,
):
    """All statements, with the texts of one database."""
