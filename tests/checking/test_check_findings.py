"""What does not replay is found, where it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_cases import expected, found, source

CASES = {
    "clocks": """
        import time
        from datetime import date, datetime

        @workflow
        async def flow():
            a = time.time()  #! clock
            b = time.monotonic(), time.perf_counter_ns()  #! clock clock
            c = datetime.now(), datetime.utcnow()  #! clock clock
            d = date.today()  #! clock
            e = time.strftime("%Y")  #! clock
            f = time.localtime(), time.gmtime()  #! clock clock
            await note([a, b, c, d, e, f])
        """,
    "clocks under other names": """
        import datetime
        import datetime as d
        import time as t
        from datetime import datetime as dt
        from time import time
        from time import monotonic as tick

        stamp = dt.now

        @workflow
        async def flow():
            import time as inner
            await note(t.time())  #! clock
            await note(dt.now())  #! clock
            await note(datetime.datetime.now(datetime.UTC))  #! clock
            await note(d.date.today())  #! clock
            await note(time())  #! clock
            await note(tick())  #! clock
            await note(inner.time())  #! clock
            await note(stamp())  #! clock
        """,
    "random": """
        import os
        import random
        import secrets
        import uuid
        import numpy as np
        from random import choice, Random
        from uuid import uuid4

        @workflow
        async def flow():
            a = random.random() + random.randint(1, 2)  #! random random
            b = choice([1, 2])  #! random
            c = uuid.uuid1(), uuid4()  #! random random
            d = secrets.token_hex(4), os.urandom(4)  #! random random
            e = np.random.rand(3), np.random.default_rng()  #! random random
            f = Random()  #! random
            random.shuffle([1])  #! random
            await note([a, b, c, d, e, f])
        """,
    "files": """
        import os
        import shutil
        from pathlib import Path

        DATA = Path("data")

        @workflow
        async def flow(where: Path, other: Path | None):
            with open("x") as file:  #! io
                await note(file)
            Path("a").write_text("b")  #! io
            (DATA / "a").read_text()  #! io
            where.read_bytes()  #! io
            if DATA.exists():  #! io
                where.parent.mkdir()  #! io
            shutil.rmtree("x")  #! io
            os.remove("x")  #! io
            os.path.exists("x")  #! io
            input("well?")  #! io
            other.read_text()  #! io
        """,
    "environment": """
        import os
        import socket
        from os import environ, getenv

        @workflow
        async def flow():
            await note(os.environ["HOME"])  #! environment
            await note(environ.get("HOME"))  #! environment
            await note(os.getenv("HOME"))  #! environment
            await note(getenv("HOME"))  #! environment
            await note(os.getpid())  #! environment
            await note(socket.gethostname())  #! environment
        """,
    "networks": """
        import subprocess
        import urllib.request
        import aiohttp
        import httpx
        import requests
        from urllib.request import urlopen

        session = requests.Session()
        shared = httpx.AsyncClient()

        @workflow
        async def flow(given: httpx.AsyncClient):
            requests.get("x")  #! io
            session.post("x")  #! io
            await shared.get("x")  #! io
            await given.get("x")  #! io
            urlopen("x")  #! io
            urllib.request.urlopen("x")  #! io
            subprocess.run(["ls"])  #! io
            async with httpx.AsyncClient() as client:
                await client.post("x")  #! io
            async with aiohttp.ClientSession() as web:
                async with web.get("x") as answer:  #! io
                    await note(answer)
        """,
    "models": """
        import anthropic
        import openai
        from openai import AsyncOpenAI

        client = AsyncOpenAI()
        claude = anthropic.AsyncAnthropic()

        @workflow
        async def flow():
            await client.chat.completions.create(model="x")  #! io
            await client.with_options(timeout=1).responses.create(model="x")  #! io
            await claude.messages.create(model="x")  #! io
            await AsyncOpenAI().embeddings.create()  #! io
            openai.chat.completions.create()  #! io
        """,
    "databases": """
        import asyncpg
        import sqlite3
        import redis.asyncio
        from redis import Redis

        cache = Redis()
        other = redis.asyncio.Redis()

        @workflow
        async def flow():
            sqlite3.connect("x")  #! io
            pool = await asyncpg.create_pool("x")  #! io
            await pool.fetch("x")  #! io
            cache.get("x")  #! io
            await other.set("x", 1)  #! io
        """,
    "blocking": """
        import threading
        import time
        from concurrent.futures import ThreadPoolExecutor

        @workflow
        async def flow(loop):
            time.sleep(1)  #! blocking
            await asyncio.to_thread(note)  #! blocking
            await loop.run_in_executor(None, note)  #! blocking
            await asyncio.get_running_loop().run_in_executor(None, note)  #! blocking
            threading.Thread(target=note).start()  #! blocking
            with ThreadPoolExecutor() as pool:  #! blocking
                await note(pool)
            await asyncio.create_subprocess_exec("ls")  #! blocking
            asyncio.run(note())  #! blocking
        """,
    "every way to say workflow": """
        import time
        import holdfast as hf
        from holdfast import workflow as wf
        from holdfast.authoring.workflow import workflow as deep

        @wf
        async def one():
            time.time()  #! clock

        @wf(id="x-{n}")
        async def two(n):
            time.time()  #! clock

        @hf.workflow
        async def three():
            time.time()  #! clock

        @hf.workflow(timeout=5)
        async def four():
            time.time()  #! clock

        @deep
        async def five():
            time.time()  #! clock

        async def six():
            time.time()  #! clock

        flow = workflow(six)

        async def seven():
            time.time()  #! clock

        other = workflow(id="x")(seven)
        nightly = workflow(queue="nightly")

        @nightly
        async def eight():
            time.time()  #! clock

        def make():
            @workflow
            async def nine():
                time.time()  #! clock
            return nine
        """,
    "helpers": """
        import functools
        import time

        class Desk:
            served = 0

            def __init__(self):
                self.opened = time.time()  #! clock

            def serve(self):
                return self.stamp()

            def stamp(self):
                return time.time()  #! clock

            @classmethod
            def next(cls):
                cls.served += 1  #! state

            @staticmethod
            def plain():
                return time.time()  #! clock

        def stamp():
            return deeper()

        def deeper():
            return time.time()  #! clock

        @functools.cache
        def cached():
            return time.time()  #! clock

        def by_time(item):
            return time.time()  #! clock

        async def mapped(item):
            return await note(time.time())  #! clock

        @workflow
        async def flow(xs):
            def inner():
                return time.time()  #! clock

            desk = Desk()
            desk.serve(), Desk.next(), Desk.plain()
            await note(stamp() + inner() + cached())
            sorted(xs, key=by_time)
            sorted(xs, key=lambda _: time.time())  #! clock
            await holdfast.map(mapped, xs)
        """,
    "conditions of declared steps": """
        import random
        import time

        def lucky(reason):
            return random.random() > 0.5  #! random

        @workflow(id="agent-{name}")
        class Agent:
            def early(reason):
                return time.time() < 5  #! clock

            @step(1)
            async def reason(self, name):
                return time.time()

            @step(2, depends_on=1, when=lambda reason: time.time() > 5)  #! clock
            async def act(self, reason):
                return open("x")

            @step(3, depends_on=1, when=lucky)
            def tell(self, reason):
                return random.random()

            @step(4, depends_on=1, when=early)
            def stop(self, reason):
                return random.random()
        """,
    "sets": """
        WORDS = {"a", "b"}

        def distinct(words) -> set[str]:
            return set(words)

        @step
        async def names() -> set[str]:
            return {"a"}

        @workflow
        async def flow(given: set[str]):
            for word in {"a", "b"}:  #! set
                await note(word)
            for word in given:  #! set
                await note(word)
            for word in WORDS:  #! set
                await note(word)
            for word in distinct(["a"]):  #! set
                await note(word)
            for word in await names():  #! set
                await note(word)
            mine = set(WORDS) - {"a"}
            await note(list(mine))  #! set
            await note([word for word in mine])  #! set
            await note(", ".join(mine))  #! set
            await asyncio.gather(*(note(word) for word in mine))  #! set
            await note(mine.pop())  #! set
            await note(f"{mine}")  #! set
            await note({word: await note(word) for word in mine})  #! set
            a, b = {"x": 1}, {"y": 1}
            for key in a.keys() - b.keys():  #! set
                await note(key)
            await note(hash("a"))  #! hash
            await note(sorted([object()], key=id))  #! address
        """,
    "state": """
        import settings

        count = 0
        seen = []
        cache: dict[str, int] = {}

        class Totals:
            sum = 0

        def make():
            drawn = 0
            kept = []

            @workflow
            async def inside():
                nonlocal drawn  #! state
                drawn += 1
                kept.append(1)  #! state
            return inside

        @workflow
        async def flow(items=[]):
            global count  #! state
            count += 1
            seen.append(1)  #! state
            cache["a"] = 1  #! state
            del cache["a"]  #! state
            Totals.sum += 1  #! state
            settings.debug = True  #! state
            items.append(1)  #! state
        """,
    "handlers that stop everything": """
        import contextlib

        @workflow
        async def flow():
            try:
                await charge()
            except:  #! catch-all
                pass
            try:
                await charge()
            except (ValueError, BaseException):  #! catch-all
                await note()
            with contextlib.suppress(BaseException):  #! catch-all
                await charge()
            try:
                await charge()
            finally:
                return 5  #! catch-all
        """,
    "steps that nobody awaits": """
        @workflow
        async def child(n):
            return n

        async def helper():
            await charge()

        @workflow
        async def flow(xs):
            charge(1)  #! await
            note("x")  #! await
            wait_for_signal("go")  #! await
            holdfast.wait_for_signal("go")  #! await
            holdfast.ask("go?")  #! await
            holdfast.map(charge, xs)  #! await
            asyncio.sleep(5)  #! await
            helper()  #! await
            child(1)  #! await
            child.start(2)  #! await
            child.options(id="x")(3)  #! await
            [charge(x) for x in xs]  #! await
            lost = charge(2)  #! await
            dropped = [charge(x) for x in xs]  #! await
            asyncio.create_task(charge(1))  #! await
            asyncio.ensure_future(charge(1))  #! await
            asyncio.gather(charge(1), charge(2))  #! await
        """,
    "questions and tools that nobody awaits": """
        import time
        from holdfast import llm_step, tool

        @llm_step(model="openai:gpt-4o")
        async def ask(what):
            return f"{what} at {time.time()}"

        @tool
        async def look(what):
            return what

        @workflow
        async def flow(what):
            ask(what)  #! await
            look(what)  #! await
            await ask(what)
            await look(what)
        """,
    "coroutines that are taken for outcomes": """
        @workflow
        async def flow(xs):
            total = charge(1) + 1  #! await
            total += charge(2)  #! await
            if charge(3):  #! await
                total = 5
            for one in note(xs):  #! await
                total += one
            text = f"{note('x')}"  #! await
            print(note(text))  #! await
            await note(charge(4))  #! await
            await note(what=charge(4))  #! await
            first = note(xs)[0]  #! await
            name = note(xs).name  #! await
            paid = charge(5)  #! await
            if paid > 5:
                return charge(first)  #! await
            return [charge(x) for x in (name, xs)]  #! await
        """,
    "steps of other kinds": """
        def plain():
            return open("x")

        made = step(plain)
        reliable = step(retries=5)

        @reliable
        def other():
            return open("x")

        @workflow
        async def flow():
            made()  #! await
            other()  #! await
        """,
    "an import that may fail": """
        try:
            import httpx
        except ImportError:
            httpx = None

        @workflow
        async def flow():
            httpx.get("x")  #! io
        """,
    "names from a star": """
        from holdfast import *
        import time

        @workflow
        async def flow():
            await note(time.time())  #! clock
            wait_for_signal("x")  #! await
        """,
    "nested and unusual places": """
        import time

        @workflow
        async def flow(xs):
            match xs:
                case [one] if time.time() > one:  #! clock
                    await note(one)
            async with asyncio.timeout(time.time()):  #! clock
                while (now := time.time()) < 5:  #! clock
                    await note(now)
            def late(at=time.time()):  #! clock
                return at
            class Local:
                at = time.time()  #! clock
            return [time.time() for _ in xs]  #! clock
        """,
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_found_where_it_is_written(name: str, tmp_path: Path) -> None:
    text = source(CASES[name])
    assert found(tmp_path, text) == sorted(expected(text))
