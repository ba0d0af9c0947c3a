"""``holdfast worker``."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.log_setup import set_up_log
from holdfast.worker.worker_process import serve
from holdfast.worker.workflow_loader import load_workflows


def run_worker(
    target: str,
    *,
    url: str | None,
    queues: Collection[str] | None,
    concurrency: int,
    lease: float,
    grace: float,
    max_blocked_s: float,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Load the target's workflows and serve them until told to stop."""
    workflows = load_workflows(target)
    say = set_up_log("holdfast.worker", log_level, log_format)
    run_in_loop(
        serve(
            workflows,
            print_line=say,
            url=url,
            queues=queues,
            concurrency=concurrency,
            lease_s=lease,
            grace_s=grace,
            max_blocked_s=max_blocked_s,
        )
    )
