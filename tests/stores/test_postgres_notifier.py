"""Which commits notify followers of runs, and when."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.records import Record, RecordKind
from holdfast.core.states import RunState
from holdfast.stores.operations import AppendRecord, FinishRun, OpStatus
from holdfast.stores.postgres import notifier as notifier_module
from holdfast.stores.postgres.notifier import Notifier
from waits import wait_until

pytestmark = pytest.mark.asyncio

RECORD = AppendRecord(1, Record(0, RecordKind.STEP, 0, "one", True, b"1", 1.0))
END = FinishRun(1, 1, RunState.COMPLETED, b"1", None, 1.0)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "_UNFOLLOWED_INTERVAL_S", 1e6)


def make_notifier() -> tuple[Notifier, list[str]]:
    sent: list[str] = []
    return Notifier("s", sent.append), sent


async def test_progress_is_notified_a_moment_later_and_an_end_at_once(delays: None):
    notifier, sent = make_notifier()
    notifier.is_followed = True
    notifier.notify_commit([RECORD], [OpStatus.DONE])
    assert sent == []
    notifier.notify_commit([END], [OpStatus.DONE])
    assert sent == ["s:runs"]
    await asyncio.sleep(4 * notifier_module._PROGRESS_DELAY_S)
    assert sent == ["s:runs"]  # the end has notified of the progress as well
    notifier.notify_commit([RECORD], [OpStatus.DONE])
    await wait_until(lambda: len(sent) == 2)


async def test_what_was_held_back_is_notified_when_a_follower_comes(delays: None):
    notifier, sent = make_notifier()
    notifier._notified_at = asyncio.get_running_loop().time()
    notifier.notify_commit([END], [OpStatus.DONE])
    notifier.notify_commit([RECORD], [OpStatus.DONE])
    assert sent == []
    notifier.set_followed()
    assert sent == ["s:runs"]
    notifier.set_followed()
    assert sent == ["s:runs"]
