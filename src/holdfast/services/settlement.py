"""Settling an unknown outcome: a person decides the outcome of a ``once`` step whose worker died while it ran.

Such a step is never run again, so the run fails with ``StepOutcomeUnknown``, unless its code catches that. A person can
find out more: that the step happened, and what it returned, or that it did not. The run is then reopened as by a retry,
and the same transaction gives the step that outcome, so the run can never continue without it.

Only a step that ended the run can be settled. If the code caught the error and continued, everything after that
depends on it; and if it ran other ``once`` steps since, those would be taken back and run a second time. Both are
refused: use a fork instead, a new run with the same beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, codec_for, validate_size
from holdfast.core.records import RESTORED_POSITION, Attempt, Record, RecordKind, Rewind
from holdfast.errors import SettleRefused, StepOutcomeUnknown, UsageError
from holdfast.services.approvals import get_os_user
from holdfast.services.forks import NOT_GIVEN
from holdfast.services.lookup import find_run
from holdfast.stores.contract import History, Store
from holdfast.stores.erasure import is_erased
from holdfast.stores.operations import OpStatus, ReopenRun, Run, Settlement
from holdfast.stores.rules import REOPENABLE
from holdfast.stores.run_errors import get_error_text, make_erased_error

_UNKNOWN_OUTCOME_PREFIX = f"{StepOutcomeUnknown.__module__}.{StepOutcomeUnknown.__qualname__} "
_MAX_PREVIEW_LENGTH = 400
"""Characters of the arguments that the record of a settled step keeps."""


def is_outcome_unknown(record: Record) -> bool:
    """Whether it is the record of a step that may or may not have happened."""
    is_step = record.kind in (RecordKind.STEP, RecordKind.COMPENSATION)
    return is_step and not record.ok and get_error_text(record.payload).startswith(_UNKNOWN_OUTCOME_PREFIX)


def find_unsettled_steps(run: Run, records: Sequence[Record]) -> list[Record]:
    """The steps of unknown outcome that ended the run: those that ``settle_step`` may accept.

    They include a step that was settled before, with a value that the code could not use.
    """
    if run.state not in REOPENABLE or run.rewind is None or run.rewind.is_compensated:
        return []
    failed = {*run.rewind.failed_seqs}
    return [record for record in records if record.seq in failed and (is_outcome_unknown(record) or record.is_settled)]


def check_settlement(output: Any, happened: bool) -> None:
    """Raise ``UsageError`` unless the step happened and has an output, or did not happen and has none."""
    if happened and output is NOT_GIVEN:
        raise UsageError(
            "settle: say what the step returned, with `output` (None, if it returns nothing); or, with "
            "happened=False, that it did not happen"
        )
    if not happened and output is not NOT_GIVEN:
        raise UsageError("settle: a step that did not happen has no `output`: it runs again")


async def settle_step(
    store: Store,
    run_id: str,
    step: int | str,
    *,
    output: Any = NOT_GIVEN,
    happened: bool = True,
    by: str | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
) -> None:
    """Decide the outcome of a step, and continue its run. Default of ``by``: the user of the operating system."""
    check_settlement(output, happened)
    run = await find_run(store, run_id)
    if is_erased(run):
        raise make_erased_error(run_id)
    [history] = await store.get_histories([run.key])
    old = _find_step(run, history, step)
    record = None
    if happened:
        subject = f"the output of step {old.name!r}"
        payload = validate_size(codec_for(Any).encode(output, subject), subject, max_value)
        preview = _format_preview(old.preview, get_os_user() if by is None else by)
        record = Record(
            0, old.kind, old.position, old.name, True, payload, max(store.now(), old.at), old.started_at, attempts=0,
            epoch=run.epoch, preview=preview,
        )  # fmt: skip
    restored = history.attempts.get(RESTORED_POSITION)
    attempt = None
    if restored is not None and not happened:
        at = max(store.now(), math.nextafter(restored.at, math.inf))
        attempt = Attempt(old.position, 0, at=at, name=old.name)
    settlement = Settlement(run.epoch, _narrow_rewind(run, history.records, old), record, attempt)
    [status] = await store.commit([ReopenRun(run_id, store.now(), settlement=settlement)])
    if status is OpStatus.REFUSED:
        raise SettleRefused(
            f"run {run_id!r} cannot go on: a run that it had started has failed as well, and would run a `once` step a "
            f"second time. `holdfast show {run_id}` tells which; settle that one's first.",
            run_id,
        )
    if status is OpStatus.ERASED:
        raise make_erased_error(run_id)
    if status is OpStatus.COMPENSATED:
        raise _make_undone_error(run_id)
    if status is not OpStatus.DONE:
        raise SettleRefused(f"run {run_id!r} has gone on meanwhile: `holdfast show {run_id}` tells how", run_id)


def _format_preview(preview: str, by: str) -> str:
    """The beginning of the arguments, and who settled the step."""
    settled = f"settled by {by[:80]}" if by else "settled"
    return f"{preview[:_MAX_PREVIEW_LENGTH]}; {settled}" if preview else settled


# Which steps can be settled


def _find_step(run: Run, history: History, step: int | str) -> Record:
    unsettled = find_unsettled_steps(run, history.records)
    matching = [record for record in unsettled if _is_match(record, step)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise SettleRefused(
            f"run {run.id!r} has {len(matching)} steps named {step!r} of unknown outcome: say which by its number, one "
            f"of {', '.join(str(record.position + 1) for record in matching)}",
            run.id,
        )
    matched = next((record for record in reversed(history.records) if _is_match(record, step)), None)
    raise SettleRefused(_explain_refusal(run, history, step, matched) + _describe_alternatives(run, unsettled), run.id)


def _is_match(record: Record, step: int | str) -> bool:
    if record.kind not in (RecordKind.STEP, RecordKind.COMPENSATION, RecordKind.CHILD):
        return False
    return record.name == step if isinstance(step, str) else record.position + 1 == step


def _explain_refusal(run: Run, history: History, step: int | str, matched: Record | None) -> str:
    if matched is None:
        intended = [one for one in history.attempts.values() if one.intent and step in (one.position + 1, one.name)]
        if intended and run.is_delivery:
            return (
                f"what came of step {step!r} of run {run.id!r} is for a listener to say, with "
                f"delivery.record({intended[0].name!r}, outcome); `holdfast retry {run.id}` delivers a failed run again"
            )
        if intended and run.state in REOPENABLE:
            return (
                f"that step {step!r} of run {run.id!r} may have happened has not been recorded: `holdfast retry "
                f"{run.id}` has it found out, and does not run it again; then it can be settled"
            )
        return f"run {run.id!r} has no recorded step {step!r}"
    label = f"step {matched.position + 1} ({matched.name!r}) of run {run.id!r}"
    if matched.kind is RecordKind.CHILD and not matched.ok:
        return (
            f"{label} is run {matched.preview!r}: settle the step there that is of unknown outcome, then let this one "
            "go "
            f"on with `holdfast retry {run.id}`"
        )
    if matched.is_settled:
        return f"{label} was settled before, and the run is {run.state}"
    if not is_outcome_unknown(matched):
        return f"the outcome of {label} is known: it {'was recorded' if matched.ok else 'has failed'}"
    if run.state not in REOPENABLE:
        return (
            f"{label} is of unknown outcome, but its code, or the model of its agent, was told, and has gone on from "
            f"that: the run is {run.state}"
        )
    if run.rewind is not None and run.rewind.is_compensated:
        return str(_make_undone_error(run.id))
    return (
        f"{label} is of unknown outcome, but that is not what ended the run: its code, or the model of its agent, was "
        f"told, and has gone on. `holdfast fork {run.id} --at {matched.position + 1} --output JSON` makes a new run "
        f"that goes on from there with what you say"
    )


def _describe_alternatives(run: Run, unsettled: Sequence[Record]) -> str:
    if not unsettled:
        return ""
    names = ", ".join(f"{record.position + 1} ({record.name!r})" for record in unsettled)
    return f". What can be settled in run {run.id!r}: step {names}"


def _narrow_rewind(run: Run, records: Sequence[Record], settled: Record) -> Rewind:
    """The records to take back so that this step gets another outcome, without those of other ``once`` steps.

    If another ``once`` step failed as well, its record stays and will end the run again, until a person settles it.
    """
    assert run.rewind is not None
    others = {*run.rewind.once_seqs} - {settled.seq}
    failed = tuple(seq for seq in run.rewind.failed_seqs if seq not in others)
    rewind = run.rewind._replace(failed_seqs=failed, once_seqs=())
    # -1: an older version recorded the run, and did not record which steps are `once` steps.
    maybe = (
        {record.seq for record in records if record.kind is RecordKind.STEP} - {settled.seq} if -1 in others else others
    )
    repeated = [record for record in records if record.seq in maybe and rewind.should_remove(record)]
    if repeated:
        names = ", ".join(f"{record.position + 1} ({record.name!r})" for record in repeated)
        raise SettleRefused(
            f"step {settled.position + 1} ({settled.name!r}) of run {run.id!r} cannot be settled in this run: its code "
            f"has gone on from the unknown outcome to `once` steps (step {names}), which would be taken back and run a "
            f"second time. `holdfast fork {run.id} --at {settled.position + 1} --output JSON` makes a new run that "
            f"goes on from there with what you say; `holdfast retry {run.id} --run-again` runs all of them again.",
            run.id,
        )
    return rewind


def _make_undone_error(run_id: str) -> SettleRefused:
    return SettleRefused(
        f"run {run_id!r} cannot go on: compensations have undone what it, or a run that it had started, had done. "
        f"Start it anew under another id; `holdfast fork {run_id} --at STEP --output JSON` keeps what was recorded "
        f"before a step, and takes it to have returned what you say",
        run_id,
    )
