"""Workflows that use asyncio in every way that a journal must reproduce. Each is given a ``World``."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator
from typing import Any

import anyio
from scripted_execution import Failed, Flow, World

FLOWS: dict[str, Flow] = {}


def flow(*, signals: tuple[str, ...] = (), deadline: bool | None = None) -> Any:
    def register(function: Any) -> Any:
        function.signals, function.deadline = signals, deadline
        FLOWS[function.__name__] = function
        return function

    return register


async def attempt(w: World, name: str) -> str:
    try:
        return await w.step(name)
    except Failed as failed:
        return f"<{failed}>"


@flow()
async def one_after_the_other(w: World) -> list[str]:
    return [await attempt(w, name) for name in ("a", "b", "fail c", "d")]


@flow()
async def gather_in_parallel(w: World) -> Any:
    async def branch(n: int) -> str:
        first = await w.step(f"{n}.first")
        w.note(n, first)
        return first + await w.step(f"{n}.second")

    first = await asyncio.gather(*[branch(n) for n in range(5)])
    mixed = await asyncio.gather(w.step("x"), w.step("fail y"), w.step("z"), return_exceptions=True)
    return first, [repr(one) for one in mixed]


@flow()
async def gather_that_fails_leaves_its_others_running(w: World) -> Any:
    async def slow() -> None:
        try:
            for n in range(3):
                w.note("slow", await w.step(f"slow {n}"))
        except asyncio.CancelledError:
            w.note("slow cancelled")
            raise

    task = asyncio.create_task(slow())
    with contextlib.suppress(Failed):
        await asyncio.gather(task, w.step("fail fast"), w.step("other"))
    w.note("gathered")
    await w.step("after")
    return task.done()


@flow()
async def a_task_group(w: World) -> Any:
    seen: list[str] = []

    async def worker(n: int) -> None:
        for part in range(n):
            seen.append(await w.step(f"{n}/{part}"))

    async with asyncio.TaskGroup() as group:
        for n in range(5):
            group.create_task(worker(n))
    return seen


@flow()
async def a_task_group_in_which_one_fails(w: World) -> Any:
    async def worker(n: int) -> None:
        try:
            await w.step(f"work {n}")
            if n == 2:
                await w.step("fail now")
            await asyncio.sleep(1 + n)
            await w.step(f"more {n}")
        except asyncio.CancelledError:
            w.note("cleaning up", n)
            await w.step(f"undo {n}")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(5):
                group.create_task(worker(n))
    except* Failed as failures:
        w.note(len(failures.exceptions))
    return await w.step("last")


@flow()
async def wait_for_the_first(w: World) -> Any:
    pending = {asyncio.create_task(w.step(f"s{n}"), name=f"s{n}") for n in range(6)}
    order: list[str] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            order.append(task.result())
            await w.step(f"after {task.get_name()}")
        if len(order) >= 4:
            for task in pending:
                task.cancel()
            break
    return order


@flow()
async def wait_with_a_timeout(w: World) -> Any:
    tasks = [asyncio.ensure_future(w.step(f"t{n}")) for n in range(4)]
    done, pending = await asyncio.wait(tasks, timeout=0.3)
    w.note([task.result() for task in done], len(pending))
    for task in done:
        await w.step(f"seen {task.result()}")
    done, _ = await asyncio.wait(
        [*pending, asyncio.create_task(attempt(w, "fail u"))], return_when=asyncio.FIRST_EXCEPTION
    )
    return sorted(task.result() for task in done)


@flow()
async def as_completed_in_the_order_of_outcomes(w: World) -> Any:
    order: list[str] = []
    for first in asyncio.as_completed([w.step(f"c{n}") for n in range(6)]):
        order.append(await first)
        if len(order) == 3:
            await w.step("half time")
    return order


@flow()
async def as_completed_with_a_timeout(w: World) -> Any:
    order: list[str] = []
    tasks = [asyncio.create_task(w.step(f"c{n}")) for n in range(5)]
    try:
        for first in asyncio.as_completed(tasks, timeout=0.6):
            order.append(await first)
    except TimeoutError:
        w.note("too late")
        for task in tasks:
            task.cancel()
        await w.step("clean up")
    return order


@flow()
async def timeouts(w: World) -> Any:
    results: list[str] = []
    for n in range(4):
        try:
            async with asyncio.timeout(0.3) as scope:
                results.append(await w.step(f"slow {n}"))
                if n == 2:
                    scope.reschedule(asyncio.get_running_loop().time() + 0.5)
                results.append(await w.step(f"slower {n}"))
        except TimeoutError:
            results.append(await w.step(f"instead of {n}"))
    async with asyncio.timeout(None):
        await w.step("unhurried")
    return results


@flow()
async def wait_for_a_while(w: World) -> Any:
    results: list[Any] = []
    for n, limit in enumerate((0.2, 0.4, None, 0, -1)):
        try:
            results.append(await asyncio.wait_for(w.step(f"w{n}"), limit))
        except TimeoutError:
            results.append("late")
            await w.step(f"after {n}")
    done = asyncio.get_running_loop().create_future()
    done.set_result("there already")
    results.append(await asyncio.wait_for(done, 0))
    event = asyncio.Event()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), 5)
    return results


@flow()
async def sleeping(w: World) -> Any:
    async def sleeper(seconds: float) -> float:
        await asyncio.sleep(seconds)
        w.note("woke", seconds)
        await w.step(f"after {seconds}")
        return seconds

    await asyncio.sleep(0)
    naps = await asyncio.gather(*[sleeper(seconds) for seconds in (3, 1, 2, 1, 0, -1, 0.5)])
    await asyncio.sleep(3600)
    return naps


@flow()
async def events_between_tasks(w: World) -> Any:
    ready, results = asyncio.Event(), []

    async def waiter(n: int) -> None:
        await ready.wait()
        results.append(await w.step(f"waiter {n}"))

    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(waiter(n))
        await w.step("prepare")
        ready.set()
    return results


@flow()
async def a_queue_with_consumers(w: World) -> Any:
    queue: asyncio.Queue[str] = asyncio.Queue(2)
    results: list[str] = []

    async def consume(n: int) -> None:
        while True:
            item = await queue.get()
            results.append(f"{n}:{await w.step(f'eat {item}')}")
            queue.task_done()

    consumers = [asyncio.create_task(consume(n)) for n in range(3)]
    for n in range(6):
        await queue.put(await w.step(f"make {n}") if n % 2 else f"raw {n}")
    await queue.join()
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return results


@flow()
async def locks_and_semaphores(w: World) -> Any:
    lock, gate, results = asyncio.Lock(), asyncio.Semaphore(2), []

    async def work(n: int) -> None:
        async with gate:
            await w.step(f"prepare {n}")
            try:
                async with asyncio.timeout(2):
                    async with lock:
                        results.append(await w.step(f"alone {n}"))
            except TimeoutError:
                w.note("no lock", n)

    await asyncio.gather(*[work(n) for n in range(6)])
    return results


@flow()
async def a_condition_and_a_barrier(w: World) -> Any:
    condition, barrier, stock, results = asyncio.Condition(), asyncio.Barrier(3), [], []

    async def buy(n: int) -> None:
        async with condition:
            await condition.wait_for(lambda: bool(stock))
            results.append(f"{n} got {stock.pop()}")
        await w.step(f"carry home {n}")
        results.append(await barrier.wait())

    async def sell() -> None:
        for n in range(3):
            item = await w.step(f"produce {n}")
            async with condition:
                stock.append(item)
                condition.notify(2)

    await asyncio.gather(*[buy(n) for n in range(3)], sell())
    return results


@flow()
async def shielded_work(w: World) -> Any:
    async def important() -> str:
        await w.step("important 1")
        return await w.step("important 2")

    task = asyncio.create_task(important())
    try:
        async with asyncio.timeout(0.3):
            return await asyncio.shield(task)
    except TimeoutError:
        await w.step("meanwhile")
        return "late", await task


@flow()
async def nested_tasks(w: World) -> Any:
    async def node(name: str, depth: int) -> list[Any]:
        own = await w.step(name)
        if depth == 0:
            return [own]
        children = [asyncio.create_task(node(f"{name}.{n}", depth - 1)) for n in range(2)]
        return [own, *[await child for child in children]]

    return await node("root", 3)


@flow()
async def cancelling_with_cleanup_steps(w: World) -> Any:
    async def job(n: int) -> None:
        try:
            try:
                await w.step(f"job {n}")
                await asyncio.sleep(100)
            finally:
                w.note("undo", await w.step(f"undo {n}"))
        except asyncio.CancelledError:
            w.note("cancelled", n, asyncio.current_task().cancelling())  # type: ignore[union-attr]
            raise

    jobs = [asyncio.create_task(job(n)) for n in range(4)]
    await w.step("think")
    jobs[1].cancel("no longer needed")
    jobs[3].cancel()
    await w.step("think again")
    jobs[0].cancel()
    jobs[1].cancel()
    results = await asyncio.gather(*jobs[:2], jobs[3], return_exceptions=True)
    jobs[2].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await jobs[2]
    return [repr(one) for one in results]


@flow()
async def async_generators(w: World) -> Any:
    async def pages(name: str) -> AsyncIterator[str]:
        try:
            for n in range(4):
                yield await w.step(f"{name} page {n}")
        finally:
            w.note("closing", name)
            await w.step(f"close {name}")

    read: list[str] = []
    async for page in pages("left early"):
        read.append(page)
        if len(read) == 2:
            break
    async with contextlib.aclosing(pages("closed")) as closed:
        async for page in closed:
            read.append(page)
            break
    never_closed = pages("never closed")
    read.append(await anext(never_closed))
    read.extend([page async for page in pages("to the end")])
    return read


@flow()
async def anyio_task_groups(w: World) -> Any:
    results: list[str] = []

    async def work(n: int) -> None:
        try:
            results.append(await w.step(f"work {n}"))
            await anyio.sleep(n)
            results.append(await w.step(f"more {n}"))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await w.step(f"undo {n}")
            raise

    async with anyio.create_task_group() as group:
        for n in range(5):
            group.start_soon(work, n)
        await w.step("middle")
        with anyio.move_on_after(1.5) as scope:
            await anyio.sleep(1)
            await w.step("in time?")
        if scope.cancelled_caught:
            group.cancel_scope.cancel()
    send, receive = anyio.create_memory_object_stream[str](1)

    async def produce() -> None:
        async with send:
            for n in range(3):
                await send.send(await w.step(f"send {n}"))

    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        async with receive:
            async for item in receive:
                results.append(item)
    return results


@flow()
async def fire_and_forget(w: World) -> Any:
    async def aside(n: int) -> None:
        try:
            await w.step(f"aside {n}")
            if n == 1:
                raise ValueError("nobody looks at this")
            await w.step(f"aside {n} again")
        finally:
            w.note("aside ends", n)

    for n in range(4):
        asyncio.create_task(aside(n))  # noqa: RUF006
        await w.step(f"main {n}")
    return "done"


@flow(signals=("go", "stop"))
async def signals_with_timeouts(w: World) -> Any:
    results: list[str] = []
    for n in range(5):
        try:
            async with asyncio.timeout(0.5):
                results.append(await w.signal("go"))
        except TimeoutError:
            results.append(await w.step(f"nobody came {n}"))
        if n == 3:
            results.append(await w.signal("stop"))
    return results


@flow(signals=("go",))
async def two_waits_for_one_name(w: World) -> Any:
    results: list[str] = []

    async def wait(n: int) -> None:
        results.append(f"{n} got {await w.signal('go')}")
        await w.step(f"act {n}")

    await asyncio.gather(*[wait(n) for n in range(3)], w.step("beside"))
    results.append(await w.signal("go"))
    return results


@flow(signals=("go",))
async def waits_cancelled_while_their_signal_is_on_its_way(w: World) -> Any:
    results: list[Any] = []
    for n in range(4):
        first = asyncio.create_task(w.signal("go"))
        second = asyncio.create_task(w.signal("go"))
        await w.step(f"think {n}")
        first.cancel()
        await asyncio.wait([first, second], timeout=1)
        results.append([one.result() if one.done() and not one.cancelled() else None for one in (first, second)])
        second.cancel()
    results.append(await w.signal("go"))
    return results


@flow(signals=("stop",), deadline=True)
async def a_run_with_a_deadline(w: World) -> Any:
    try:
        for n in range(8):
            await w.step(f"work {n}")
            async with asyncio.timeout(3):
                await asyncio.sleep(1)
        return await w.signal("stop")
    finally:
        w.note("leaving", await w.step("undo"))


@flow()
async def context_variables(w: World) -> Any:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    results: list[str] = []

    async def act(name: str) -> None:
        results.append(f"before {who.get()}")
        who.set(name)
        await w.step(f"as {name}")
        results.append(f"after {who.get()}")

    who.set("main")
    await asyncio.gather(*[act(f"n{n}") for n in range(4)])
    return results, who.get()


@flow()
async def sets_of_tasks(w: World) -> Any:
    """The order of a set of tasks is the order of their hashes, which must not be their addresses."""
    order: list[str] = []
    for turn in range(3):
        tasks = {asyncio.create_task(w.step(f"{turn}.{n}"), name=f"{turn}.{n}") for n in range(7)}
        await w.step(f"hold {turn}")
        for task in tasks:
            if not task.done():
                task.cancel()
        done, _ = await asyncio.wait(tasks)
        for task in done:
            order.append(await w.step(f"then {task.get_name()}"))
    return order


@flow()
async def callbacks_and_futures(w: World) -> Any:
    loop = asyncio.get_running_loop()
    seen: list[Any] = []
    future = loop.create_future()
    loop.call_later(0.4, future.set_result, "late")
    loop.call_soon(seen.append, "soon")
    handle = loop.call_later(9, seen.append, "never")
    task = asyncio.create_task(w.step("observed"))
    task.add_done_callback(lambda done: seen.append(done.result()))
    await w.step("first")
    seen.append(await future)
    handle.cancel()
    await task
    async with asyncio.timeout_at(loop.time() + 50):
        await w.step("last")
    return seen


@flow()
async def sets_of_gathers(w: World) -> Any:
    """What ``gather`` returns is a future too, and ends up in the sets of ``wait``."""
    groups = {asyncio.gather(*[w.step(f"{n}.{part}") for part in range(2)]): str(n) for n in range(6)}
    _, pending = await asyncio.wait(groups, return_when=asyncio.FIRST_COMPLETED)
    for group in pending:
        group.cancel()
        await w.step(f"dropped {groups[group]}")
    return len(pending)


@flow()
async def nested_anyio_scopes(w: World) -> Any:
    async def work(n: int) -> None:
        try:
            with anyio.move_on_after(50):
                await w.step(f"work {n}")
                with anyio.fail_after(40):
                    await anyio.sleep(30)
        finally:
            with anyio.CancelScope(shield=True):
                await w.step(f"undo {n}")

    with anyio.move_on_after(3) as scope:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            for n in range(6):
                (inner if n % 2 else outer).start_soon(work, n)
            await w.step("middle")
            if asyncio.get_running_loop().time() - 1000 > 0.5:
                inner.cancel_scope.cancel()
    return scope.cancelled_caught


@flow(signals=("go",))
async def patches_in_all_branches(w: World) -> Any:
    async def branch(n: int) -> list[str]:
        told = [await attempt(w, f"{n}.first")]
        if w.patched("together"):
            told += await asyncio.gather(attempt(w, f"{n}.x"), attempt(w, f"fail {n}.y"))
        if w.patched(f"only {n}"):
            await asyncio.sleep(0.1 * n)
            told.append(await attempt(w, f"{n}.last"))
        return told

    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(branch(n)) for n in range(3)]
    w.note(w.patched("together"), w.patched("the end"))
    return [one.result() for one in branches], await w.signal("go")
