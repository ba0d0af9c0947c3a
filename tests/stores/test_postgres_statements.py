"""Every statement runs, and uses an index, whatever the statistics say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg")

from postgres_server import database

from holdfast.stores.postgres.adapters import BytesArray, FloatArray, IntArray, TextArray
from holdfast.stores.postgres.connections import Connection, connect
from holdfast.stores.postgres.dialect import BulkStatement
from holdfast.stores.postgres.statements import PgStatements

SQL = PgStatements("holdfast")
TWO_VALUES = {IntArray: [1, 2], FloatArray: [1.0, 2.0], TextArray: ["1", "2"], BytesArray: [b"1", b"2"]}


def all_statements() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in filter(str.isupper, dir(SQL)):
        value = getattr(SQL, name)
        if isinstance(value, str):
            found[name] = value
        elif name in ("LIST_BY_CONDITION", "COUNT_BY_CONDITION"):
            found.update({f"{name}.{part}": text for part, text in value.items()})
    return found


def complete(text: str) -> str:
    """A statement with all the conditions that can be put into it."""
    filters = "".join(SQL.FILTERS.values()) + SQL.TEXT_CONDITION.replace("{test}", 'COLLATE "C" ILIKE %s')
    conditions = " AND ".join(SQL.APPROVAL_CONDITIONS.values())
    return text.replace("{filters}", filters).replace("{conditions}", conditions).replace("{test}", "= %s")


def some_values(text: str) -> Any:
    if isinstance(text, BulkStatement):
        return [kind(TWO_VALUES[kind]) for kind in text.array_types]
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


@pytest.mark.parametrize("name", [name for name in all_statements() if name != "TEXT_CONDITION"])
def test_every_statement_runs(name: str, connection: Connection):
    text = all_statements()[name]
    whole = text if isinstance(text, BulkStatement) else complete(text)
    with connection.transaction(force_rollback=True):
        connection.execute(whole, some_values(whole))  # type: ignore[arg-type]


# Plans


RUNS = 20_000
FILL = f"""
INSERT INTO holdfast.runs (key, id, workflow, queue, state, epoch, owner, starter, delivery_count, max_deliveries,
ready_state,
    wake_at, waits_for, priority, deadline, result_claim, cancel_state, python_version, created_at, clock_started_at,
    finished_at, parent, forked_from, rewind_points, digest, seed, tags, inputs, session, previous_run, has_budget,
    version)
SELECT k, 'run-' || k, 'flow-' || k % 5, 'default', CASE k % 4 WHEN 0 THEN 'running' WHEN 1 THEN 'pending' WHEN 2
    THEN 'waiting' ELSE 'completed' END, 1, CASE WHEN k % 4 = 0 THEN k % 7 END, k % 7, 0, 3, CASE k % 4 WHEN 1 THEN 1
    WHEN 2 THEN 0 END, k, '', k % 3, NULL, k % 2, CASE k % 11 WHEN 0 THEN 'requested' ELSE '' END, '', k, k, CASE WHEN k
    % 4 = 3 THEN k END, CASE k % 10 WHEN 0 THEN '' ELSE 'run-' || k / 10 END, '', '[]', int8send(k), int8send(k), '[]',
    '1', CASE k % 3 WHEN 0 THEN 's' || k % 100 ELSE '' END, '', 0, ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.records (run, seq, kind, position, ok, at, started_at, attempts, worker, epoch, name, preview,
    payload) SELECT k, seq, 1, seq, 1, 1, 1, 1, 1, 1, 'step', '', '1'
FROM generate_series(1, {RUNS}) k CROSS JOIN generate_series(0, 2) seq; INSERT INTO holdfast.signals (run, name,
sent_at, payload, position) SELECT k, 's', 1, '1', CASE k % 2 WHEN 0 THEN 1 END FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.links (parent, position, child, link_state) SELECT k / 2, k % 2, k, k % 3 FROM generate_series(2,
{RUNS}) k; INSERT INTO holdfast.run_tags (run, tag) SELECT k, 'tag-' || k % 3 FROM generate_series(1, {RUNS}) k; INSERT
INTO holdfast.usages (run, parent_key, calls, input_tokens, output_tokens, cached_tokens, nano_usd, unpriced, seconds,
    reserved_calls, reserved_tokens, reserved_nano_usd, short_positions) SELECT k, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ''
FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.live_events (run, position, stream, number, is_permanent, kind, at, data)
SELECT k, 0, '', 1, k % 2, 'text',
    1, '1'
FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.attempts (run, position, attempt, intent, error, at, name)
SELECT k, 0, 1, 0, '', 1, '' FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.reservations (run, position, calls,
tokens, nano_usd) SELECT k, 0, 1, 1, 1 FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.signal_keys (run,
dedup_key) SELECT k, 'd' FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.approvals (id, run, position, state,
requested_at, assignee, reminder_count, answered_by, withdrawn_epoch,
    request, form_schema, arguments) SELECT 'a' || k, k, 0, CASE k % 100 WHEN 0 THEN 'open' ELSE 'answered' END, k, '',
    0, '', 0, '[]', '', '' FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.workers (id, token, name, host, pid, state, workflows, started_at, lease_expires_at, heartbeat_at)
SELECT k, '', '', '', 1, 'live', '[]', 1, 1, 1 FROM generate_series(1, 2000) k; INSERT INTO holdfast.memories
(namespace, key, created_at, updated_at, value, text, size) SELECT 'n' || k % 10, 'k' || k, 1, 1, '1', 'tea', 2 FROM
generate_series(1, {RUNS}) k; INSERT INTO holdfast.memory_words (word, namespace_word, memory, occurrences) SELECT 'w'
|| k % 50, int8send(k % 10), k, 1 FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.blobs (hash, size, data)
SELECT int8send(k), 1, '1' FROM generate_series(1, {RUNS}) k; UPDATE holdfast.runs SET is_delivery = 1, deadline = key
WHERE key % 5 = 0; UPDATE holdfast.runs SET queue = 'q' || key % 3, queue_key = 'c' || key % 100, due_state = 3, turn =
key / 100,
    dedup_key = 'd' || key, ready_state = CASE WHEN ready_state = 1 THEN 2 + key / 8 % 5 ELSE ready_state END WHERE key
    % 8 < 4;
INSERT INTO holdfast.queues (name, limits, is_overridden, concurrency, key_concurrency, has_token_rate, turns,
rate_usage, next_start_at,
    is_complete) SELECT 'q' || k, '', 0, 10, 2, 1, '{{}}', '', 0, 1 FROM generate_series(0, 2) k;
INSERT INTO holdfast.queue_turns (queue, priority, key, turn, at) SELECT 'q' || k % 3, k % 2, 'c' || k, k, k FROM
generate_series(1, {RUNS}) k; INSERT INTO holdfast.queue_keys (queue, key, is_throttled, recheck_at, rate_usage,
expires_at) SELECT 'q' || k % 3, 'c' || k, k % 2, k, '', k FROM generate_series(1, {RUNS}) k; INSERT INTO
holdfast.queue_charges (queue, key, tokens, at) SELECT 'q' || k % 3, 'c' || k, k, k FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.documents (kind, name, version, created_at, updated_at, data) SELECT 'k' || k % 2, 'n' || k, 1, 1,
    1, '1' FROM generate_series(1, {RUNS}) k;
INSERT INTO holdfast.audit (at, key_id, key_name, action, target, outcome, remote_address) SELECT k, '', '', '', '', '',
'' FROM generate_series(1, {RUNS}) k; INSERT INTO holdfast.spending (day, workflow, model, slot, calls, input_tokens,
output_tokens, cached_tokens, nano_usd,
    unpriced) SELECT 'd' || k % 500, 'flow-' || k % 5, 'm', k / 500, 1, 1, 1, 1, 1, 1
FROM generate_series(1, {RUNS}) k;
"""
LARGE = {
    "runs", "records", "signals", "links", "run_tags", "usages", "live_events", "attempts", "reservations",
    "signal_keys", "approvals", "memories", "memory_words", "blobs", "queue_turns", "queue_keys", "queue_charges",
    "documents", "audit", "spending", "daily_runs",
}  # fmt: skip
READ_WHOLE = {"COUNT_RUNS", "LIST_APPROVALS", "LIST_CLOSED_APPROVALS", "ERASED_FORKS", "MARK_RESTORED"}
"""What has to read a table: all of it is counted, or any condition may come with it; or a person asks for it once."""
BY_ORDER = {
    "KNOWN_WORKFLOWS", "COUNT_RUNS_UP_TO", "SHORT_RUNS", "DELETE_OLD_LISTENERS", "DELETE_OLD_WORKERS",
    "WORKERS",
}  # fmt: skip
"""What takes the first or the last row of an index, or has an index of its own."""
OF_QUEUES = {"runs_queued", "runs_by_key", "runs_executed", "queue_keys_throttled"}
INDEXES = {
    "FENCES": {"runs_pkey", "runs_id_key", "links_child"},
    "APPEND_FENCED": {"runs_pkey"},
    "LOCK_ACCOUNTS": {"runs_pkey", "runs_id_key", "usages_pkey"},
    "DUE_RUNS": {"runs_due", "runs_pkey"},
    "PROMOTE_DUE": {"runs_waking", "runs_pkey"},
    "HAS_DUE": {"runs_due", "runs_waking", "runs_suspects", *OF_QUEUES},
    "NEXT_READY": {"runs_due", "runs_suspects", "runs_waking", *OF_QUEUES},
    "SUSPECTS": {"runs_suspects"},
    "ENDED_RUNS": {"runs_id_key"},
    "CLAIM_RUN": {"runs_pkey"},
    "FINISH_RUN": {"runs_pkey"},
    "FINISH_HELD": {"runs_pkey", "links_child", "live_events_temporary", "approvals_run"},
    "WAITERS": {"links_child"},
    "LINKS": {"links_pkey"},
    "MAILBOX_NAMES": {"signals_pkey"},
    "MAILBOX": {"signals_pkey"},
    "NEW_SIGNALS": {"signals_new", "runs_pkey"},
    "JOURNAL": {"records_pkey"},
    "RECORD_EPOCH": {"records_pkey"},
    "NEWEST_IN_SESSION": {"runs_sessions"},
    "FIND_ORPHAN": {"runs_orphans"},
    "LOCK_CLAIMED_RUNS": {"runs_claimed"},
    "RELEASE_ALL_RUNS": {"runs_claimed", "runs_pkey"},
    "REQUESTS": {"runs_requested"},
    "LIST_BY_KEY": {"runs_pkey"},
    "COUNT_RUNS_UP_TO": {"runs_listed"},
    "COUNT_UNFINISHED": {"runs_listed"},
    "HAS_CREATED_BELOW": {"runs_created"},
    "LIST_BY_WORKFLOW_AND_STATE": {"runs_listed"},
    "LIST_BY_STATE": {"runs_in_state"},
    "LIST_BY_CONDITION.owner": {"runs_claimed"},
    "LIST_BY_CONDITION.parent": {"runs_children"},
    "LIST_BY_CONDITION.tag": {"run_tags_listed", "runs_pkey"},
    "LIST_BY_CONDITION.id_prefix": {"runs_id_key"},
    "LIST_BY_CONDITION.created": {"runs_created"},
    "COUNT_BY_CONDITION.owner": {"runs_claimed"},
    "COUNT_BY_CONDITION.parent": {"runs_children"},
    "COUNT_BY_CONDITION.tag": {"run_tags_listed"},
    "COUNT_BY_CONDITION.id_prefix": {"runs_id_key"},
    "COUNT_BY_CONDITION.created": {"runs_created"},
    "NEWEST_CREATED": {"runs_created"},
    "KNOWN_WORKFLOWS": {"runs_listed"},
    "NEW_LIVE_EVENTS": {"live_events_pkey"},
    "LAST_RECORD": {"runs_id_key", "records_pkey"},
    "SEARCH_MEMORIES": {"memory_words_pkey", "memories_pkey"},
    "RUNNING_COUNTS": {"runs_executed"},
    "READY_RUNS": {"runs_queued"},
    "THROTTLED_KEYS": {"queue_keys_throttled"},
    "THROTTLED_RUNS": {"runs_by_key"},
    "KEY_RATE_USAGE": {"queue_keys_pkey"},
    "KEY_TURN": {"queue_turns_pkey"},
    "CONSUME_CHARGES": {"queue_charges_queue"},
    "THROTTLE_RUNS": {"runs_by_key", "runs_pkey"},
    "SAVE_KEY_STATE": {"runs_by_key"},
    "DEDUP_OWNER": {"runs_dedup"},
    "QUEUE_COUNTS": {"runs_limited"},
    "UNLIMITED_RUNS": {"runs_listed"},
    "LOCK_LIMITED_RUNS": {"runs_limited", "runs_pkey"},
    "LOCK_OLD_TURNS": {"queue_turns_old", "runs_limited"},
    "LOCK_OLD_KEYS": {"queue_keys_old", "runs_by_key"},
    "OVERDUE": {"runs_expiring"},
    "RECHECK_OVERDUE": {"runs_pkey"},
    "DELIVERY_COUNTS": {"runs_pkey"},
    "DELETE_OLD_LISTENERS": {"runs_delivered", "runs_started"},
    "DELETE_OLD_WORKERS": {"runs_created", "runs_started"},
    "WORKERS": {"runs_claimed", "runs_started"},
    "DOCUMENTS": {"documents_pkey"},
    "DOCUMENTS_NAMED": {"documents_pkey"},
    "AUDIT": {"audit_pkey"},
    "TRIM_AUDIT": {"audit_at", "audit_pkey"},
    "ADD_DAILY_USAGE": {"runs_pkey"},
    "DAILY_USAGE": {"spending_pkey"},
    "DAILY_RUNS": {"daily_runs_day"},
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


@pytest.mark.parametrize("name", [name for name in all_statements() if name not in ("TEXT_CONDITION", *READ_WHOLE)])
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
def test_each_lookup_uses_its_own_index(name: str, filled: Connection):
    plan = plan_of(filled, bare(all_statements()[name]))
    assert {step["Index Name"] for step in plan if step.get("Index Name", "").startswith(tuple(LARGE))} == INDEXES[name]


CLAIMS = ["DUE_RUNS", "PROMOTE_DUE", "HAS_DUE", "NEXT_READY", "SUSPECTS", "READY_RUNS", "THROTTLED_RUNS"]


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_does_not_read_what_is_due_of_other_versions(name: str, filled: Connection):
    plan = plan_of(filled, bare(all_statements()[name]))
    due = ("runs_due", "runs_waking", "runs_suspects", "runs_queued", "runs_by_key")
    found = [step for step in plan if step.get("Index Name") in due]
    assert found
    assert all("version" in step["Index Cond"] for step in found)
    assert name not in ("READY_RUNS", "THROTTLED_RUNS") or "Sort" not in {step["Node Type"] for step in plan}


@pytest.mark.parametrize(
    "name",
    [
        "LIST_BY_KEY",
        "LIST_BY_WORKFLOW_AND_STATE",
        "LIST_BY_STATE",
        *(f"LIST_BY_CONDITION.{part}" for part in SQL.LIST_BY_CONDITION),
    ],
)
def test_what_is_checked_row_by_row_leads_to_no_other_index(name: str, filled: Connection):
    plan = plan_of(filled, all_statements()[name].replace("{filters}", "".join(SQL.FILTERS.values())))
    used = {step["Index Name"] for step in plan if "Index Name" in step}
    assert INDEXES[name] <= used <= INDEXES[name] | {"run_tags_pkey", "run_tags_listed"}
