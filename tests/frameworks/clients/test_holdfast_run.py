"""``holdfast run``: a script in which no line has changed, killed everywhere."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kill_kit import REQUEST, App, Kill, make_reference, run_app

from holdfast import Client

LAUNCHER = ("-m", "holdfast.cli", "run")


def call(tool: str, query: str) -> dict[str, Any]:
    return {"tool": tool, "arguments": {"query": query}}


SCRIPTS = {
    "trip": [
        {"text": "I look.", "calls": [call("search", "Oslo"), call("search", "Rome")]},
        {"calls": [call("charge", "card"), call("search", "Bergen")]},
        {"text": "All is booked."},
    ],
    **{name: [{"text": f"Hello {name}!"}, {"text": f"Hello {name}!"}] for name in ("ada", "bob", "eve")},
}


def make_app(*options: str, arguments: Sequence[str] = ("a", "--flag")) -> App:
    script = Path(__file__).with_name("plain_script.py")
    return App(script, SCRIPTS, once={"charge"}, arguments=arguments, launcher=(*LAUNCHER, *options))


def get_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs.db'}"


def test_a_killed_script_repeats_only_what_was_in_flight(check_kills):
    check_kills(make_app())


def test_a_script_reports_what_it_recorded_and_what_it_has_saved(tmp_path: Path):
    app, url = make_app("--id", "trip"), get_url(tmp_path)
    first = run_app(app, tmp_path, url, Kill(REQUEST, 6))
    assert first.returncode == -signal.SIGKILL
    assert "holdfast: recording run trip" in first.log
    second = run_app(app, tmp_path, url)
    assert second.returncode == 0, second.log
    assert re.search(r"continuing run trip: \d model calls? and 4 other steps recorded", second.log)
    assert re.search(r"run trip has completed; \d model calls? and 4 other steps answered from the record", second.log)
    assert re.search(r"from the record, which saved [\d,]+ tokens and \$0\.\d+", second.log), second.log
    third = run_app(app, tmp_path, url)
    assert third.returncode == 1
    assert "run 'trip' has completed. To run the script again, use another --id" in third.log
    assert (third.requests, third.result) == (0, None)


def test_a_script_has_its_place_among_runs_without_its_keys(tmp_path: Path):
    url = get_url(tmp_path)
    make_reference(make_app("--id", "trip"), tmp_path, url)

    async def read() -> tuple[Any, ...]:
        async with Client(url) as client:
            handle = client.handle("trip")
            return await handle.info(), await handle.usage(), await handle.conversation()

    info, usage, conversation = asyncio.run(read())
    assert (info.workflow, info.state) == ("plain_script", "completed")
    assert usage.calls == 7
    assert usage.cost
    assert "All is booked." in [message.text for message in conversation]
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("runs.db*") if path.is_file())
    assert b"script:trip" in stored
    assert os.environ.get("OPENAI_API_KEY", "sk-test-key").encode() not in stored


def test_a_supervised_script_is_started_again(tmp_path: Path):
    app, url = make_app("--supervise", "--id", "trip"), get_url(tmp_path)
    ending = run_app(app, tmp_path, url, Kill("start:search", 2))
    assert ending.returncode == 0, ending.log
    assert "the process died (SIGKILL); it is started again" in ending.log
    assert "continuing run trip" in ending.log
    assert ending.result is not None
    assert ending.result.endswith("['a', '--flag']")
    assert ending.effects["end:charge"] == 1


def test_a_changed_script_stops_and_shows_what_has_changed(tmp_path: Path):
    script = tmp_path / "changing.py"
    script.write_text(CHANGING)
    app = App(script, {"one": [{"text": "One."}] * 9}, launcher=(*LAUNCHER, "--id", "changing"))
    url = get_url(tmp_path)
    first = run_app(app, tmp_path, url, Kill(REQUEST, 3))
    assert first.returncode == -signal.SIGKILL
    changed = App(script, app.scripts, launcher=app.launcher, environment={"SUBJECT": "cats"})
    stopped = run_app(changed, tmp_path, url)
    assert stopped.returncode == 1
    assert stopped.requests == 0
    assert "-content: script:one Write about dogs." in stopped.log
    assert "+content: script:one Write about cats." in stopped.log
    live = App(script, app.scripts, launcher=(*app.launcher, "--on-change", "live"), environment={"SUBJECT": "cats"})
    ending = run_app(live, tmp_path, url)
    assert ending.returncode == 0, ending.log
    assert ending.requests == 2  # the first call is answered from the record
    assert ending.result == "One. One. One."


@pytest.mark.parametrize("code", ["paying", "paying_async"])
def test_a_script_whose_first_call_has_changed_stops_before_it_pays_again(code: str, tmp_path: Path):
    script = tmp_path / f"{code}.py"
    script.write_text(PAYING if code == "paying" else PAYING_ASYNC)
    app = App(script, {"one": [{"text": "One."}] * 9}, launcher=(*LAUNCHER, "--id", code))
    url = get_url(tmp_path)
    first = run_app(app, tmp_path, url, Kill(REQUEST, 2))
    assert first.returncode == -signal.SIGKILL
    assert "CHARGED" in first.log
    changed = App(script, app.scripts, launcher=app.launcher, environment={"SUBJECT": "cats"})
    stopped = run_app(changed, tmp_path, url)
    assert stopped.returncode == 1
    assert stopped.requests == 0
    assert "CHARGED" not in stopped.log
    assert "+content: script:one Write about cats." in stopped.log


PAYING = """
import os
import openai
from holdfast import once

def ask(task):
    request = [{"role": "user", "content": f"script:one {task}"}]
    done = openai.OpenAI().chat.completions.create(model="gpt-4o", messages=request)
    return done.choices[0].message.content

ask(f"Write about {os.environ.get('SUBJECT', 'dogs')}.")
once("charge-42", print, "CHARGED", flush=True)
ask("Say goodbye.")
"""
PAYING_ASYNC = """
import asyncio
import os
import openai
from holdfast import once

async def ask(task):
    request = [{"role": "user", "content": f"script:one {task}"}]
    done = await openai.AsyncOpenAI().chat.completions.create(model="gpt-4o", messages=request)
    return done.choices[0].message.content

async def charge():
    print("CHARGED", flush=True)

async def main():
    await ask(f"Write about {os.environ.get('SUBJECT', 'dogs')}.")
    await once("charge-42", charge)
    await ask("Say goodbye.")

asyncio.run(main())
"""

CHANGING = """
import os
import openai

client = openai.OpenAI()
texts = []
for task in ("Say hello.", f"Write about {os.environ.get('SUBJECT', 'dogs')}.", "Say goodbye."):
    request = [{"role": "user", "content": f"script:one {task}"}]
    done = client.chat.completions.create(model="gpt-4o", messages=request)
    texts.append(done.choices[0].message.content)
print("RESULT:", " ".join(texts))
"""


@pytest.mark.parametrize("failure", ["raise ValueError('no such city')", "raise SystemExit(3)"])
def test_a_script_that_fails_ends_as_without_holdfast_and_can_be_continued(tmp_path: Path, failure: str):
    script = tmp_path / "failing.py"
    script.write_text(f"import os\n{CHANGING}\nif os.environ.get('FAILS'):\n    {failure}\n")
    app = App(script, {"one": [{"text": "One."}] * 9}, launcher=LAUNCHER, environment={"FAILS": "1"})
    url = get_url(tmp_path)
    failed = run_app(app, tmp_path, url)
    assert failed.returncode == (1 if "ValueError" in failure else 3)
    assert ("ValueError: no such city" in failed.log) == ("ValueError" in failure)
    assert "has failed; the same command continues it" in failed.log
    assert "holdfast/scripts" not in failed.log
    done = run_app(App(script, app.scripts, launcher=LAUNCHER), tmp_path, url)
    assert (done.returncode, done.requests) == (0, 0)


def test_a_script_without_model_calls_leaves_no_run(tmp_path: Path):
    script = tmp_path / "idle.py"
    script.write_text("import sys\nprint('RESULT:', __name__, sys.argv[1:], 'idle.py' in sys.argv[0])")
    ending = run_app(App(script, {}, arguments=["x"], launcher=LAUNCHER), tmp_path, get_url(tmp_path))
    assert ending.result == "__main__ ['x'] True"
    assert not (tmp_path / "runs.db").exists()


def test_a_process_that_waits_takes_over_when_the_other_one_dies(tmp_path: Path):
    app, url = make_app("--id", "trip"), get_url(tmp_path)
    kill = Kill(REQUEST, 6)  # only the process that executes the run makes as many requests
    with ThreadPoolExecutor(2) as pool:
        endings = list(pool.map(lambda _: run_app(app, tmp_path, url, kill), range(2)))
    assert sorted(ending.returncode for ending in endings) == [-signal.SIGKILL, 0], [one.log for one in endings]
    survivor = next(ending for ending in endings if not ending.returncode)
    assert "continuing run trip" in survivor.log
    assert survivor.requests <= 4
    assert survivor.effects["end:charge"] == 1  # of both, which share the ledger
