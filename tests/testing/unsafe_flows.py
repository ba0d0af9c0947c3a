"""Workflows that do not survive every crash, each with what is wrong with it.

They lie in a module, not in the tests, because other Python processes have to find them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import random
import secrets
import time
import uuid
from datetime import datetime
from typing import Any

from safe_flows import note, square

from holdfast import workflow

# Bad ones: what is wrong, and words of the cause that must be named

visits = 0
memory: dict[str, int] = {}
seen: list[int] = []
numbers = itertools.count()


class Desk:
    served = 0

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @classmethod
    def next(cls) -> int:
        cls.served += 1
        return cls.served


@functools.lru_cache
def lucky_number() -> float:
    return random.random()


def stamp() -> str:
    return datetime.now().isoformat()


def distinct(words: list[str]) -> set[str]:
    return set(words)


@workflow
async def bad_clock() -> None:
    await note(time.time())


@workflow
async def bad_clock_in_helper() -> None:
    await note()
    await note(stamp())


@workflow
async def bad_wall_time_returned() -> float:
    await note()
    return time.time()


@workflow
async def bad_stop_watch() -> float:
    start = time.perf_counter()
    await note()
    return time.perf_counter() - start


@workflow
async def bad_global_counter() -> None:
    global visits
    visits += 1
    await note(visits)


@workflow
async def bad_module_cache() -> None:
    if "rate" not in memory:
        memory["rate"] = await note("load")
    await note("use")


@workflow
async def bad_list_of_module() -> None:
    await note(len(seen))
    seen.append(1)
    await note()


@workflow
async def bad_iterator_of_module() -> None:
    await note(next(numbers))


@workflow
async def bad_class_counter() -> None:
    await note(Desk.next())


@workflow
async def bad_mutable_default(items: list[int] = []) -> None:  # noqa: B006
    items.append(1)
    await note(len(items))


def _make_bad_closure() -> Any:
    count = 0

    @workflow
    async def bad_closure() -> None:
        nonlocal count
        count += 1
        await note(count)

    return bad_closure


bad_closure = _make_bad_closure()


@workflow
async def bad_random() -> None:
    await note()
    await note(random.random())


@workflow
async def bad_shuffle() -> None:
    row = list(range(20))
    random.shuffle(row)
    await note(row)


@workflow
async def bad_uuid() -> None:
    await note(str(uuid.uuid4()))


@workflow
async def bad_secret() -> None:
    await note(secrets.token_hex(4))


@workflow
async def bad_urandom() -> None:
    await note(os.urandom(4).hex())


@workflow
async def bad_environment() -> None:
    os.environ["ZOO_VISITS"] = os.environ.get("ZOO_VISITS", "") + "x"
    await note(os.environ["ZOO_VISITS"])


@workflow
async def bad_order_by_id() -> None:
    desks = [Desk(number) for number in range(8)]
    for desk in sorted(desks, key=id):
        await note(desk.number)


@workflow
async def bad_set_of_objects() -> None:
    for desk in {Desk(number) for number in range(8)}:
        await note(desk.number)


@workflow
async def bad_repr() -> None:
    await note(repr(Desk()))


@workflow
async def bad_catch_all_and_return() -> int:
    try:
        return await note()
    except BaseException:
        return 5


@workflow
async def bad_catch_all_and_go_on() -> None:
    try:
        await note(1)
    except:  # noqa: E722
        pass
    await note(2)


@workflow
async def bad_suppress() -> None:
    with contextlib.suppress(BaseException):
        await asyncio.sleep(10)
    await asyncio.sleep(10)


@workflow
async def bad_return_in_finally() -> int:
    try:
        await note()
    finally:
        return 5  # noqa: B012


@workflow
async def bad_catch_all_for_ever() -> None:
    while True:
        try:
            await note()
            return
        except BaseException:
            pass


@workflow
async def bad_catch_all_in_child() -> int:
    async def child() -> None:
        try:
            await note()
        except BaseException:
            pass

    await asyncio.create_task(child())
    return 1


FOUND_HERE = {
    bad_clock: "reads the clock: `time.time()`",
    bad_clock_in_helper: "reads the clock: `datetime.now()`",
    bad_wall_time_returned: "reads the clock: `time.time()`",
    bad_stop_watch: "reads the clock: `time.perf_counter()`",
    bad_global_counter: "`visits` went from 0 to ",
    bad_module_cache: "`memory` went from {} to {'rate': 1}",
    bad_list_of_module: "`seen` went from [] to [1",
    bad_iterator_of_module: "`numbers` went from count(0) to count(",
    bad_class_counter: "`Desk.served` went from 0 to ",
    bad_mutable_default: "the default of `items` went from [] to [1",
    bad_closure: "`count` went from 0 to ",
    bad_random: "draws chance: `random.random()`",
    bad_shuffle: "draws chance: `random.shuffle()`",
    bad_uuid: "draws chance: `uuid.uuid4()`",
    bad_secret: "draws chance: `secrets.token_hex()`",
    bad_urandom: "draws chance: `os.urandom()`",
    bad_environment: "looks at its surroundings: `os.environ`",
    bad_order_by_id: "depends on the addresses of objects: `id`",
    bad_set_of_objects: "depends on the order of a set: `for ... in {Desk(number)",
    bad_repr: "depends on the addresses of objects: the `repr` of an object",
    bad_catch_all_and_return: "catches every BaseException: `except BaseException:`",
    bad_catch_all_and_go_on: "catches every BaseException: `except:`",
    bad_suppress: "catches every BaseException: `contextlib.suppress(BaseException)`",
    bad_return_in_finally: "catches every BaseException: `return 5` in a `finally` block",
    bad_catch_all_for_ever: "catches every BaseException: `except BaseException:`",
    bad_catch_all_in_child: "catches every BaseException: `except BaseException:`",
}

WORDS = ("apple", "pear", "fig", "kiwi", "plum", "lime", "date", "melon", "peach", "cherry", "grape", "olive")
"""So many that two processes hardly ever have them in the same order."""


@workflow
async def bad_loop_over_set() -> None:
    for word in {"apple", "pear", "fig", "kiwi", "plum", "lime", "date", "melon", "peach", "cherry", "grape"}:
        await note(word)


@workflow
async def bad_set_returned() -> list[str]:
    words = set(WORDS)
    await note()
    return list(words)


@workflow
async def bad_set_from_helper() -> None:
    await asyncio.gather(*[note(word) for word in distinct(list(WORDS))])


@workflow
async def bad_set_input(words: set[str]) -> None:
    for word in words:
        await note(word)


@workflow
async def bad_set_popped() -> None:
    words = set(WORDS)
    while words:
        await note(words.pop())


@workflow
async def bad_set_in_error() -> None:
    await note()
    raise ValueError(", ".join(set(WORDS)))


@workflow
async def bad_hash() -> None:
    await note(hash("apple"))


@workflow
async def bad_cached_chance() -> None:
    await note(lucky_number())


@workflow
async def bad_process_number() -> int:
    await note()
    return os.getpid()


FOUND_ELSEWHERE = {
    bad_loop_over_set: "depends on the order of a set: `for ... in {'apple'",
    bad_set_returned: "depends on the order of a set: `list(words)`",
    bad_set_from_helper: "depends on the order of a set: `distinct()` returns one",
    bad_set_input: "depends on the order of a set: `for ... in words`",
    bad_set_popped: "depends on the order of a set: `set.pop()`",
    bad_set_in_error: "depends on the order of a set: `', '.join(set(WORDS))`",
    bad_hash: "depends on hashes: `hash()`",
    bad_cached_chance: "`lucky_number` caches earlier results",
    bad_process_number: "looks at its surroundings: `os.getpid()`",
}


@workflow
async def bad_clock_beside_cache() -> None:
    await note(square(2) + time.time())
