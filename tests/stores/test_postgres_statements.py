"""Every statement runs, and finds what it wants by an index, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg")

from postgres_server import database

from holdfast.stores.postgres.adapters import Blobs, Floats, Ints, Texts
from holdfast.stores.postgres.connections import Connection, connect
from holdfast.stores.postgres.dialect import Bulk
from holdfast.stores.postgres.statements import PgStatements

SQL = PgStatements("holdfast")
TWO_VALUES = {Ints: [1, 2], Floats: [1.0, 2.0], Texts: ["1", "2"], Blobs: [b"1", b"2"]}


def all_statements() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in filter(str.isupper, dir(SQL)):
        value = getattr(SQL, name)
        if isinstance(value, str):
            found[name] = value
        elif name in ("LIST_BY", "HOW_MANY"):
            found.update({f"{name}.{part}": text for part, text in value.items()})
    return found


def complete(text: str) -> str:
    """A statement with all the conditions that can be put into it."""
    filters = "".join(SQL.FILTERS.values()) + SQL.CONTAINING.replace("{test}", 'COLLATE "C" ILIKE %s')
    conditions = " AND ".join(SQL.APPROVAL_CONDITIONS.values())
    return text.replace("{filters}", filters).replace("{conditions}", conditions).replace("{test}", "= %s")


def some_values(text: str) -> Any:
    if isinstance(text, Bulk):
        return [kind(TWO_VALUES[kind]) for kind in text.columns]
    found = re.findall(r"%(?:\((\w+)\))?s(::[\w ]+\[\])?", text.replace("%%", ""))
    if any(name for name, _ in found):
        return {name: "{1}" if array or name in ("workflows", "words") else "1" for name, array in found}
    return ["{1}" if array else "1" for _, array in found]


@pytest.fixture(scope="module")
def connection() -> Iterator[Connection]:
    with database() as url:
        connection = connect(url)
        yield connection
        connection.close()


@pytest.mark.parametrize("name", [name for name in all_statements() if name != "CONTAINING"])
def test_every_statement_runs(name: str, connection: Connection):
    text = all_statements()[name]
    whole = text if isinstance(text, Bulk) else complete(text)
    with connection.transaction(force_rollback=True):
        connection.execute(whole, some_values(whole))  # type: ignore[arg-type]


# Plans


RUNS = 20_000
FILL = f"""
INSERT INTO holdfast.runs (key, id, workflow, queue, state, epoch, owner, starter, deliveries, max_deliveries, ready,
    wake_at, waits_for, priority, deadline, unclaimed, cancel, python, created_at, began_at, finished_at, parent,
    forked_from, rewound, digest, seed, tags, inputs, session, previous, has_budget, version)
SELECT k, 'run-' || k, 'flow-' || k % 5, 'default', CASE k % 4 WHEN 0 THEN 'running' WHEN 1 THEN 'pending' WHEN 2
    THEN 'waiting' ELSE 'completed' END, 1, CASE WHEN k % 4 = 0 THEN k % 7 END, k % 7, 0, 3,
    CASE k % 4 WHEN 1 THEN 1 WHEN 2 THEN 0 END, k, '', k % 3, NULL, k % 2, CASE k % 11 WHEN 0 THEN 'asked' ELSE '' END,
    '', k, k, CASE WHEN k % 4 = 3 THEN k END, CASE k % 10 WHEN 0 THEN '' ELSE 'run-' || k / 10 END, '', '[]',
    int8send(k), int8send(k), '[]', '1', CASE k % 3 WHEN 0 THEN 's' || k % 100 ELSE '' END, '', 0, ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.records (run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview,
    payload) SELECT k, seq, 1, seq, 1, 1, 1, 1, 1, 1, 'step', '', '1'
FROM generate_series(1, {RUNS}) k CROSS JOIN generate_series(0, 2) seq;
INSERT INTO holdfast.signals (run, name, sent_at, payload, position) SELECT k, 's', 1, '1', CASE k % 2 WHEN 0 THEN 1 END
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.links (parent, position, child, awaited) SELECT k / 2, k % 2, k, k % 3
FROM generate_series(2, {RUNS}) k;
INSERT INTO holdfast.run_tags (run, tag) SELECT k, 'tag-' || k % 3 FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.usages (run, above, calls, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced, seconds,
    reserved_calls, reserved_tokens, reserved_nano_usd, short) SELECT k, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.notices (run, position, part, number, stays, kind, at, data)
SELECT k, 0, '', 1, k % 2, 'text',
    1, '1'
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.attempts (run, position, attempt, intent, error, at, name) SELECT k, 0, 1, 0, '', 1, ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.reservations (run, position, calls, tokens, nano_usd) SELECT k, 0, 1, 1, 1
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.signal_keys (run, dedup) SELECT k, 'd' FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.approvals (id, run, position, state, asked_at, asked_of, reminders, answered_by, withdrawn_in,
    question, form, arguments) SELECT 'a' || k, k, 0, CASE k % 100 WHEN 0 THEN 'open' ELSE 'answered' END, k, '', 0, '',
    0, '[]', '', '' FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.workers (id, token, name, host, pid, state, workflows, started_at, lease_until, beat_at)
SELECT k, '', '', '', 1, 'live', '[]', 1, 1, 1 FROM generate_series(1, 2000) k;
INSERT INTO holdfast.memories (namespace, key, created_at, updated_at, value, text, size)
SELECT 'n' || k % 10, 'k' || k, 1, 1, '1', 'tea', 2 FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.memory_words (word, space, memory, times) SELECT 'w' || k % 50, int8send(k % 10), k, 1
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.blobs (hash, size, data) SELECT int8send(k), 1, '1' FROM generate_series(1, {RUNS}) k;
UPDATE holdfast.runs SET by_delivery = 1, deadline = key WHERE key % 5 = 0;
UPDATE holdfast.runs SET queue = 'q' || key % 3, queue_key = 'c' || key % 100, due_as = 3, turn = key / 100,
    dedup = 'd' || key, ready = CASE WHEN ready = 1 THEN 2 + key / 8 % 5 ELSE ready END WHERE key % 8 < 4;
INSERT INTO holdfast.queues (name, limits, by_hand, concurrency, key_concurrency, counts_tokens, turns, used, open_at,
    settled) SELECT 'q' || k, '', 0, 10, 2, 1, '{{}}', '', 0, 1 FROM generate_series(0, 2) k;
INSERT INTO holdfast.queue_turns (queue, priority, key, turn, at) SELECT 'q' || k % 3, k % 2, 'c' || k, k, k
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.queue_keys (queue, key, aside, open_at, used, until) SELECT 'q' || k % 3, 'c' || k, k % 2, k, '', k
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.queue_charges (queue, key, tokens, at) SELECT 'q' || k % 3, 'c' || k, k, k
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.documents (kind, name, version, created_at, updated_at, data) SELECT 'k' || k % 2, 'n' || k, 1, 1,
    1, '1' FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.audit (at, who, name, action, target, outcome, remote) SELECT k, '', '', '', '', '', ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.spending (day, workflow, model, slot, calls, input_tokens, output_tokens, cached_tokens, nano_usd,
    unpriced) SELECT 'd' || k % 500, 'flow-' || k % 5, 'm', k / 500, 1, 1, 1, 1, 1, 1
FROM generate_series(1, {RUNS}) k;
"""
LARGE = {
    "runs", "records", "signals", "links", "run_tags", "usages", "notices", "attempts", "reservations", "signal_keys",
    "approvals", "memories", "memory_words", "blobs", "queue_turns", "queue_keys", "queue_charges",
    "documents", "audit", "spending",
}  # fmt: skip
READ_WHOLE = {"COUNT_RUNS", "LIST_APPROVALS", "CLOSED_APPROVALS"}
"""What has to read a table: all of it is counted, or any condition may come with it."""
BY_ORDER = {
    "KNOWN_WORKFLOWS", "COUNT_SOME", "SHORT", "FORGET_LISTENERS", "FORGET_WORKERS", "FIRST_AND_LAST_CREATED", "WORKERS",
}  # fmt: skip
"""What takes the first or the last row of an index, or has an index of its own."""
OF_QUEUES = {"runs_queued", "runs_of_keys", "runs_executed", "queue_keys_aside"}
INDEXES = {
    "FENCES": {"runs_pkey", "runs_id_key", "links_child"},
    "APPEND_FENCED": {"runs_pkey"},
    "LOCK_ACCOUNTS": {"runs_pkey", "runs_id_key", "usages_pkey"},
    "DUE": {"runs_due", "runs_pkey"},
    "PROMOTE_DUE": {"runs_waking", "runs_pkey"},
    "HAS_DUE": {"runs_due", "runs_waking", "runs_suspects", *OF_QUEUES},
    "NEXT_READY": {"runs_due", "runs_suspects", *OF_QUEUES},
    "NEXT_TIMER": {"runs_waking"},
    "SUSPECTS": {"runs_suspects"},
    "CLAIM": {"runs_pkey"},
    "FINISH_RUN": {"runs_pkey"},
    "WAITING": {"links_child"},
    "LINKS": {"links_pkey"},
    "SENT": {"signals_pkey"},
    "MAILBOX": {"signals_pkey"},
    "NEW_SIGNALS": {"signals_new", "runs_pkey"},
    "JOURNAL": {"records_pkey"},
    "RECORD_EPOCH": {"records_pkey"},
    "NEWEST_OF_SESSION": {"runs_sessions"},
    "FIND_ORPHAN": {"runs_orphans"},
    "HELD_RUNS": {"runs_held"},
    "RELEASE_ALL": {"runs_held", "runs_pkey"},
    "REQUESTS": {"runs_asked"},
    "LIST_BY_KEY": {"runs_pkey"},
    "COUNT_SOME": {"runs_listed"},
    "COUNT_UNFINISHED": {"runs_listed"},
    "CREATED_BELOW": {"runs_created"},
    "LIST_STRETCH": {"runs_listed"},
    "LIST_STATE": {"runs_in_state"},
    "LIST_BY.owner": {"runs_held"},
    "LIST_BY.parent": {"runs_children"},
    "LIST_BY.tag": {"run_tags_listed", "runs_pkey"},
    "LIST_BY.id_prefix": {"runs_id_key"},
    "LIST_BY.created": {"runs_created"},
    "HOW_MANY.owner": {"runs_held"},
    "HOW_MANY.parent": {"runs_children"},
    "HOW_MANY.tag": {"run_tags_listed"},
    "HOW_MANY.id_prefix": {"runs_id_key"},
    "HOW_MANY.created": {"runs_created"},
    "NEWEST_CREATED": {"runs_created"},
    "KNOWN_WORKFLOWS": {"runs_listed"},
    "NEW_NOTICES": {"notices_pkey"},
    "LAST_RECORD": {"runs_id_key", "records_pkey"},
    "SEARCH_MEMORIES": {"memory_words_pkey", "memories_pkey"},
    "EXECUTED": {"runs_executed"},
    "STRETCH": {"runs_queued"},
    "ASIDE_KEYS": {"queue_keys_aside"},
    "ASIDE_RUNS": {"runs_of_keys"},
    "KEY_USED": {"queue_keys_pkey"},
    "KEY_TURN": {"queue_turns_pkey"},
    "TAKE_CHARGES": {"queue_charges_of"},
    "SET_ASIDE": {"runs_of_keys", "runs_pkey"},
    "KEEP_KEY": {"runs_of_keys"},
    "DEDUP": {"runs_dedup"},
    "QUEUE_CONTENT": {"runs_limited"},
    "UNLIMITED_STRETCH": {"runs_listed"},
    "LIMITED_RUNS": {"runs_limited", "runs_pkey"},
    "OLD_TURNS": {"queue_turns_old", "runs_limited"},
    "OLD_KEYS": {"queue_keys_old", "runs_of_keys"},
    "OVERDUE": {"runs_expiring"},
    "STILL_OVERDUE": {"runs_pkey"},
    "DELIVERIES": {"runs_pkey"},
    "FORGET_LISTENERS": {"runs_delivered", "runs_started"},
    "FORGET_WORKERS": {"runs_created", "runs_started"},
    "WORKERS": {"runs_held", "runs_started"},
    "DOCUMENTS": {"documents_pkey"},
    "DOCUMENTS_NAMED": {"documents_pkey"},
    "AUDIT": {"audit_pkey"},
    "TRIM_AUDIT": {"audit_at", "audit_pkey"},
    "SPEND": {"runs_pkey"},
    "SPENDING": {"spending_pkey"},
    "FIRST_AND_LAST_CREATED": {"runs_created"},
    "CREATED_ON": {"runs_created"},
}


def steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from steps(inner)


def bare(text: str) -> str:
    """A list that nothing narrows any more: what is checked row by row must not lead to another index."""
    return text.replace("{filters}", "").replace("{conditions}", SQL.APPROVAL_CONDITIONS["only_open"])


def plan_of(connection: Connection, text: str) -> list[dict[str, Any]]:
    """The plan that is kept, whatever the values are."""
    numbered = iter(range(1, 100))
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return f"${next(numbered)}" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    prepared = re.sub(r"%(?:\((\w+)\))?s", number, text.replace("%%", "%"))
    values = some_values(text)
    values = [values[name] for name in names] if isinstance(values, dict) else values
    given = ", ".join("'{}'" if isinstance(value, list) or value == "{1}" else "'1'" for value in values)
    connection.execute(f"PREPARE p AS {prepared}")  # type: ignore[arg-type]
    try:
        row = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE p{f'({given})' if given else ''}").fetchone()  # type: ignore[arg-type]
    finally:
        connection.execute("DEALLOCATE p")
    assert row is not None
    return list(steps(row[0][0]["Plan"]))


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def filled(request: pytest.FixtureRequest) -> Iterator[Connection]:
    with database() as url:
        connection = connect(url)
        connection.execute(FILL)  # type: ignore[arg-type]
        if request.param == "with statistics":
            connection.execute("ANALYZE")
        yield connection
        connection.close()


@pytest.mark.parametrize("name", [name for name in all_statements() if name not in ("CONTAINING", *READ_WHOLE)])
def test_nothing_reads_a_large_table_from_end_to_end(name: str, filled: Connection):
    plan = plan_of(filled, bare(all_statements()[name]))
    for step in plan:
        if step.get("Relation Name") in LARGE:
            assert step["Node Type"] != "Seq Scan", f"reads all of {step['Relation Name']}"
        if step.get("Index Name", "").startswith(tuple(LARGE)):
            narrowed = "Index Cond" in step or name in BY_ORDER
            assert narrowed, f"reads all of {step['Index Name']}"
        assert step["Node Type"] not in ("Hash Join", "Merge Join")


@pytest.mark.parametrize("name", INDEXES)
def test_each_question_is_answered_by_its_own_index(name: str, filled: Connection):
    plan = plan_of(filled, bare(all_statements()[name]))
    assert {step["Index Name"] for step in plan if step.get("Index Name", "").startswith(tuple(LARGE))} == INDEXES[name]


CLAIMS = ["DUE", "PROMOTE_DUE", "HAS_DUE", "NEXT_READY", "NEXT_TIMER", "SUSPECTS", "STRETCH", "ASIDE_RUNS"]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_does_not_read_what_is_due_of_other_versions(name: str, filled: Connection):
    plan = plan_of(filled, bare(all_statements()[name]))
    due = ("runs_due", "runs_waking", "runs_suspects", "runs_queued", "runs_of_keys")
    found = [step for step in plan if step.get("Index Name") in due]
    assert found
    assert all("version" in step["Index Cond"] for step in found)
    assert name not in ("STRETCH", "ASIDE_RUNS") or "Sort" not in {step["Node Type"] for step in plan}


@pytest.mark.parametrize(
    "name", ["LIST_BY_KEY", "LIST_STRETCH", "LIST_STATE", *(f"LIST_BY.{part}" for part in SQL.LIST_BY)]
)
def test_what_is_checked_row_by_row_leads_to_no_other_index(name: str, filled: Connection):
    plan = plan_of(filled, all_statements()[name].replace("{filters}", "".join(SQL.FILTERS.values())))
    used = {step["Index Name"] for step in plan if "Index Name" in step}
    assert INDEXES[name] <= used <= INDEXES[name] | {"run_tags_pkey", "run_tags_listed"}
