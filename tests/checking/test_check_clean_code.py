"""Nothing is found in code that replays: a false alarm costs more than a miss."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from check_cases import found, source

from holdfast.checking.checker import check_code

ROOT = Path(__file__).parents[2]

GOOD = {
    "what steps do is their own business": """
        import random
        import time

        def helper():
            return open("x").read()

        @step
        def impure():
            time.sleep(1)
            return helper(), random.random()

        @step(retries=3)
        async def other():
            note("not awaited: a plain call here")
            return time.time()

        @holdfast.step
        def third():
            return time.time()

        @workflow
        async def flow():
            await impure(), await other(), await third()
        """,
    "code outside workflows": """
        import os
        import time

        START = time.time()
        HOME = os.environ["HOME"]

        def unrelated():
            return time.time()

        async def main():
            print(time.time(), await flow())

        @workflow
        async def flow(at=time.time()):
            return START
        """,
    "recorded time and chance": """
        from holdfast import now, random, uuid4
        from holdfast import now as time

        @workflow
        async def flow():
            await note([holdfast.now(), holdfast.random(), holdfast.uuid4()])
            await note([now(), random(), uuid4(), time()])
            await note(holdfast.random().random())
            await asyncio.sleep(5)
            return asyncio.get_running_loop().time()
        """,
    "moments that are given": """
        import random
        import time
        import uuid
        from datetime import date, datetime, timedelta
        import numpy as np
        from pathlib import Path

        @workflow
        async def flow(xs):
            a = datetime(2020, 1, 1) + timedelta(days=1)
            b = datetime.fromisoformat("2020-01-01"), date(2020, 1, 1), datetime.combine
            c = time.gmtime(0), time.strftime("%Y", time.gmtime(0)), time.strptime("1", "%d")
            d = uuid.uuid5(uuid.NAMESPACE_DNS, "x"), uuid.UUID(int=1)
            own = random.Random(42)
            e = own.random(), own.choice(xs), np.random.default_rng(7).random()
            f = Path("a") / "b", Path("a").name.replace("a", "b"), Path("a").with_suffix(".b")
            await note([a, b, c, d, e, f])
        """,
    "names that mean something else": """
        import datetime
        import random
        import time

        class Clock:
            def time(self):
                return 5

        @workflow
        async def flow(time, datetime: Clock):
            await note(time.time())
            await note(datetime.now())
            random = await charge()
            await note(random.random())
            open = await note("x")
            await note(open("y"))
            id = 5
            await note(id)

        @workflow
        async def loops(things):
            for time in things:
                await note(time.time())
            await note([random.choice() for random in things])
            await note((lambda time: time.time())(things))

            def inner(time):
                return time.time()

            await note(inner(Clock()))
        """,
    "a name that is two things": """
        import time
        import random

        if time.time() > 5:
            from fake import clock
        else:
            clock = time
        time = clock

        @workflow
        async def flow():
            await note(time.time())
        """,
    "logging and printing": """
        import logging

        log = logging.getLogger(__name__)

        @workflow
        async def flow():
            print("hello")
            log.info("hello")
            logging.warning("hello")
        """,
    "functions that are handed to steps": """
        import time

        def stamp():
            return time.time()

        @step
        async def call(function):
            return function()

        @workflow
        async def flow():
            await call(stamp)
            await call(lambda: time.time())
            await call(function=[lambda: time.time()])
            later = lambda: time.time()
            await call(later)
            await call(Tool(run=lambda: time.time()))
        """,
    "decorators that may make anything of a function": """
        import time
        from somewhere import task

        @task
        def stamp():
            return time.time()

        @workflow
        async def flow():
            await note(stamp())
        """,
    "a step inside a workflow": """
        import time

        @workflow
        async def flow():
            @step
            def stamp():
                return time.time()

            return await stamp()
        """,
    "sets whose order does not matter": """
        @workflow
        async def flow(given: set[str], numbers: set[int], words):
            for word in sorted(given):
                await note(word)
            await note([len(given), "a" in given, sum(len(word) for word in given), max(given), any(w for w in given)])
            await note(sorted(list(given)) + sorted(word.upper() for word in given))
            await note({word.upper() for word in given})
            await note({word: 1 for word in given})
            for number in {1, 2, 3}:
                await note(number)
            for number in numbers:
                await note(number)
            unique = set(words)
            unique = sorted(unique)
            for word in unique:
                await note(word)
            words = {word for word in words}
            words = list(words) if not words else sorted(words)
            for word in words:
                await note(word)
        """,
    "sets of tasks": """
        @workflow
        async def flow(xs):
            tasks = {asyncio.create_task(charge(x)) for x in xs}
            for task in tasks:
                await task
            background = set()
            for x in xs:
                one = asyncio.create_task(charge(x))
                background.add(one)
                one.add_done_callback(background.discard)
            await asyncio.gather(*background)
            done, pending = await asyncio.wait(tasks)
            for task in done:
                await task
            typed: set[asyncio.Task[int]] = set()
            for task in typed:
                await task
        """,
    "state of the run": """
        from contextvars import ContextVar
        from metrics import counter, registry

        visitor = ContextVar("visitor")
        gauge = registry.gauge()
        limits = {"a": 1}

        class Basket:
            def __init__(self):
                self.items = []

            def add(self, item):
                self.items.append(item)

        @workflow
        async def flow(items):
            total = 0
            mine = {}

            async def one(item):
                nonlocal total
                total += await charge(item)
                mine[item] = total
                mine.update(a=1)

            basket = Basket()
            basket.add(1)
            basket.items = []
            items.append(1)
            visitor.set("me")
            counter.add(1)
            gauge.add(1)
            await asyncio.gather(*[one(item) for item in items])
            return limits["a"]
        """,
    "handlers that let pass": """
        import contextlib
        import json

        @workflow
        async def flow(text):
            try:
                await charge()
            except Exception:
                pass
            try:
                await charge()
            except BaseException:
                await note("undo")
                raise
            try:
                value = json.loads(text)
            except:
                value = None
            with contextlib.suppress(ValueError):
                await charge()
            try:
                await charge()
            finally:
                for x in text:
                    if x:
                        break
            return value
        """,
    "every way to await": """
        @workflow
        async def child(n):
            return n

        async def pair(n):
            return await charge(n), await note(n)

        def later(n):
            return charge(n)

        async def items(xs):
            for x in xs:
                yield await charge(x)

        @workflow
        async def flow(xs, flag):
            await charge(1)
            await asyncio.gather(charge(1), *[charge(x) for x in xs])
            task = asyncio.create_task(charge(1))
            other = asyncio.ensure_future(charge(1))
            calls = [charge(x) for x in xs]
            calls.append(charge(5))
            more = []
            more += [charge(x) for x in xs]
            by_name = {"a": charge(1)}
            async with asyncio.TaskGroup() as group:
                group.create_task(charge(1))
                kept = group.create_task(charge(2))
            for ready in asyncio.as_completed([charge(1), charge(2)]):
                await ready
            done, _ = await asyncio.wait([asyncio.create_task(pair(1))])
            await asyncio.wait_for(charge(1), 5)
            await asyncio.shield(charge(1))
            step_or_not = charge(1) if flag else note(2)
            first = charge(1)
            if flag:
                first.close()
            await first
            async with asyncio.timeout(5):
                await (charge(1) if flag else note(1))
            async for item in items(xs):
                await note(item)
            handle = await child.start(1)
            await child(1)
            await later(1)
            await holdfast.map(lambda x: charge(x), xs)
            chosen = {"charge": charge, "note": note}
            await chosen["charge"](1)
            await asyncio.gather(task, other, *calls, *more, by_name["a"], step_or_not)
            return [kept.result(), handle, done, await asyncio.gather(*(charge(x) for x in xs))]

        @workflow
        async def left_behind():
            task = asyncio.create_task(charge(1))
            await asyncio.sleep(0)
            return task.done()
        """,
    "classes": """
        import time

        @workflow
        class Agent:
            @step(1)
            async def reason(self, prompt: str) -> str:
                return time.time()

            @step(2, depends_on=1, when=lambda reason: len(reason) > 5)
            def act(self, reason: str):
                self.reason("x")
                return open("x")

            def helper(self):
                return time.time()
        """,
    "nothing to do with Holdfast": """
        import time
        from prefect import flow as prefect_flow
        from somewhere import workflow

        @workflow
        async def other():
            return time.time()

        @prefect_flow
        def third():
            return time.time()
        """,
    "recursion without an end": """
        a = b
        b = a

        def ping(n):
            return pong(n)

        def pong(n):
            return ping(n)

        @workflow
        async def flow(x, y):
            x = x | y
            y = y | x
            for one in x:
                await note(a(one) + ping(one))
        """,
}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_in_what_replays(name: str, tmp_path: Path) -> None:
    assert found(tmp_path, source(GOOD[name])) == []


@pytest.mark.parametrize(
    "path",
    ["tests/testing/safe_flows.py", "simulation", "examples", "tests/golden/golden_flows.py"],
)
def test_nothing_is_found_in_workflows_that_are_known_to_replay(path: str) -> None:
    report = check_code([str(ROOT / path)])
    assert report.workflow_count > 0
    assert report.findings == []
    assert report.read_errors == []


def test_nothing_is_found_in_what_the_docs_show(tmp_path: Path) -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, code in enumerate(re.findall(r"^```python(?: test)?\n(.*?)^```", page.read_text(), re.M | re.S)):
            (tmp_path / f"{page.stem}_{number}.py").write_text(code)
    report = check_code([str(tmp_path)])
    assert report.workflow_count > 7
    # But for the one that shows what does not replay.
    assert {(one.workflow, one.kind) for one in report.findings} == {("stamped", "clock")}
