"""Signals: several processes send to one run while it consumes, and its worker is killed in the middle.

The run itself checks that the numbers of each sender come without a gap and in order; the senders report what the store
acknowledged; and the journal is compared with both.
"""

from __future__ import annotations

import json
import time
from collections import Counter

from app_processes import App, Service, World
from ledger import ENDED, SIGNAL

from benchmarks.drills.drill_world import (
    APPS,
    check_completed,
    get_store_title,
    query,
    start_runs,
    start_workers,
)
from benchmarks.drills.process_samples import ProcessSampler
from benchmarks.sqlite_benchmarks import Measurement
from waits import wait_until_sync

SENDERS_PER_PROCESS = 25
SAMPLE_INTERVAL_S = 0.5
END_TIMEOUT_S = 1200.0


def send_many_signals(world: World, *, signal_count: int, process_count: int = 4) -> list[Measurement]:
    """Raises ``AssertionError`` if a signal is lost, consumed twice, or out of its sender's order."""
    number_count, rest = divmod(signal_count, process_count * SENDERS_PER_PROCESS)
    assert not rest, "the senders send the same number"
    workers = start_workers(world, "signals.py", 2)
    [run] = start_runs(world, "collector", [["drill", signal_count]])
    with ProcessSampler(lambda: [worker.pid for worker in workers], SAMPLE_INTERVAL_S) as sampler:
        began_at = time.time()
        senders = [start_sender(world, run, f"process-{n}", number_count) for n in range(process_count)]
        killed_at, victim = kill_holder(world, workers, run, signal_count // 2)
        wait_until_sync(
            lambda: query(world, "SELECT state FROM runs WHERE id = ?", run)[0][0] in ENDED,
            "the run ends",
            timeout_s=END_TIMEOUT_S,
            describe=lambda: (count_consumed(world, run), senders),
        )
        ended_at = time.time()
    answers = [sender.read_answers()[-1] for sender in senders]
    assert sum(answer["sent"] for answer in answers) == signal_count
    check_completed(world, 1)
    check_signals(world, run, [f"process-{n}.{m}" for n in range(process_count) for m in range(SENDERS_PER_PROCESS)],
                  number_count)  # fmt: skip
    sending_s = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
    title = f"{get_store_title(world)}: {signal_count:,} signals"
    delay_s = find_continuation(world, killed_at, victim) - killed_at
    return [
        Measurement(f"{title}, sent", signal_count / sending_s, "1/s", f"{process_count} processes"),
        Measurement(f"{title}, consumed", signal_count / (ended_at - began_at), "1/s", "from the first sent"),
        Measurement(f"{title}, memory of the worker", sampler.get_peak_mb(), "MB", "peak"),
        Measurement(f"{title}, lost, doubled, or out of order", 0, "signals", "", "0", True),
        Measurement(f"{title}, consumed again after the SIGKILL", delay_s, "s", "replay included"),
    ]


def start_sender(world: World, run: str, name: str, number_count: int) -> App:
    settings = {"RUN": run, "NAME": name, "SENDER_COUNT": SENDERS_PER_PROCESS, "NUMBER_COUNT": number_count}
    return world.start(App, name, [str(APPS / "signal_sender.py")], **settings)


def count_consumed(world: World, run: str) -> int:
    """Number of signals in the journal, read from its index."""
    of_run = "SELECT coalesce(max(seq) + 1, 0) FROM records WHERE run = (SELECT key FROM runs WHERE id = ?)"
    return query(world, of_run, run)[0][0]


def kill_holder(world: World, workers: list[Service], run: str, consumed_count: int) -> tuple[float, int]:
    """Kill the worker that holds the run once it has consumed this many signals; returns when, and its number."""
    wait_until_sync(lambda: count_consumed(world, run) >= consumed_count, "half is consumed", timeout_s=END_TIMEOUT_S)
    [[number, pid]] = query(world, "SELECT id, pid FROM workers WHERE id = (SELECT owner FROM runs WHERE id = ?)", run)
    return next(worker for worker in workers if worker.pid == pid).kill(), number


def find_continuation(world: World, killed_at: float, victim: int) -> float:
    """When another worker than the victim recorded its first signal after the kill."""
    [[at]] = query(world, "SELECT min(at) FROM records WHERE worker <> ? AND at > ?", victim, killed_at)
    assert at is not None, "no other worker continued the run"
    return at


def check_signals(world: World, run: str, senders: list[str], number_count: int) -> None:
    """The journal has each signal once, the mailbox none, and the result is that of all of them."""
    rows = query(world, "SELECT payload FROM records WHERE kind = ?", SIGNAL)
    consumed = Counter(tuple(json.loads(bytes(payload))) for [payload] in rows)
    assert consumed == {(sender, number): 1 for sender in senders for number in range(number_count)}
    assert query(world, "SELECT count(*) FROM signals")[0][0] == 0, "signals are left"
    result = world.client.wait_sync(run)
    assert result == dict.fromkeys(senders, number_count - 1), result
