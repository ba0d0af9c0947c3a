"""Ctrl-C, wherever the loop happens to be."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from holdfast.cli.shared.event_loop import run_in_loop


@pytest.fixture(autouse=True)
def restored_ctrl_c_handler():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_comes_between_two_callbacks():
    errors: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(repr(context.get("exception"))))
        answer: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            assert not answer.done()
            ctrl_c()
            answer.set_result(None)  # with `asyncio.run` it has been cancelled by now, and this fails

        loop.call_soon(tell)
        await answer
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(main())
    assert errors == []


def test_what_is_done_at_the_end_is_done():
    done: list[str] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().call_soon(ctrl_c)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("closed")

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(main())
    assert done == ["closed"]


def test_a_command_may_end_well_after_ctrl_c():
    async def main() -> str:
        asyncio.get_running_loop().call_soon(ctrl_c)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "the page is closed"
        return "nobody pressed it"

    assert run_in_loop(main()) == "the page is closed"


def test_a_second_ctrl_c_ends_it_at_once():
    async def main() -> None:
        ctrl_c()
        ctrl_c()
        raise AssertionError("it went on")

    with pytest.raises(KeyboardInterrupt):
        run_in_loop(main())


def test_results_and_errors_are_those_of_the_command():
    async def main(fails: bool) -> int:
        if fails:
            raise ValueError("as it is")
        return 3

    assert run_in_loop(main(False)) == 3
    with pytest.raises(ValueError, match="as it is"):
        run_in_loop(main(True))


def test_what_was_cancelled_by_itself_was_not_interrupted():
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_in_loop(main())


def test_signals_are_left_alone_in_other_threads_and_under_other_handlers():
    seen: list[object] = []

    async def main() -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=lambda: run_in_loop(main()))
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_in_loop(main())
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert seen == [signal.default_int_handler, signal.SIG_IGN]
