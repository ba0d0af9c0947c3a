"""Concurrent PostgreSQL connections: what waits for what, what each sees, and how many round trips it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg
from postgres_server import database
from store_values import new_run

from holdfast.stores.memories import DeleteMemory, PutMemory
from holdfast.stores.postgres.connections import connect
from holdfast.stores.postgres.database import PgDatabase
from holdfast.stores.postgres.pipeline import BoundStatement
from holdfast.stores.sql.database import Row, WriteConflict
from holdfast.stores.sql.rows import run_to_row as columns_of
from holdfast.stores.text_search import MAX_QUERY_WORDS

WORKER = 1


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def open_db(url: str) -> Iterator[Callable[[], PgDatabase]]:
    opened: list[PgDatabase] = []

    def open_one() -> PgDatabase:
        opened.append(PgDatabase(connect(url), "holdfast"))
        return opened[-1]

    yield open_one
    for db in opened:
        db.connection.close()


@pytest.fixture
def db(open_db: Callable[[], PgDatabase]) -> PgDatabase:
    return open_db()


@pytest.fixture
def other(open_db: Callable[[], PgDatabase]) -> PgDatabase:
    return open_db()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def run_row(key: int, *, owner: int | None = WORKER, ready: int | None = None, **fields: Any) -> Row:
    """A run that is held under epoch 1; or with ``owner=None`` one that is claimable, or waits for its time."""
    given = {"workflow": "flow", **fields}
    wake_at = given.pop("wake_at", None)
    row = list(columns_of(new_run(given.pop("id", f"r{key}"), **given), owner, 100.0, b"1", "", False))
    if owner is None:
        row[8:10] = [ready, wake_at]
    return (key, *row)


def start(db: PgDatabase, count: int = 1, **fields: Any) -> list[int]:
    db.begin()
    keys = list(db.allocate_keys(count))
    db.write(db.sql.START_RUN, [run_row(key, **fields) for key in keys])
    db.commit()
    return keys


def record(key: int, seq: int, epoch: int = 1, payload: bytes = b"1") -> Row:
    return (key, seq, 1, seq, 1, 1.0, 1.0, 1, WORKER, epoch, "step", "", payload)


def journal(db: PgDatabase, key: int) -> list[int]:
    return [row[0] for row in db.query(db.sql.JOURNAL, (key,))]


def wait_until_blocked(db: PgDatabase, task: Future[Any]) -> None:
    """Until the other connection waits for a lock."""
    for _ in range(500):
        assert not task.done(), f"it did not wait: {task.result()}"
        [(waiting,)] = db.query(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
        )
        if waiting:
            return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


# Fences


def test_a_transaction_that_waited_for_a_fence_reads_its_new_state(
    db: PgDatabase, other: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    [key] = start(db)
    db.begin()
    assert [row[2] for row in db.read_fences([key])] == [1]

    def look() -> list[Row]:
        other.begin()
        found = list(other.read_fences([], [f"r{key}"]))
        other.commit()
        return found

    task = aside.submit(look)
    wait_until_blocked(open_db(), task)
    db.write(db.sql.CLAIM_RUN, [(WORKER + 1, key)])
    db.commit()
    assert [(row[0], row[1], row[2], row[3]) for row in task.result()] == [(key, f"r{key}", 2, "running")]


def test_runs_that_wait_for_an_ending_run_are_locked_with_it(db: PgDatabase, other: PgDatabase):
    parent, child, stranger = start(db, 3)
    db.write(db.sql.PUT_LINK, [(parent, 0, child, 1), (stranger, 0, child, 2)])
    db.begin()
    assert [row[0] for row in db.read_fences([child], (), [child])] == [parent, child]
    for key, is_locked in [(parent, True), (child, True), (stranger, False)]:
        other.begin()
        statement = "SELECT key FROM holdfast.runs WHERE key = %s FOR UPDATE SKIP LOCKED"
        assert (other.query(statement, (key,)) == []) is is_locked
        other.roll_back()
    db.roll_back()


def test_many_concurrent_batches_neither_hang_nor_lose_a_change(
    db: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    keys = start(db, 20)

    def toil(mine: PgDatabase) -> None:
        for turn in range(10):
            mine.begin()
            found = {row[0]: row[2] for row in mine.read_fences(keys[::-1] if turn % 2 else keys)}
            assert sorted(found) == sorted(keys)
            mine.write(mine.sql.CLAIM_RUN, [(WORKER, key) for key in keys])
            mine.commit()

    for task in [aside.submit(toil, open_db()) for _ in range(4)]:
        task.result()
    db.begin()
    assert {row[2] for row in db.read_fences(keys)} == {41}
    db.roll_back()


# Appending


def test_a_zombie_that_waited_for_a_takeover_appends_nothing(
    db: PgDatabase, other: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    taken, own = start(db, 2)
    db.begin()
    list(db.read_fences([taken]))
    task = aside.submit(other.append_fenced, [record(own, 0), record(taken, 0)])
    wait_until_blocked(open_db(), task)
    db.write(db.sql.CLAIM_RUN, [(WORKER + 1, taken)])
    db.commit()
    assert task.result() is False
    assert journal(db, own) == journal(db, taken) == []


def test_records_are_appended_all_or_none(db: PgDatabase):
    one, two = start(db, 2)
    assert db.append_fenced([record(one, 0), record(one, 1), record(two, 0)]) is True
    assert db.append_fenced([record(one, 2), record(two, 1, epoch=2)]) is False, "one is fenced"
    assert db.append_fenced([record(one, 2), record(two, 0)]) is False, "one is there already"
    assert db.append_fenced([record(one, 2), record(999, 0)]) is False, "there is no such run"
    db.write(db.sql.PUT_RESERVATION, [(two, 0, 1, 1, 1)])
    db.execute("UPDATE holdfast.runs SET has_budget = 1 WHERE key = %s", (two,))
    assert db.append_fenced([record(one, 2), record(two, 1)]) is False, "one has a budget"
    assert (journal(db, one), journal(db, two)) == ([0, 1], [0])


def test_more_than_fits_into_any_buffer_goes_there_and_back(db: PgDatabase):
    keys = start(db, 300)
    large = bytes(range(256)) * 200
    assert db.append_fenced([record(key, seq, payload=large) for key in keys for seq in range(4)]) is True
    db.begin_snapshot()
    db.prefetch({db.sql.JOURNAL: [(key,) for key in keys]})
    assert all([row[5] for row in db.lookup(db.sql.JOURNAL, key)] == [large] * 4 for key in keys)
    db.commit()


# Starting


def test_a_run_that_another_transaction_has_started_meanwhile_is_a_conflict(db: PgDatabase, other: PgDatabase):
    db.begin()
    assert list(db.read_fences([], ["r77"])) == []
    other.write(other.sql.START_RUN, [run_row(77)])
    db.write(db.sql.START_RUN, [run_row(78, id="r77"), run_row(79)])
    with pytest.raises(WriteConflict):
        db.commit()
    db.roll_back()
    assert [row[1] for row in db.query(db.sql.GET_RUNS_BY_KEY, (db.to_list_parameter([77, 78, 79]),))] == ["r77"]


def test_transactions_that_create_runs_of_one_session_take_turns(
    db: PgDatabase, other: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    db.begin()
    db.lock_sessions([("flow", "s"), ("flow", "t")])
    first = db.allocate_keys(1)[0]

    def create(session: str) -> int:
        other.begin()
        other.lock_sessions([("flow", session)])
        key = other.allocate_keys(1)[0]
        other.commit()
        return key

    elsewhere = aside.submit(create, "another")
    assert elsewhere.result(timeout=10) > first
    task = aside.submit(create, "t")
    wait_until_blocked(open_db(), task)
    last = db.allocate_keys(1)[0]
    db.commit()
    assert task.result() > last, "its key is taken when it has the lock, or the order would be wrong"


# Claims


def due(db: PgDatabase, limit: int, workflows: tuple[str, ...] = ("flow",)) -> list[int]:
    return [key for _, key in db.lock_due_runs([(workflow, "") for workflow in workflows], None, limit, 100.0)]


def test_concurrent_claims_take_different_runs_without_waiting(db: PgDatabase, other: PgDatabase):
    keys = start(db, 6, owner=None, ready=1)
    db.begin()
    assert due(db, 2) == keys[:2]
    other.begin()
    assert due(other, 3) == keys[2:5]
    db.write(db.sql.CLAIM_RUN, [(WORKER, key) for key in keys[:2]])
    db.commit()
    other.roll_back()
    other.begin()
    assert due(other, 9) == keys[2:]
    other.roll_back()


def test_runs_are_claimed_by_priority_and_age_over_all_workflows_and_only_those_are_locked(
    db: PgDatabase, other: PgDatabase
):
    [late] = start(db, owner=None, ready=0, wake_at=99.0, priority=5, workflow="b")
    [low] = start(db, owner=None, ready=1, workflow="a")
    [high] = start(db, owner=None, ready=1, workflow="b", priority=1)
    [next_low] = start(db, owner=None, ready=1, workflow="b")
    start(db, owner=None, ready=1, workflow="c", priority=9)
    start(db, owner=None, ready=0, wake_at=101.0, workflow="a")
    db.begin()
    assert due(db, 3, ("a", "b")) == [late, high, low]
    other.begin()
    assert due(other, 3, ("a", "b")) == [next_low]
    other.roll_back()
    db.roll_back()


# Workers


def test_a_worker_that_claims_is_not_declared_dead_and_can_renew_its_lease(
    db: PgDatabase, other: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    insert = (
        "INSERT INTO holdfast.workers (id, token, name, host, pid, state, workflows, started_at, lease_expires_at, "
        "heartbeat_at) "
        "VALUES (1, '', '', '', 1, 'live', '[]', 1, 5, 1)"
    )
    db.execute(insert)
    db.begin()
    assert db.lookup(db.sql.IS_WORKER_LIVE, WORKER) == [(1,)]
    assert other.execute("UPDATE holdfast.workers SET lease_expires_at = 6 WHERE id = 1") == 1
    other.begin()
    task = aside.submit(other.query_one, other.sql.LOCK_LEASE, WORKER)
    wait_until_blocked(open_db(), task)
    db.commit()
    assert task.result() == (1.0, 6.0)
    other.execute(other.sql.SET_WORKER_STATE, ("dead", WORKER))
    other.commit()
    db.begin()
    assert db.lookup(db.sql.IS_WORKER_LIVE, WORKER) == []
    db.roll_back()


# Signals


def test_a_signal_that_is_committed_late_is_not_missed(db: PgDatabase, other: PgDatabase):
    slow, quick = start(db, 2)

    def news(cursor: int) -> tuple[list[int], int]:
        rows = db.query(db.sql.NEW_SIGNALS, (cursor, WORKER))
        return [row[0] for row in rows if row[0] is not None], rows[0][-1]

    found, cursor = news(0)
    assert found == []
    other.begin()
    other.write(other.sql.SEND_SIGNAL, [(slow, "a", 1.0, b"1", None)])
    other.query("SELECT 1")  # it has its number now
    db.write(db.sql.SEND_SIGNAL, [(quick, "b", 1.0, b"1", None)])
    found, cursor = news(cursor)
    assert found == [quick]
    other.commit()
    found, cursor = news(cursor)
    assert slow in found
    # And then no more, once nothing is open any more that is older: not even in another database of the server.
    deadline = time.monotonic() + 20
    while news(cursor)[0] != [] and time.monotonic() < deadline:
        _, cursor = news(cursor)
        time.sleep(0.02)
    assert news(cursor)[0] == []


# Accounts


def test_accounts_are_locked_with_all_that_are_above_them(
    db: PgDatabase, other: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    [top] = start(db)
    [middle] = start(db, parent=f"r{top}")
    leaves = start(db, 2, parent=f"r{middle}")

    def use(mine: PgDatabase, key: int) -> None:
        mine.begin()
        mine.lock_accounts([key])
        rows: list[Row] = []
        above: int | None = key
        while above is not None:
            [(parent, calls, *rest)] = mine.lookup(mine.sql.ACCOUNT, above)
            rows.append((above, parent, calls + 1, *rest))
            above = parent
        assert [row[0] for row in rows] == [key, middle, top]
        mine.write(mine.sql.PUT_ACCOUNT, rows)
        mine.commit()

    def toil(key: int) -> None:
        mine = open_db()
        for _ in range(10):
            use(mine, key)

    for task in [aside.submit(toil, key) for key in (*leaves, *leaves)]:
        task.result()
    db.begin()
    assert [db.lookup(db.sql.ACCOUNT, key)[0][1] for key in (top, middle, *leaves)] == [40, 40, 20, 20]
    db.roll_back()


# Trips


class Counted:
    """Counts the trips of a database."""

    def __init__(self, db: PgDatabase) -> None:
        self.trips: list[list[str]] = []
        make = db._pipeline.run

        def counted(sent: list[BoundStatement]) -> Any:
            self.trips.append([one.statement.split()[0] for one in sent])
            return make(sent)

        db._pipeline.run = counted  # type: ignore[method-assign]


def test_a_usual_batch_takes_two_round_trips(db: PgDatabase):
    [key] = start(db)
    db.write(db.sql.SEND_SIGNAL, [(key, "a", 1.0, b"1", None)])
    counted = Counted(db)
    db.begin()
    db.prefetch({db.sql.MAILBOX_NAMES: [(key,)], db.sql.DISABLED_WORKFLOWS: [()], db.sql.HAS_LEFTOVERS: [()]})
    db.lock_accounts([key])
    assert len(list(db.read_fences([key]))) == 1
    db.prefetch({db.sql.MAILBOX_NAMES: [(key,)]})
    assert db.lookup(db.sql.MAILBOX_NAMES, key) == [("a", None)]
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == []
    assert db.lookup(db.sql.HAS_LEFTOVERS) == [(1, 1)]
    assert db.lookup(db.sql.ACCOUNT, key)[0][1] == 0
    db.write(db.sql.APPEND_RECORD, [record(key, 0)])
    db.write(db.sql.PARK_RUN, [(0, 5.0, "a", 0, key)])
    db.commit()
    assert counted.trips == [
        ["BEGIN", "SELECT", "WITH", "WITH", "SELECT", "SELECT", "SELECT"],
        ["INSERT", "UPDATE", "COMMIT"],
    ]


def test_an_empty_transaction_takes_no_round_trip(db: PgDatabase):
    counted = Counted(db)
    db.begin()
    db.prefetch({db.sql.DISABLED_WORKFLOWS: [()]})
    db.commit()
    db.begin()
    db.write(db.sql.APPEND_RECORD, [record(1, 1)])
    db.roll_back()
    assert counted.trips == []


def test_old_plans_are_discarded(db: PgDatabase, monkeypatch: pytest.MonkeyPatch):
    [key] = start(db)
    counted = Counted(db)
    assert journal(db, key) == journal(db, key) == []
    monkeypatch.setattr("holdfast.stores.postgres.database.MAX_PLAN_AGE_S", 0.0)
    assert journal(db, key) == []
    db.begin_snapshot()
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == []
    db.commit()
    assert [trip[0] for trip in counted.trips] == [
        "SELECT", "SELECT", "DISCARD", "SELECT", "DISCARD", "BEGIN", "COMMIT",
    ]  # fmt: skip


def test_a_lookup_is_cached_for_one_transaction_or_until_it_is_discarded(db: PgDatabase, other: PgDatabase):
    switch = ("flow", 1.0, "ada", "", 0)
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == []
    other.execute(other.sql.DISABLE_WORKFLOW, switch)
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == [switch]
    db.begin()
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == [switch]
    other.execute(other.sql.ENABLE_WORKFLOW, ("flow", 0))
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == [switch]
    db.discard_prefetched(db.sql.DISABLED_WORKFLOWS)
    assert db.lookup(db.sql.DISABLED_WORKFLOWS) == []
    db.commit()


def test_a_transaction_that_fails_can_be_rolled_back_and_the_connection_used_again(db: PgDatabase):
    [key] = start(db)
    db.begin()
    db.write(db.sql.APPEND_RECORD, [record(key, 0)])
    db.write("SELECT 1 / %s::int", [(0,)])
    db.write(db.sql.APPEND_RECORD, [record(key, 1)])
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.commit()
    db.roll_back()
    assert journal(db, key) == []
    assert db.append_fenced([record(key, 0)]) is True


def test_discarded_statements_are_prepared_again(db: PgDatabase):
    [key] = start(db)
    assert db.append_fenced([record(key, 0)]) is True
    assert journal(db, key) == [0]
    db.connection.execute("DEALLOCATE ALL")
    assert journal(db, key) == [0]
    db.connection.execute("DEALLOCATE ALL")
    assert db.append_fenced([record(key, 1)]) is True
    assert db.query_one(db.sql.RECORD_EPOCH, key, 1) is not None
    db.connection.execute("DEALLOCATE ALL")
    db.begin()
    with pytest.raises(WriteConflict):
        db.query_one(db.sql.RECORD_EPOCH, key, 1)
    db.roll_back()
    db.begin()
    assert db.query_one(db.sql.RECORD_EPOCH, key, 1) is not None
    db.commit()


# Memories


def change(db: PgDatabase, *changes: PutMemory | DeleteMemory) -> None:
    db.begin()
    for one in changes:
        db.change_memory(one)
    db.commit()


def put(key: str, text: str, space: str = "ann") -> PutMemory:
    return PutMemory(space, key, b"1", text, 1.0)


def check_index(db: PgDatabase) -> None:
    """Every memory has its words, nothing else has any, and the totals are those of all memories."""
    sizes = "SELECT m.id, m.size FROM holdfast.memories m ORDER BY m.id"
    counted = (
        "SELECT m.id, 1 + coalesce(sum(w.occurrences), 0) FROM holdfast.memories m LEFT JOIN holdfast.memory_words w "
        "ON w.memory = m.id GROUP BY m.id ORDER BY m.id"
    )
    assert db.query(sizes) == [(key, int(size)) for key, size in db.query(counted)]
    stray = "SELECT count(*) FROM holdfast.memory_words WHERE memory NOT IN (SELECT id FROM holdfast.memories)"
    assert db.query(stray) == [(0,)]
    totals = "SELECT coalesce(sum(memories), 0)::int8, coalesce(sum(size), 0)::int8 FROM holdfast.memory_totals"
    assert db.query(totals) == db.query("SELECT count(*), coalesce(sum(size), 0)::int8 FROM holdfast.memories")


def test_words_and_totals_are_in_step_with_the_memories(db: PgDatabase):
    change(db, put("a", "tea"), put("b", "tea tea"), put("a", "coffee"), DeleteMemory("ann", "b"))
    change(db, put("b", ""), put("c", "one two"), DeleteMemory("ann", "c"), DeleteMemory("ann", "nothing"))
    check_index(db)
    db.begin()
    db.change_memory(put("d", "never"))
    db.roll_back()
    check_index(db)
    assert [memory.key for memory in db.search_memories("ann", ["coffee", "never", "two"], 10)] == ["a"]


def test_concurrent_changes_of_a_memory_leave_only_the_words_of_the_last(
    db: PgDatabase, open_db: Callable[[], PgDatabase], aside: ThreadPoolExecutor
):
    def toil(name: str) -> None:
        mine = open_db()
        for turn in range(15):
            change(mine, put("shared", f"{name} {turn}"))
            if turn % 5 == 4:
                change(mine, DeleteMemory("ann", "shared"))

    for task in [aside.submit(toil, name) for name in ("anna", "bert", "carl", "dora")]:
        task.result()
    check_index(db)


def test_a_word_of_any_length_is_found(db: PgDatabase):
    long = "ab" * 5000
    change(db, put("k", f"{long} tea"), put("l", f"{long}x tea"))
    assert [memory.key for memory in db.search_memories("ann", [long], 10)] == ["k"]
    assert db.search_memories("ann", [long[:200]], 10) == []
    assert len(db.search_memories("ann", [*map(str, range(MAX_QUERY_WORDS - 1)), "tea"], 10)) == 2


# Searching


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("STRASSE", {"STRASSE 2"}), ("straße", {"Straße 1", "STRASSE 2"}), ("ÉTÉ", {"été"}),
        ("100%", {"100%"}), ("a_b", {"a_b"}), ("\\", {"a\\b"}), ("é(*", {"É(*"}), ("ς", {"ΟΔΟΣ", "οδος"}),
        ("\x00É", {"x\x00é"}),
    ],
)  # fmt: skip
def test_a_search_knows_upper_and_lower_case_of_every_language(db: PgDatabase, text: str, found: set[str]):
    ids = ["Straße 1", "STRASSE 2", "été", "ete", "100%", "1000", "a_b", "axb", "a\\b", "É(*", "ΟΔΟΣ", "οδος", "x\x00é"]
    db.write(db.sql.START_RUN, [run_row(number, id=name) for number, name in enumerate(ids, 1)])
    condition, values = db.make_text_condition(text)
    rows = db.query(f"SELECT id FROM holdfast.runs WHERE true{condition}", values)
    assert {row[0] for row in rows} == found
