"""Interrupting a run's code from another thread: it hits that code, or nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from asyncio import events

import pytest

from holdfast.core.interruption import InterruptWindow, WorkflowBlocked
from holdfast.core.loop import RunLoop


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_only_an_open_window_is_hit():
    window, prepared = InterruptWindow(), []
    for is_open, is_wanted in ((False, True), (True, False), (False, False)):
        window.is_open = is_open
        assert not window.interrupt(threading.get_ident(), lambda wanted=is_wanted: wanted, lambda: prepared.append(1))
    spin(0.01)
    assert prepared == []


def test_code_that_is_running_is_interrupted():
    loop, caught = RunLoop("run-7", 0.0), []

    async def code() -> None:
        try:
            spin(15)
        except BaseException as error:
            caught.append(type(error))
            raise

    task = loop.call_inside(lambda: loop.create_task(code()))
    me = threading.get_ident()
    hit = threading.Timer(0.05, lambda: loop.interrupt_window.interrupt(me, lambda: True, lambda: None))
    hit.start()
    while not loop.turn():
        pass
    hit.join()
    assert caught == [WorkflowBlocked]
    assert isinstance(task.exception(), WorkflowBlocked)


@pytest.mark.parametrize("length", [0.0, 2e-5, 1e-4])
def test_an_interruption_at_any_moment_reaches_nothing_but_the_runs_own_code(length: float):
    """The engine's side of each turn is long; if it were hit, the exception would end this test."""
    loop, me, over = RunLoop("run-7", 0.0), threading.get_ident(), threading.Event()
    hits = 0

    def interrupt() -> None:
        nonlocal hits
        while not over.is_set():
            # It takes its time between the look at the window and the exception: the turn ends meanwhile.
            hits += loop.interrupt_window.interrupt(me, lambda: True, lambda: time.sleep(0.0003))
            time.sleep(0.0001)

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            loop.call_inside(loop.call_soon, spin, length)
            loop.turn()
            assert events._get_running_loop() is None
            spin(length)
    finally:
        over.set()
        other.join()
    spin(0.01)
    assert hits > 0
    assert asyncio.run(asyncio.sleep(0, "fine")) == "fine"


PROFILED = """
import subprocess
import sys
from holdfast.core.interruption import InterruptWindow

window = InterruptWindow()
window.is_interrupted = True
window.absorb_interrupt()

def call():
    return "returned"

sys.setprofile(lambda *_: None)
told = call()
sys.setprofile(None)
print(told)
"""


def test_profiled_code_continues_after_an_interruption_was_withdrawn() -> None:
    # In a process of its own: without the fix the call never returns, and no signal handler does either.
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "returned\n"
