"""What is kept for the case that a run goes wrong: origins of exceptions, what a retry takes back, chains of seeds."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.compensations import CompensationLog
from holdfast.core.failure_origin import FailureOrigin, find_origins, mark_origin
from holdfast.core.records import Record, RecordKind, Rewind, RewindPoint
from holdfast.core.seeded_random import SEED_BYTES, SeededRandom, make_fork_seed


def origin(seq: int, positions: int = 10, timers: int = 10) -> FailureOrigin:
    return FailureOrigin(seq, positions, timers)


def marked(seq: int, cls: type[Exception] = ValueError) -> Exception:
    error = cls(f"number {seq}")
    mark_origin(error, origin(seq))
    return error


def raised(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    error.__cause__, error.__context__ = cause, context
    return error


def record(seq: int, position: int = 0, kind: RecordKind = RecordKind.STEP, *, ok: bool = True) -> Record:
    return Record(seq, kind, position, "name", ok, b"null", 0.0)


class Call:
    def __init__(self, *, once: bool = False, undoable: bool = False) -> None:
        self.is_once = once
        self.has_compensation = undoable
        self.is_noted = undoable or once

    def build_compensation(self, payload: bytes) -> tuple[str, Any]:
        return "undo", payload


# Origins


def test_an_exception_without_an_origin_has_none():
    assert find_origins(ValueError("own")) == []
    assert find_origins(raised(ValueError("own"), KeyError("of"), LookupError("none"))) == []


def test_an_exception_has_its_own_origin_whatever_it_was_raised_from():
    assert find_origins(raised(marked(3), marked(1), marked(2))) == [origin(3)]


def test_a_mark_is_no_attribute_of_the_exception_that_would_be_recorded():
    error = marked(1)
    assert not [name for name in vars(error) if name.isidentifier()]


def test_the_origin_is_looked_for_in_causes_before_contexts():
    assert find_origins(raised(ValueError("own"), marked(1), marked(2))) == [origin(1)]
    assert find_origins(raised(ValueError("own"), None, marked(2))) == [origin(2)]
    assert find_origins(raised(ValueError("a"), raised(ValueError("b"), None, raised(ValueError("c"), marked(5))))) == [
        origin(5)
    ]


def test_an_exception_raised_from_none_in_a_handler_comes_from_what_was_handled():
    with pytest.raises(KeyError) as instead:
        try:
            raise marked(4)
        except ValueError:
            raise KeyError("instead") from None
    assert find_origins(instead.value) == [origin(4)]


def test_a_group_has_the_origins_of_all_its_members():
    group = ExceptionGroup(
        "all",
        [marked(4), ValueError("own"), raised(KeyError("wrapped"), marked(2)), ExceptionGroup("inner", [marked(7)])],
    )
    assert sorted(find_origins(group)) == [origin(2), origin(4), origin(7)]


def test_a_group_whose_members_have_none_comes_from_what_it_was_raised_from():
    assert find_origins(raised(ExceptionGroup("all", [ValueError("own")]), marked(9))) == [origin(9)]


def test_a_group_with_a_mark_of_its_own_is_not_looked_into():
    group = ExceptionGroup("recorded as one", [marked(1)])
    mark_origin(group, origin(5))
    assert find_origins(group) == [origin(5)]


def test_causes_that_go_round_in_a_circle_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert find_origins(one) == []


def test_groups_that_are_their_members_cause_end():
    member = ValueError("member")
    group = ExceptionGroup("all", [member])
    member.__context__ = group
    assert find_origins(group) == []
    member.__context__ = None
    group.__context__ = group.exceptions[0]
    assert find_origins(group) == []


def test_a_member_that_is_raised_in_the_handler_of_its_group():
    """As `map` does it."""
    with pytest.raises(ValueError) as member:
        try:
            raise ExceptionGroup("all", [ValueError("own"), marked(2)])
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
    assert find_origins(member.value) == [origin(2)]


def test_an_attribute_named_exceptions_does_not_make_a_group():
    class Odd(Exception):
        exceptions = ("not", "exceptions")

    assert find_origins(Odd()) == []


# What a retry takes back


def test_without_failed_records_nothing_is_taken():
    assert not any(Rewind((), 0, 0).should_remove(record(seq)) for seq in range(5))


@pytest.mark.parametrize(
    ("one", "taken"),
    [
        (record(4, 99), False),  # before the failure, whatever it was
        (record(5, 2), True),  # the failure
        (record(6, 2), False),  # issued before, and known later: paid for
        (record(6, 3), True),  # issued after
        (record(7, 0), True),  # another failure
        (record(8, 2, RecordKind.SIGNAL), False),
        (record(8, 3, RecordKind.SIGNAL), True),
        (record(8, 3, RecordKind.CHILD), True),
        (record(8, 3, RecordKind.START), True),
        (record(8, 3, RecordKind.COMPENSATION), True),
        (record(6, 0, RecordKind.TIMER), False),  # timers are counted by themselves
        (record(6, 1, RecordKind.TIMER), True),
        (record(4, 0, RecordKind.CANCEL), False),
        (record(6, 0, RecordKind.CANCEL), True),
        (record(6, 0, RecordKind.DEADLINE), True),
    ],
)
def test_what_was_issued_after_the_first_failure_is_taken(one: Record, taken: bool):
    assert Rewind((5, 7), command_count=3, timer_count=1).should_remove(one) is taken


def test_the_rewind_goes_back_to_the_first_of_the_records_that_ended_the_run():
    log = CompensationLog()
    rewind = log.build_rewind([origin(9, 6, 3), origin(4, 2, 1), origin(9, 6, 3)], {}, is_compensated=False)
    assert rewind == Rewind((4, 9), command_count=2, timer_count=1)


def test_a_run_that_ended_for_no_record_has_no_rewind_unless_it_was_undone():
    log = CompensationLog()
    assert log.build_rewind([], {}, is_compensated=False) is None
    assert log.build_rewind([], {}, is_compensated=True) == Rewind((), 0, 0, is_compensated=True)


def test_a_once_step_counts_only_if_it_would_run_again():
    log = CompensationLog()
    log.add_outcome(record(2, 1), Call(once=True))
    assert log.build_rewind([origin(3, 2, 0)], {}, is_compensated=False) == Rewind((3,), 2, 0)
    log.add_outcome(record(4, 2), Call(once=True))
    assert log.build_rewind([origin(3, 2, 0)], {}, is_compensated=False) == Rewind((3,), 2, 0, once_seqs=(4,))


def test_a_failed_once_step_counts():
    log = CompensationLog()
    log.add_outcome(record(2, 1, ok=False), Call(once=True))
    assert log.build_rewind([origin(2, 2, 0)], {}, is_compensated=False) == Rewind((2,), 2, 0, once_seqs=(2,))


def test_failures_after_the_first_that_ended_the_run_are_rewound_with_it():
    log = CompensationLog()
    log.add_failure(record(1, 0, ok=False))
    log.add_failure(record(5, 1, ok=False))
    assert log.build_rewind([origin(3, 2, 0)], {}, is_compensated=False) == Rewind((3, 5), 2, 0)
    assert log.build_rewind([], {}, is_compensated=False) is None


def test_steps_are_undone_in_reverse_and_only_if_they_were_done_and_can_be():
    log = CompensationLog()
    assert not log
    first, second = Call(undoable=True), Call(undoable=True, once=True)
    log.add_outcome(record(0, 5), first)
    log.add_outcome(record(1, 4), Call())
    log.add_outcome(record(2, 3, ok=False), Call(undoable=True))
    log.add_outcome(record(3, 2), second)
    assert log
    assert [log.pop_step(), log.pop_step()] == [(record(3, 2), second), (record(0, 5), first)]
    assert not log


# Chains of seeds

ROOT, FRESH, THIRD = bytes(range(16)), bytes(range(100, 116)), bytes(range(200, 216))


def test_a_fork_draws_like_its_origin_until_it_has_seen_a_record_of_its_own():
    origin_of_it, forked = SeededRandom(ROOT), SeededRandom(make_fork_seed(ROOT, 3, FRESH))
    for seen in (-1, 0, 1, 2):
        assert forked.draw_bytes("uuid4:1:1", 0, seen) == origin_of_it.draw_bytes("uuid4:1:1", 0, seen)
    for seen in (3, 4, 1000):
        assert forked.draw_bytes("uuid4:1:1", 0, seen) == SeededRandom(FRESH).draw_bytes("uuid4:1:1", 0, seen)


def test_what_belongs_to_a_fork_alone_is_never_its_origins():
    forked = SeededRandom(make_fork_seed(ROOT, 3, FRESH))
    assert (
        forked.draw_own_bytes("step:0:a", 0)
        == SeededRandom(FRESH).draw_own_bytes("step:0:a", 0)
        != SeededRandom(ROOT).draw_own_bytes("step:0:a", 0)
    )
    assert len(forked.draw_own_bytes("x", 0)) == SEED_BYTES


@pytest.mark.parametrize(("keep", "expected"), [(5, [ROOT, ROOT, FRESH, FRESH, THIRD]), (2, [ROOT, THIRD, THIRD])])
def test_a_fork_of_a_fork_has_a_longer_chain(keep: int, expected: list[bytes]):
    chance = SeededRandom(make_fork_seed(make_fork_seed(ROOT, 3, FRESH), keep, THIRD))
    points = (1, 2, 3, 4, 5) if keep == 5 else (1, 2, 3)
    assert [chance.draw_bytes("x", 0, seen) for seen in points] == [
        SeededRandom(seed).draw_bytes("x", 0, 0) for seed in expected
    ]
    assert chance.draw_own_bytes("x", 0) == SeededRandom(THIRD).draw_own_bytes("x", 0)


def test_a_fork_of_everything_and_of_nothing():
    assert SeededRandom(make_fork_seed(ROOT, 0, FRESH)).draw_bytes("x", 0, -1) == SeededRandom(ROOT).draw_bytes(
        "x", 0, -1
    )
    assert SeededRandom(make_fork_seed(ROOT, 0, FRESH)).draw_bytes("x", 0, 0) == SeededRandom(FRESH).draw_bytes(
        "x", 0, 0
    )
    assert SeededRandom(make_fork_seed(ROOT, 2**40, FRESH)).draw_bytes("x", 0, 2**40 - 1) == SeededRandom(
        ROOT
    ).draw_bytes("x", 0, 0)
    assert SeededRandom(make_fork_seed(ROOT, 2**40, FRESH)).draw_bytes("x", 0, 2**40) == SeededRandom(FRESH).draw_bytes(
        "x", 0, 0
    )


@pytest.mark.parametrize("seed", [b"", b"short", b"x" * 15, b"x" * 17, b"x" * 39, b"x" * 41])
def test_a_seed_of_another_length_is_one_seed(seed: bytes):
    assert SeededRandom(seed).draw_bytes("x", 0, 5) == SeededRandom(seed).draw_bytes("x", 0, 99)
    assert len(SeededRandom(seed).draw_bytes("x", 0, 0)) == 32


def test_what_comes_to_a_position_that_a_retry_went_back_to_is_drawn_anew():
    points = (RewindPoint(3, 5), RewindPoint(1, 2))
    first, again, once_more = SeededRandom(ROOT), SeededRandom(ROOT, points[:1]), SeededRandom(ROOT, points)
    for draw in (lambda chance, at: chance.draw_own_bytes("x", at), lambda chance, at: chance.draw_bytes("x", at, 5)):
        assert draw(first, 0) == draw(again, 0) == draw(once_more, 0)
        assert draw(first, 2) == draw(again, 2) != draw(once_more, 2)
        assert len({draw(chance, 3) for chance in (first, again, once_more)}) == 3
    assert [once_more.count_rewinds(at) for at in range(5)] == [0, 1, 1, 2, 2]


def test_what_was_drawn_before_the_failure_was_seen_stays_after_a_retry():
    first, again = SeededRandom(ROOT), SeededRandom(ROOT, (RewindPoint(3, 5),))
    assert first.draw_bytes("x", 3, 4) == again.draw_bytes("x", 3, 4)
    assert first.draw_bytes("x", 3, 5) != again.draw_bytes("x", 3, 5)


def test_purposes_differ():
    chance = SeededRandom(ROOT)
    assert (
        len({chance.draw_bytes(purpose, 0, 0) for purpose in ("uuid4:1:1", "uuid4:1:2", "random:1:1", "uuid4:11:1")})
        == 4
    )
