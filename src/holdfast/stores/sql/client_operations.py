"""Operations from outside, in a transaction: signals, cancelling, pausing, budgets, and a person's retry."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.core.records import Record, Rewind
from holdfast.core.states import TERMINAL, RunState
from holdfast.stores import rules
from holdfast.stores.operations import (
    Cancel,
    CancelRun,
    PauseRun,
    ReopenRun,
    ResumeRun,
    SendSignal,
    SetBudget,
    Verdict,
)
from holdfast.stores.rules import Redo, Told
from holdfast.stores.sql.rows import Reader, record_row
from holdfast.stores.sql.transaction import Fence, Transaction


class _Reopened(NamedTuple):
    """A run that is being reopened."""

    id: str
    taken: dict[str, Any] | None
    """The values for the statements that ask which records go; ``None``: none do."""
    given_up: tuple[int, ...]


class _OpenEnd(NamedTuple):
    """A run that a reopened one waits for, and has no end of."""

    position: int
    child: int
    state: str
    parent: str
    is_taken: bool
    """It had one, which is taken back."""
    is_later: bool
    """It was awaited because of what is taken back."""


class Requests(Transaction):
    """What anybody can ask of a run."""

    _reader: Reader
    _noted_keys: set[tuple[int, str]]
    """The deduplication keys that this transaction has noted, by run."""

    def _send(self, op: SendSignal) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        if op.dedup is not None and self._has_key(fence.key, op.dedup):
            return Verdict.DUPLICATE
        if fence.state in TERMINAL:
            return Verdict.ENDED
        if op.dedup is not None:
            self._noted_keys.add((fence.key, op.dedup))
            self._later("signals", self._sql.NOTE_SIGNAL_KEY, fence.key, (fence.key, op.dedup))
        self._put(fence.key, op.name, op.at, self._stored(op.payload))
        self._wake(fence)
        return Verdict.DONE

    def _has_key(self, key: int, dedup: str) -> bool:
        return (key, dedup) in self._noted_keys or bool(self._db.lookup(self._sql.HAS_SIGNAL_KEY, key, dedup))

    def _cancel(self, op: CancelRun) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        same_seed = op.seed is None or self._has_seed(fence.key, op.seed)
        answer = rules.answer_to_cancel(fence.state, fence.cancel, paused=fence.paused, same_seed=same_seed)
        if answer is not Verdict.DONE:
            return answer
        fence.cancel = fence.cancel or Cancel.ASKED
        fence.paused = False
        if rules.is_cancelled_at_once(fence.state, fence.epoch, by_delivery=fence.by_delivery):
            self._later("runs", self._sql.CANCEL_AT_ONCE, fence.key, (op.at, fence.key))
            fence.state = RunState.CANCELLED
            self.ended(fence.key, fence.state, rules.end_payload(None, None), op.at)
        elif fence.state == RunState.RUNNING:
            self._later("runs", self._sql.CANCEL_HELD, fence.key, (fence.key,))
        else:
            self._later("runs", self._sql.CANCEL_SLEEPING, fence.key, (self._now, fence.key))
        return Verdict.DONE

    def _has_seed(self, key: int, seed: bytes) -> bool:
        self._flush("runs")  # it may have been started in this transaction
        return self._db.one(self._sql.SEED, key) == (seed,)

    def _pause(self, op: PauseRun) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_pause(fence.state, paused=fence.paused, wanted=True)
        if answer is Verdict.DONE:
            self._later("runs", self._sql.PAUSE_RUN, fence.key, (op.at, fence.key))
            fence.paused = True
            fence.woken = False
        return answer

    def _resume(self, op: ResumeRun) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_pause(fence.state, paused=fence.paused, wanted=False)
        if answer is not Verdict.DONE:
            return answer
        if fence.state == RunState.RUNNING:
            self._later("runs", self._sql.RESUME_HELD, fence.key, (fence.key,))
        elif rules.keeps_its_time(fence.state, fence.epoch):
            self._later("runs", self._sql.RESUME_UNBEGUN, fence.key, (self._now, fence.key))
        else:
            self._later("runs", self._sql.RESUME_SLEEPING, fence.key, (self._now, fence.key))
        fence.paused = False
        return answer

    def _set_budget(self, op: SetBudget) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        answer = rules.answer_to_budget(fence.state, self._accounts.of(fence.key).budget)
        if answer is Verdict.DONE:
            self._accounts.give_budget(fence.key, op.budget)
            short = self._accounts.short_below(fence.key)
            self.read_fences(short)
            for key in short:
                if self._by_key[key].state not in TERMINAL:
                    self._ask_again(self._by_key[key], rules.budget_payload(op.budget), op.at)
        return answer

    def _ask_again(self, fence: Fence, payload: bytes, at: float) -> None:
        """Tell a run that was short that what was refused may be granted now: once for each call that waits."""
        for _ in range(self._accounts.no_longer_short(fence.key)):
            self._put(fence.key, BUDGET_SIGNAL, at, payload)
        self._wake(fence)

    # Reopening: a person does that, so it may ask the database one thing after the other

    def _reopen(self, op: ReopenRun) -> Verdict:
        fence = self._by_id.get(op.run_id)
        if fence is None:
            return Verdict.UNKNOWN_RUN
        if rules.is_settled_too_late(op, fence.epoch):
            return Verdict.ENDED
        self.flush()
        affected: dict[int, _Reopened] = {}
        answer = self._may_reopen(fence.key, op, affected)  # look before anything is changed
        if answer is Verdict.DONE:
            for key, run in affected.items():
                self._rewind(key, run, affected)
                [last_kept] = self._db.one(self._sql.LAST_SEQ, key) or (-1,)
                self._leave(key, -1, op.at, *rules.reopened_notice(last_kept))
                if self._accounts.of(key).short:
                    self._ask_again(self._by_key[key], b"null", op.at)
            if op.settles is not None and op.settles.record is not None:
                self._append_behind(fence.key, op.settles.record)
            if op.version is not None:
                self._db.change(self._sql.SET_VERSION, (op.version, fence.key))
        return answer

    def _append_behind(self, key: int, record: Record) -> None:
        [last_kept] = self._db.one(self._sql.LAST_SEQ, key) or (-1,)
        record = record._replace(seq=last_kept + 1)
        self._append_row(key, record.seq, record.epoch, record_row(key, record, self._stored(record.payload)))

    def _may_reopen(self, key: int, op: ReopenRun, affected: dict[int, _Reopened]) -> Verdict:
        """Add to ``affected`` what is reopened with the run."""
        row = self._db.one(self._sql.REOPENED, key)
        assert row is not None
        rewind = self._reader.rewind(row[2], f"run {row[0]!r}")
        if op.settles is not None and row[0] == op.run_id:
            rewind = op.settles.rewind
        answer = rules.answer_to_reopen(row[1], rewind, run_again=op.run_again)
        if answer is not Verdict.DONE:
            return answer
        run = affected[key] = _Reopened(row[0], self._taken(key, rewind), () if rewind is None else rewind.given_up)
        for end in self._open_ends(run):
            if end.is_later or end.child in affected or end.parent != run.id or end.state not in rules.REOPENABLE:
                continue
            attempt = dict(affected)
            answer = self._may_reopen(end.child, op, attempt)
            if answer is Verdict.DONE:
                affected.update(attempt)
            elif end.is_taken:
                return answer
        return Verdict.DONE

    def _open_ends(self, run: _Reopened) -> list[_OpenEnd]:
        if run.taken is None:
            return []
        rows = self._db.ask(self._sql.OPEN_ENDS, run.taken)
        unread = [row[1] for row in rows if row[1] not in self._by_key]
        if unread:  # one of them may be reopened by itself just now: look again when nobody else can change them
            self.read_fences(unread)
            rows = self._db.ask(self._sql.OPEN_ENDS, run.taken)
        later = run.taken["positions"]
        return [
            _OpenEnd(row[0], row[1], row[2], row[3], row[4] == 1, row[0] >= later)
            for row in rows
            if row[0] not in run.given_up
        ]

    def _rewind(self, key: int, run: _Reopened, affected: dict[int, _Reopened]) -> None:
        change, write = self._db.change, self._db.write
        for end in self._open_ends(run):
            redo = rules.redo_link(
                is_later=end.is_later,
                is_taken=end.is_taken,
                is_reopened=end.child in affected,
                has_ended=end.state in TERMINAL,
            )
            if redo is not Redo.LEAVE:
                write(self._sql.DROP_END, [(key, end.position)])
            if redo is Redo.AWAIT:
                write(self._sql.LINK, [(key, end.position, end.child, int(Told.NOT_YET))])
                self._is_awaited(end.child)
            elif redo is Redo.DROP:
                write(self._sql.UNLINK, [(key, end.position)])
        if run.taken is not None:
            change(self._sql.DROP_ANSWERS, run.taken)
            change(self._sql.TAKE_BACK_ANSWERS, run.taken)
            change(self._sql.TAKE_BACK_ATTEMPTS, run.taken)
            change(self._sql.PUT_BACK, run.taken)
            change(self._sql.TAKE_BACK, run.taken)
            change(self._sql.NOTE_REWOUND, (run.taken["positions"], key))
        self._db.one(self._sql.KEEP_QUEUE_OF, key)
        change(self._sql.REOPEN_RUN, (self._now, self._now, key))
        self._forget(key)

    def _taken(self, key: int, rewind: Rewind | None) -> dict[str, Any] | None:
        if rewind is None or not rewind.failed:
            return None
        return {
            "run": key, "first": min(rewind.failed), "failed": self._db.listed(rewind.failed),
            "positions": rewind.positions, "timers": rewind.timers,
        }  # fmt: skip
