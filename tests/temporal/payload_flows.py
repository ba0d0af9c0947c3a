"""Workflows with large values, and with secrets; see ``test_temporal_payloads``."""

from __future__ import annotations

import asyncio

from holdfast import ask, current_step, step, wait_for_signal, workflow
from holdfast.errors import ApprovalRequired


@step
async def large(size: int) -> str:
    return "x" * size


@step
async def measure(text: str) -> int:
    return len(text)


@workflow
async def payload_output(size: int) -> int:
    return await measure(await large(size))


@workflow
async def payload_caught(size: int) -> str:
    """Goes on after a step whose output was too large."""
    try:
        await large(size)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it fits"


@workflow
async def payload_input(text: str) -> int:
    return await measure(text)


@workflow
async def payload_child(size: int) -> int:
    return await payload_input("x" * size)


@workflow
async def payload_result(size: int) -> str:
    return "x" * size


@workflow
async def payload_results(size: int) -> int:
    return len(await payload_result(size))


@workflow
async def payload_signal() -> int:
    return await measure(await wait_for_signal("text", type=str))


@workflow
async def payload_question(size: int) -> bool:
    return await ask("?" * size, timeout=0.2, on_timeout=False)


def large_error(size: int) -> ApprovalRequired:
    """Errors of users' own are cut wherever they are recorded; what one of ours holds is not."""
    return ApprovalRequired("y" * 2_000, arguments="y" * size)


@step
async def complain(size: int) -> None:
    raise large_error(size)


@workflow
async def payload_error(size: int, in_step: bool) -> None:
    if in_step:
        await complain(size)
    raise large_error(size)


@step
async def progress(size: int) -> int:
    current_step().heartbeat("z" * size)
    await asyncio.sleep(0)
    return size


@workflow
async def payload_progress(size: int) -> int:
    return await progress(size)


class Leaked(Exception):
    """Tells a secret."""


@step
async def hide(secret: str) -> str:
    return f"hidden {secret}"


@step
async def leak(secret: str) -> None:
    raise Leaked(f"leaked {secret}")


@workflow
async def payload_confided(secret: str) -> str:
    return await hide(secret)


@workflow
async def payload_secret(secret: str) -> list[str]:
    """A secret in inputs, outputs, errors, signals, questions, timers' neighbours, children, and what is carried."""
    seen = [await hide(secret), await payload_confided(secret)]
    try:
        await leak(secret)
    except Leaked as error:
        seen.append(str(error))
    seen.append(await wait_for_signal("word", type=str))
    await ask(f"May I tell {secret}?")
    await asyncio.sleep(0.01)
    for number in range(12):
        await hide(f"{secret} {number}")
    return seen


unsure: list[bool] = [True]


@step
async def hesitate(secret: str) -> str:
    if unsure.pop() if unsure else False:
        raise Leaked(f"not yet {secret}")
    return f"at last {secret}"


@workflow
async def payload_retried(secret: str) -> list[str]:
    return [await hide(secret), await hesitate(secret), await hide(secret)]


@workflow
async def payload_words(count: int) -> list[str]:
    """A result whose quotation marks make it larger wherever it stands in a text."""
    return ["a"] * count


@workflow
async def payload_other(run_id: str, count: int) -> str:
    """Waits for a run that somebody else has started."""
    try:
        return str(len(await payload_words.options(id=run_id)(count)))
    except Exception as error:
        return str(error)
