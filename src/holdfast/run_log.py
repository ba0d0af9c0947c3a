"""What the log says about runs: one line for each retry, failure, takeover and dead run.

Lines go to the logger ``holdfast.runs``, with the run's id and the like as fields of the record (``extra``), for
formatters that write them apart. Only a run that cannot continue with the code that is there is logged by
``holdfast.engine``.

An error's message belongs to the user's code. It is put on one line, cut, and stripped of what looks like a credential.
With an encrypted store it is left out: a log file must not hold what the database keeps encrypted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from holdfast.codec import read_error_info
from holdfast.codec.redaction import redact_secrets
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run
from holdfast.stores.workers import ReapResult

log = logging.getLogger("holdfast.runs")
_engine_log = logging.getLogger("holdfast.engine")

MAX_MESSAGE_CHARS = 500
"""Characters of an error's message in a line."""

_MAX_READ_CHARS = 64 * 1024
"""Characters of an error's message that are looked at: more than are shown, so that no credential is cut in half."""

_MAX_SHOWN_RETRIES = 1000
"""A step with more retries than this has no limit that is worth showing."""


_EXPECTED_ERRORS = frozenset(
    {
        "holdfast.errors.ContextFull",
        "holdfast.errors.ApprovalRequired",
        "holdfast.agents.tool_approvals.ApprovalNotRequired",
    }
)
"""How a call of an agent ends that is made again, with a summary or once a person has agreed: nothing is wrong."""


class RunLog:
    """Logs what happens to the runs of one store.

    Args:
        is_encrypted: whether the messages of errors are left out.
        max_level: the level of what is more important than that: where deaths are part of a test, no line matters.
    """

    def __init__(self, *, is_encrypted: bool, max_level: int = logging.ERROR) -> None:
        self._is_encrypted = is_encrypted
        self._max_level = max_level

    @classmethod
    def from_store(cls, store: Store) -> RunLog:
        """The log of runs in this store."""
        return cls(is_encrypted=store.is_encrypted)

    def log_retry(self, run: Run, step: str, attempt: int, retries: int | None, delay_s: float, error: bytes) -> None:
        """An attempt of a step has failed, and another one follows in ``delay_s`` seconds."""
        limit = f" of {retries + 1}" if retries is not None and retries < _MAX_SHOWN_RETRIES else ""
        told = f"step %r of run %r failed (attempt %d{limit}), retrying in %s: %s"
        self._log(logging.WARNING, run, error, told, step, run.id, attempt, _format_seconds(delay_s),
                  step=step, attempt=attempt, retry_in_s=round(delay_s, 3))  # fmt: skip

    def log_step_failure(self, run: Run, step: str, attempt: int, error: bytes) -> None:
        """A step has failed, and no attempt follows. The workflow may handle it."""
        told = "step %r of run %r failed (attempt %d): %s"
        level = logging.INFO if read_error_info(error).type in _EXPECTED_ERRORS else logging.WARNING
        self._log(level, run, error, told, step, run.id, attempt, step=step, attempt=attempt)

    def log_redelivery(self, run: Run, delay_s: float, error: bytes) -> None:
        """A delivery has failed, and is made again in ``delay_s`` seconds."""
        told = "run %r of address %r failed, delivering again in %s: %s"
        self._log(
            logging.WARNING,
            run,
            error,
            told,
            run.id,
            run.workflow,
            _format_seconds(delay_s),
            retry_in_s=round(delay_s, 3),
        )

    def log_expired(self, run_ids: Iterable[str]) -> None:
        """Runs by delivery have failed because their deadline has passed."""
        for id in run_ids:
            self._emit(logging.ERROR, "run %r failed: its deadline has passed", id, run_id=id)

    def log_end(self, run: Run) -> None:
        """A run has ended; only a bad end is worth a line."""
        if run.state in (RunState.FAILED, RunState.DEAD):
            how = "failed" if run.state is RunState.FAILED else "is dead"
            told = f"run %r of workflow %r {how}: %s"
            self._log(logging.ERROR, run, run.error or b"null", told, run.id, run.workflow)

    def log_stall(self, run: Run, error: bytes) -> None:
        """A run cannot continue with the code that is there, or by a fault of the engine."""
        told = "run %r of workflow %r cannot continue: %s"
        kind, shown = self._describe_error(error)
        extra = {"run_id": run.id, "workflow": run.workflow, "error_type": kind}
        _engine_log.error(told, run.id, run.workflow, shown, extra=extra)

    def log_takeover(self, run: Run, *, record_count: int = 0, step: str = "") -> None:
        """A run of a dead worker is taken over, with so many records; or only this step of it is."""
        what = f"step {step!r} of run {run.id!r}" if step else f"run {run.id!r} of workflow {run.workflow!r}"
        kept = "1 recorded outcome is kept" if record_count == 1 else f"{record_count} recorded outcomes are kept"
        tail = f" ({kept})" if record_count else ""
        fields = {"run_id": run.id, "workflow": run.workflow, **({"step": step} if step else {})}
        self._emit(logging.WARNING, "%s is taken over after its worker died%s", what, tail, **fields)

    def log_deaths(self, reaped: ReapResult, role: str = "worker") -> None:
        """Workers were found dead, and with them perhaps runs that have taken too many of them down."""
        if reaped.worker_ids:
            many = len(reaped.worker_ids) > 1
            names = f"{role}{'s' if many else ''} {', '.join(map(str, reaped.worker_ids))}"
            level = logging.WARNING if reaped.released_count else logging.INFO
            whose = "their" if many else "its"
            self._emit(level, "%s died: %d of %s runs can be taken over", names, reaped.released_count, whose)
        for id in reaped.dead_run_ids:
            told = (
                "run %r is dead: too many workers died while executing it. `holdfast show %s` shows where, "
                "`holdfast retry %s` runs it again"
            )
            self._emit(logging.ERROR, told, id, id, id, run_id=id)

    def _log(self, level: int, run: Run, error: bytes, message: str, *args: Any, **fields: Any) -> None:
        if log.isEnabledFor(min(level, self._max_level)):
            kind, shown = self._describe_error(error)
            fields = {"run_id": run.id, "workflow": run.workflow, "error_type": kind, **fields}
            self._emit(level, message, *args, shown, **fields)

    def _emit(self, level: int, message: str, *args: Any, **fields: Any) -> None:
        log.log(min(level, self._max_level), message, *args, extra=fields)

    def _describe_error(self, error: bytes) -> tuple[str, str]:
        """The error's type, and the error in words."""
        known = read_error_info(error)
        name = known.type.rpartition(".")[2]
        if self._is_encrypted or not known.message:
            return known.type, name
        message = _format_line(known.message)
        # Errors of ours are sentences: their class adds nothing to what they say.
        return known.type, message if known.type.startswith("holdfast.") else f"{name}: {message}"


def _format_line(text: str) -> str:
    """The text on one line, cut, without anything that a terminal would obey."""
    text = " ".join(redact_secrets(text[:_MAX_READ_CHARS]).split())
    text = text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _format_seconds(delay_s: float) -> str:
    return f"{delay_s:.2g} s" if delay_s < 10 else f"{delay_s:.0f} s"
