"""Logs what happens to runs: one line for each retry, failure, takeover, and dead run.

Lines go to the logger ``holdfast.runs``, with the run's id and the like as fields of the record (``extra``), for
formatters that write them separately. Only a run that cannot continue with the present code is logged by
``holdfast.engine``.

The message of an error comes from the user's code. It is put on one line, shortened, and stripped of what looks like a
credential. With an encrypted store it is left out: a log file must not contain what the database has only encrypted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from holdfast.codec import read_error_info
from holdfast.codec.redaction import redact_secrets
from holdfast.core.states import RunState
from holdfast.processes.process_name import get_process_name
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run
from holdfast.stores.workers import ReapResult
from holdfast.trace_context import get_run_trace

log = logging.getLogger("holdfast.runs")
_engine_log = logging.getLogger("holdfast.engine")

MAX_MESSAGE_CHARS = 500
"""Characters of an error's message in a line."""

_MAX_READ_CHARS = 64 * 1024
"""Characters of an error's message that are read: more than are shown, so that no credential is cut in half."""

_MAX_SHOWN_RETRIES = 1000
"""For a step with more retries than this, the limit is not shown."""

_CHANGED_CODE_ERROR = "holdfast.errors.NonDeterminismError"
_EXPECTED_ERRORS = frozenset(
    {
        "holdfast.errors.ContextFull",
        "holdfast.errors.ApprovalRequired",
        "holdfast.agents.tool_approvals.ApprovalNotRequired",
    }
)
"""Errors of an agent's call that is made again, with a summary or after an approval: nothing is wrong."""


class RunLog:
    """Logs what happens to the runs of one store.

    Args:
        is_encrypted: whether the messages of errors are left out.
        max_level: the highest level used: in tests that simulate deaths, no line is important.
    """

    def __init__(self, *, is_encrypted: bool, max_level: int = logging.ERROR) -> None:
        self.is_encrypted = is_encrypted
        self.has_traces = False
        """Whether lines have the id of the run's trace also if what started the run has none."""
        self._max_level = max_level

    @classmethod
    def from_store(cls, store: Store) -> RunLog:
        """The log of runs in this store."""
        return cls(is_encrypted=store.is_encrypted)

    def log_retry(self, run: Run, step: str, attempt: int, retries: int | None, delay_s: float, error: bytes) -> None:
        """An attempt of a step has failed, and another one follows in ``delay_s`` seconds."""
        limit = f" of {retries + 1}" if retries is not None and retries < _MAX_SHOWN_RETRIES else ""
        message = f"step %r of run %r failed (attempt %d{limit}), retrying in %s: %s"
        self._log(logging.WARNING, run, error, message, step, run.id, attempt, _format_seconds(delay_s),
                  step=step, attempt=attempt, retry_in_s=round(delay_s, 3))  # fmt: skip

    def log_step_failure(self, run: Run, step: str, attempt: int, error: bytes) -> None:
        """A step has failed, and no attempt follows. The workflow may handle it."""
        message = "step %r of run %r failed (attempt %d): %s"
        level = logging.INFO if read_error_info(error).type in _EXPECTED_ERRORS else logging.WARNING
        self._log(level, run, error, message, step, run.id, attempt, step=step, attempt=attempt)

    def log_redelivery(self, run: Run, delay_s: float, error: bytes) -> None:
        """A delivery has failed, and another one follows in ``delay_s`` seconds."""
        message = "run %r of address %r failed, delivering again in %s: %s"
        self._log(logging.WARNING, run, error, message, run.id, run.workflow, _format_seconds(delay_s),
                  retry_in_s=round(delay_s, 3))  # fmt: skip

    def log_expired(self, run_ids: Iterable[str]) -> None:
        """Runs by delivery have failed because their deadline has passed."""
        for id in run_ids:
            self._emit(logging.ERROR, "run %r failed: its deadline has passed", id, run_id=id)

    def log_end(self, run: Run) -> None:
        """A run has ended. Only a failed or dead run is logged."""
        if run.state in (RunState.FAILED, RunState.DEAD):
            outcome = "failed" if run.state is RunState.FAILED else "is dead"
            message = f"run %r of workflow %r {outcome}: %s"
            self._log(logging.ERROR, run, run.error or b"null", message, run.id, run.workflow)

    def log_stall(self, run: Run, error: bytes) -> None:
        """A run cannot continue with the present code, or because the engine failed."""
        error_type, description = self.describe_error(error)
        extra = {**self._identify(run), "error_type": error_type, "worker": get_process_name()}
        reason = description.removeprefix(f"run {run.id!r} cannot continue: ")
        _engine_log.error("run %r of workflow %r cannot continue: %s", run.id, run.workflow, reason, extra=extra)

    def log_takeover(self, run: Run, *, record_count: int = 0, step: str = "") -> None:
        """A run of a dead worker is taken over, with its records; or only a step of it."""
        subject = f"step {step!r} of run {run.id!r}" if step else f"run {run.id!r} of workflow {run.workflow!r}"
        kept_text = "1 recorded outcome is kept" if record_count == 1 else f"{record_count} recorded outcomes are kept"
        suffix = f" ({kept_text})" if record_count else ""
        fields = {**self._identify(run), **({"step": step} if step else {})}
        self._emit(logging.WARNING, "%s is taken over after its worker died%s", subject, suffix, **fields)

    def log_deaths(self, reaped: ReapResult, role: str = "worker") -> None:
        """Workers were declared dead, and with them perhaps runs that killed too many workers."""
        if reaped.worker_ids:
            is_plural = len(reaped.worker_ids) > 1
            names = f"{role}{'s' if is_plural else ''} {', '.join(map(str, reaped.worker_ids))}"
            level = logging.WARNING if reaped.released_count else logging.INFO
            possessive = "their" if is_plural else "its"
            self._emit(level, "%s died: %d of %s runs can be taken over", names, reaped.released_count, possessive)
        for id in reaped.dead_run_ids:
            message = (
                "run %r is dead: too many workers died while executing it. `holdfast show %s` shows where, "
                "`holdfast retry %s` runs it again"
            )
            self._emit(logging.ERROR, message, id, id, id, run_id=id)

    def _log(self, level: int, run: Run, error: bytes, message: str, *args: Any, **fields: Any) -> None:
        if log.isEnabledFor(min(level, self._max_level)):
            error_type, description = self.describe_error(error)
            fields = {**self._identify(run), "error_type": error_type, **fields}
            self._emit(level, message, *args, description, **fields)

    def _identify(self, run: Run) -> dict[str, Any]:
        """The fields that say which run a line is about."""
        fields = {"run_id": run.id, "workflow": run.workflow}
        if run.trace_parent or self.has_traces:
            trace = get_run_trace(run.id, run.seed, run.trace_parent, len(run.rewind_points))
            fields["trace_id"] = f"{trace.trace_id:032x}"
        return fields

    def _emit(self, level: int, message: str, *args: Any, **fields: Any) -> None:
        fields["worker"] = get_process_name()
        log.log(min(level, self._max_level), message, *args, extra=fields)

    def describe_error(self, error: bytes) -> tuple[str, str]:
        """The error's type, and the error in words."""
        info = read_error_info(error)
        name = info.type.rpartition(".")[2]
        if self.is_encrypted or not info.message:
            return info.type, name
        # A changed program's error has a diff in further lines, for its reader.
        text = info.message.partition("\n")[0] if info.type == _CHANGED_CODE_ERROR else info.message
        message = _format_line(text)
        # Holdfast's own errors are sentences that need no class name.
        return info.type, message if info.type.startswith("holdfast.") else f"{name}: {message}"


def _format_line(text: str) -> str:
    """The text on one line, shortened, without control characters of terminals."""
    text = " ".join(redact_secrets(text[:_MAX_READ_CHARS]).split())
    text = text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _format_seconds(delay_s: float) -> str:
    return f"{delay_s:.2g} s" if delay_s < 10 else f"{delay_s:.0f} s"
