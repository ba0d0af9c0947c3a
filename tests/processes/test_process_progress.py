"""What a step told of its progress is there for the attempt after the crash."""

from __future__ import annotations

from app_processes import World
from ledger import check_crash, check_end


def test_a_step_killed_near_its_end_goes_on_from_its_last_progress(world: World):
    victim = world.worker(STUCK=1)
    run = world.client.start_sync("crunched", "x")
    noted = world.wait_for_run(
        run,
        lambda journal: any(int(noted.progress or 0) >= 90_000 for noted in journal.attempts.values()),
        "has written its progress",
    )
    progress = int(noted.attempts[1].progress or 0)
    assert progress <= 98_000
    victim.kill()
    before = world.snapshot()
    progress = int(before.journals[run].attempts[1].progress or 0)
    world.worker()
    assert world.wait_for_end(run).output == ["before", 100_000, "after"]
    first, second = world.lines("crunch", "start", run=run)
    assert (first.label, second.label) == ("from 0", f"from {progress}")
    assert (first.attempt, second.attempt) == (1, 1), "a crash is not a failed attempt"
    assert not world.journal(run).attempts
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[victim.pid])


def test_a_once_step_that_reported_progress_is_not_started_again(world: World):
    victim = world.worker()
    run = world.client.start_sync("slow_payment", "x")
    world.wait_for_run(run, lambda journal: any(n.progress for n in journal.attempts.values()), "has progress")
    victim.kill()
    before = world.snapshot()
    world.open_gate("x")
    world.worker()
    assert world.wait_for_end(run).output == ["unknown", "look into it"]
    assert len(world.lines("pay_slowly", "start")) == 1
    check_crash(before, world.snapshot())
    check_end(world.snapshot(), killed=[victim.pid])
