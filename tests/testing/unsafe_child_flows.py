"""Workflows with children, compensations and conditions that do not survive every crash, each with what is wrong.

They lie in a module, not in the tests, because other Python processes have to find them.
"""

from __future__ import annotations

import random
import time
import uuid

from safe_child_flows import little
from safe_flows import note
from unsafe_flows import WORDS

from holdfast import RunFailed, step, workflow

asked = 0
returned: list[str] = []


@workflow
async def measured(word: str) -> int:
    return await note(word)


@workflow
async def timed_child() -> None:
    await note()
    await note(time.time())


@workflow
async def bad_child_reads_clock() -> None:
    await note()
    await timed_child()


@workflow
async def bad_started_child_reads_clock() -> None:
    await timed_child.start()


@workflow
async def bad_input_of_child() -> int:
    return await little(random.randrange(1_000_000))


@workflow
async def bad_id_of_child() -> int:
    return await little.options(id=f"little-{uuid.uuid4()}")(1)


@workflow
async def bad_catch_all_around_child() -> int:
    try:
        return await little(1)
    except BaseException:
        return 5


def ever_more(checked: int) -> bool:
    global asked
    asked += 1
    return asked % 2 == 0


@workflow
class BadWhenRemembers:
    @step(1)
    async def check(self, amount: int = 1) -> int:
        return amount

    @step(2, depends_on=1, when=ever_more)
    async def ask(self, checked: int) -> int:
        return checked


@workflow
class BadWhenReadsClock:
    @step(1)
    async def check(self, amount: int = 1) -> int:
        return amount

    @step(
        2,
        depends_on=1,
        when=lambda checked: time.time_ns() // 1000 % 2 == checked,
    )
    async def ask(self, checked: int) -> int:
        return checked

    @step(3, depends_on=1)
    async def answer(self, checked: int) -> int:
        return checked


FOUND_HERE = {
    bad_child_reads_clock: "reads the clock: `time.time()`",
    bad_started_child_reads_clock: "reads the clock: `time.time()`",
    bad_input_of_child: "draws chance: `random.randrange()`",
    bad_id_of_child: "draws chance: `uuid.uuid4()`",
    bad_catch_all_around_child: "catches every BaseException: `except BaseException:`",
    BadWhenRemembers: "`asked` went from 0 to ",
    BadWhenReadsClock: "reads the clock: `time.time_ns()`",
}


@workflow
async def bad_children_of_set() -> None:
    for word in set(WORDS[:6]):
        await measured(word)


@workflow
async def words_in_any_order() -> None:
    for word in set(WORDS):
        await note(word)


@workflow
async def bad_set_in_child() -> None:
    await words_in_any_order()


FOUND_ELSEWHERE = {
    bad_children_of_set: "depends on the order of a set: `for ... in set(WORDS[:6])`",
    bad_set_in_child: "depends on the order of a set: `for ... in set(WORDS)`",
}


# Steps that are not idempotent: where they are told of, and how


async def give_back_once(what: str) -> None:
    if what in returned:
        raise ValueError(f"{what} was given back before")
    returned.append(what)


@step(compensate=give_back_once)
async def borrow(what: str) -> str:
    return what


@workflow
async def bad_compensation() -> None:
    await borrow("ladder")
    await note()
    raise ValueError("not today")


@workflow
async def borrower(what: str) -> None:
    await borrow(what)
    raise ValueError("not today")


@workflow
async def bad_compensation_in_child() -> str:
    try:
        await borrower("rope")
    except RunFailed as failed:
        return type(failed.__cause__).__name__
    return "whole"


@step
async def count() -> int:
    returned.append("counted")
    return len(returned)


@workflow
async def counter() -> int:
    return await count()


@workflow
async def bad_step_in_child() -> int:
    return await counter()


@workflow
async def bad_step_in_started_child() -> None:
    await counter.start()


NOT_IDEMPOTENT = {
    bad_compensation: "Compensation 3 (give_back_once) returned null in the first run, and raised ValueError",
    bad_compensation_in_child: "Compensation 2 (give_back_once) of run 'bad_compensation_in_child-1:borrower-1'",
    bad_step_in_child: "Step 1 (count) of run 'bad_step_in_child-1:counter-1' returned 1 in the first run, and 2 in",
    bad_step_in_started_child: "run 'bad_step_in_started_child-1:counter-1' returned 1 in the first run, without a",
}
