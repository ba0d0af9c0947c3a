"""A run's story, read from a store: all of it, or a page of its journal with what the rest amounts to.

Each claim increments the epoch of a run, also when the run was only parked. So a later epoch alone does not mean that a
record was replayed: it counts as replayed once for each later takeover from a worker that had died.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from holdfast.admission.usage import BUDGET_SIGNAL
from holdfast.codec import is_sealed, shown_text
from holdfast.core.records import Kind, Record, Signal
from holdfast.core.states import RunState
from holdfast.errors import BudgetExceeded
from holdfast.reports.advice import advise
from holdfast.reports.agent_result import is_agent_result
from holdfast.reports.event_offsets import Cursor
from holdfast.reports.journal_entries import TIMED, entry_of, is_internal
from holdfast.reports.model_replies import refusal_of
from holdfast.reports.plans import PLAN, Plan, plan_in, plan_of
from holdfast.reports.recorded_reply import MODEL_CALL
from holdfast.reports.recorded_values import error_of, value_of
from holdfast.reports.retry_preview import known_runs, prospect, taken_back
from holdfast.reports.run_info import size_of
from holdfast.reports.run_usage import budget_as_json, budgets_over, left_as_json, usage_of
from holdfast.reports.summary import Course, Fall, tell
from holdfast.reports.types import (
    Account,
    Asked,
    End,
    Entry,
    Hand,
    InFlight,
    Relative,
    Retry,
    Sent,
    Short,
    Skipped,
    Story,
    Used,
)
from holdfast.services.approvals import readable
from holdfast.services.lookup import no_run
from holdfast.services.settlement import is_unknown, to_be_settled
from holdfast.services.stalls import Surroundings, is_alive, is_cancelling, is_paused, is_short, look_around, stall_of
from holdfast.services.thread_offload import off_loop
from holdfast.services.timestamps import moment
from holdfast.stores.approvals import Approval, ApprovalFilter, is_answer
from holdfast.stores.contract import RunFilter, RunUsage, Store, Worker
from holdfast.stores.journal_pages import Outline, Part
from holdfast.stores.live_events import REOPENED, SKIPPED
from holdfast.stores.operations import Cancel, Notice, Run
from holdfast.stores.served_versions import served_name

PAGE = 500
"""So many records are told at once, at most, where a story is told page by page."""
MANY = 12
"""So many runs that a run has started, or waited for, are told in a line each; more are told in one."""
MOST = 20_000
"""So many runs that a run has started are looked at, where all of it is told."""

_ROWS = 1000
_TAIL = 200
"""So many of the last records are looked through for why the run waits."""
_BEHIND = 50
"""So many records behind the death of a worker are looked at."""
_SLACK = 1.0
"""Seconds by which clocks may differ."""
_NO_NOTICES = 2**62
"""Behind all of them."""
_FORKABLE = (Kind.STEP, Kind.CHILD, Kind.SIGNAL, Kind.APPROVAL)
"""What ``fork --at`` can name."""


async def read_story(
    store: Store, run_id: str, after: int = -1, limit: int | None = None, *, brief: bool = False
) -> Story:
    """What is known of a run now, with the records behind ``after``, at most ``limit``. Raises ``RunNotFound``.

    When it is ``brief``, large values are told by their beginning; and so are the runs that it has started, if there
    are many.
    """
    outline = await store.outline(run_id, after, limit, whole=not brief)
    if outline is None:
        raise no_run(store, run_id)
    return await _Reading(store, outline, after, brief=brief).story()


async def read_entry(store: Store, run_id: str, seq: int) -> Entry | None:
    """One record, whole; ``None`` if there is none of this number. Raises ``RunNotFound``."""
    outline = await store.outline(run_id, seq - 1, 1, whole=True)
    if outline is None:
        raise no_run(store, run_id)
    found = next((record for record in outline.records if record.seq == seq), None)
    return None if found is None else await _Reading(store, outline, seq - 1).entry(found)


def _of_row(run: Run, told: RunUsage) -> dict[str, Any]:
    """What its row tells of a run, and the sums of what it has used; by the names of a story's fields."""
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version or None,
        "state": run.state,
        "queue": run.queue,
        "queue_key": run.queue_key or None,
        "tags": tuple(run.tags),
        "created_at": moment(run.created_at),
        "finished_at": moment(run.finished_at),
        "seconds": None if run.finished_at is None else round(run.finished_at - run.created_at, 6),
        "waits_for": shown_text(run.waits_for) if run.state is RunState.WAITING else None,
        "wake_at": moment(run.wake_at),
        "paused": is_paused(run),
        "cancelling": is_cancelling(run),
        "parent": run.parent or None,
        "forked_from": run.forked_from or None,
        "usage": Used.of(told.used) if told.used.calls else None,
        "error": error_of(run.error),
        "python": run.python,
        "deadline": moment(run.deadline),
        "epoch": run.epoch,
        "deliveries": run.deliveries,
        "max_deliveries": run.max_deliveries,
        "held_by": run.owner,
        "paused_at": moment(run.paused_at) if is_paused(run) else None,
        "cancel": None if run.cancel is Cancel.NO else run.cancel.value,
        "inputs": value_of(run.inputs),
        "output": value_of(run.output),
        "output_size": None if run.output is None else len(run.output),
        "budget": budget_as_json(told),
        "left": left_as_json(told),
        "began_at": moment(run.began_at),
        "session": run.session or None,
        "previous": run.previous or None,
        "by_delivery": run.by_delivery,
    }


@dataclass(frozen=True, slots=True)
class _Reading:
    """A story in the making: what was read, and the way to what else is needed."""

    store: Store
    outline: Outline
    after: int
    brief: bool = False

    async def entry(self, record: Record) -> Entry:
        workers = await self._workers()
        hands = self._hands(workers, await look_around(self.store, [self.outline.run]))
        falls = await self._falls(workers, hands, _reopenings(await self._staying_notices()))
        takeovers = [fall.epoch for fall in falls]
        return await off_loop(len(record.payload or b""), lambda: self._entry(record, takeovers))

    async def story(self) -> Story:
        run, store = self.outline.run, self.store
        around = await look_around(store, [run])
        workers = await self._workers()
        family, more_family = await self._family()
        usages = await usage_of(store, [run.id, *(family if len(family) <= MANY else ())])
        budgets = await budgets_over(store, run)
        rows = await store.approvals(ApprovalFilter(run.id, only_open=False))
        stall = stall_of(run, around)
        taken = await self._taken()
        told = usages[run.id]
        hands = self._hands(workers, around)
        is_agent = await self._is_agent()
        notices = await self._staying_notices()
        reopened = _reopenings(notices)
        falls = await self._falls(workers, hands, reopened)
        takeovers = tuple(fall.epoch for fall in falls)
        row = await off_loop(size_of(run), lambda: _of_row(run, told))
        records = self.outline.records
        size = sum(len(record.payload or b"") for record in records)
        story = Story(
            **row,
            switched_off=run.workflow in around.off,
            stalled=None if stall is None else stall.advice,
            retry=await self._retry(taken, family),
            short_of=_short(await self._refusal()),
            journal=await off_loop(size, lambda: tuple(self._entry(one, takeovers) for one in records)),
            takeovers=takeovers,
            in_flight=self._in_flight(),
            children=tuple(_relative(one, usages.get(one.id)) for one in family.values()),
            signals=await off_loop(sum(len(one.payload) for one in self._sent()), self._signals),
            ends=self._waited_for(answers=False),
            answers=self._waited_for(answers=True),
            approvals=tuple(map(Asked.of, readable(rows))),
            workers=hands,
            plan=tuple(await self._plan(is_agent=is_agent)),
            at=moment(around.now),
            records=self._recorded,
            more=not self._is_last,
            more_children=more_family,
            is_agent=is_agent,
            reopened=tuple(map(moment, reopened)),
            asks_again=self._asks_again(),
            budgets=tuple(Account(id, budget_as_json(one) or {}, Used.of(one.used)) for id, one in budgets),
            offset=Cursor(self._last).offset(run),
            told="",
            advice=(),
            skipped=self._skipped(notices),
        )
        course = self._course(falls, taken, rows, reopened, is_agent=is_agent)
        return replace(story, told=tell(story, course), advice=advise(story, course, stall))

    def _signals(self) -> tuple[Sent, ...]:
        sent = (one for one in self._sent() if one.name != BUDGET_SIGNAL)
        return tuple(Sent(one.id, one.name, value_of(one.payload), moment(one.sent_at)) for one in sent)

    # The journal

    @property
    def _recorded(self) -> int:
        return sum(part.records for part in self.outline.parts)

    @property
    def _last(self) -> int:
        """The ``seq`` of the last record of the whole journal."""
        return max((part.last for part in self.outline.parts), default=-1)

    @property
    def _is_last(self) -> bool:
        """Whether the page goes up to the end of the journal."""
        return self._last <= (self.outline.records[-1].seq if self.outline.records else self.after)

    @property
    def _is_whole(self) -> bool:
        """Whether the page is the whole journal, and none of its values is left out."""
        return self.after < 0 and self._is_last and not self.outline.left_out

    def _entry(self, record: Record, takeovers: Sequence[int]) -> Entry:
        replays = sum(epoch > record.epoch for epoch in takeovers)
        left_out = self.outline.left_out.get(record.seq)
        return entry_of(record, self.outline.run, left_out, brief=self.brief, replays=replays)

    async def _behind(self, seq: int, limit: int) -> list[Record]:
        """Records behind that number, whether they are on the page or not."""
        if self._is_whole:
            return [record for record in self.outline.records if record.seq > seq][:limit]
        feed = await self.store.feed(self.outline.run.id, seq, _NO_NOTICES, limit)
        return [] if feed is None else list(feed.records)

    async def _taken(self) -> list[Record]:
        """What a retry takes back."""
        run = self.outline.run
        if run.rewind is None or not run.rewind.failed:
            return []
        return taken_back(run, await self._behind(min(run.rewind.failed) - 1, _ROWS))

    async def _retry(self, taken: Sequence[Record], family: Mapping[str, Run]) -> Retry | None:
        missing = [record for record in taken if record.preview not in family]
        others = {**await known_runs(self.store, missing), **family}
        found = prospect(self.outline.run, taken, self._recorded, others)
        if found is None:
            return None
        takes_back = tuple(record.seq for record in taken)
        return Retry(found.is_possible, found.needs_run_again, takes_back, found.in_words)

    async def _refusal(self) -> BudgetExceeded | None:
        """Why its next model call was not made, while it waits for a higher budget."""
        run = self.outline.run
        if run.state.is_terminal or any(signal.name == BUDGET_SIGNAL for signal in self._sent()):
            return None
        refusal: BudgetExceeded | None = None
        parked = is_short(run)  # then it waits, however often it was told before that it may ask again
        for record in self.outline.records if self._is_whole else await self._behind(self._last - _TAIL, _TAIL):
            if record.kind is Kind.SIGNAL and record.name == BUDGET_SIGNAL and not parked:
                refusal = None
            elif (refused := refusal_of(record)) is not None:
                refusal = refused
        return refusal

    async def _plan(self, *, is_agent: bool) -> Plan:
        if self._is_whole:
            return plan_of(self.outline.records)
        if not is_agent:
            return Plan()  # to look for one would be to look through the whole journal
        newest = await self.store.last_record(self.outline.run.id, PLAN)
        return Plan() if newest is None else plan_in(newest) or Plan()

    async def _is_agent(self) -> bool:
        """Whether it is an agent's run: by its result, what was announced of its workflow, or that it asks a model."""
        run = self.outline.run
        if run.output is not None and is_agent_result(run.output):
            return True
        spec = (await self.store.specs()).get(served_name(run.workflow, run.version))
        if spec is not None:
            return spec.is_agent
        return any(record.name == MODEL_CALL for record in self.outline.records)

    # What is in flight, and in its mailbox

    def _in_flight(self) -> tuple[InFlight, ...]:
        """Steps that have no outcome, unless the run went on without them."""
        if self.outline.run.state is RunState.COMPLETED:
            return ()
        return tuple(
            InFlight(
                number=one.position + 1,
                name=one.name,
                attempt=one.attempt,
                once=one.intent,
                error=shown_text(one.error) or None,
                progress=value_of(one.progress),
                at=moment(one.at),
                retry_at=moment(one.retry_at),
            )
            for one in sorted(self.outline.attempts.values(), key=lambda one: one.position)
        )

    def _sent(self) -> list[Signal]:
        return [signal for signal in self.outline.signals if signal.position is None]

    def _waited_for(self, *, answers: bool) -> tuple[End, ...]:
        found = [one for one in self.outline.signals if one.position is not None and is_answer(one.name) is answers]
        return tuple(
            End((one.position or 0) + 1, "answered" if answers else one.name, moment(one.sent_at)) for one in found
        )

    def _asks_again(self) -> datetime | None:
        told = [signal.sent_at for signal in self._sent() if signal.name == BUDGET_SIGNAL]
        return moment(max(told, default=None)) if self.outline.run.state is RunState.WAITING else None

    # Who is around

    async def _workers(self) -> dict[int, Worker]:
        return {one.id: one for one in await self.store.workers(also={part.worker for part in self.outline.parts})}

    def _hands(self, workers: Mapping[int, Worker], around: Surroundings) -> tuple[Hand, ...]:
        recorded: dict[int, int] = {}
        for part in self.outline.parts:
            recorded[part.worker] = recorded.get(part.worker, 0) + part.records
        known = [_hand(one, recorded.get(one.id, 0), around.now) for one in workers.values()]
        gone = [id for id in sorted({*recorded, self.outline.run.owner or 0} - {0}) if id not in workers]
        forgotten = [Hand(id, "", "", None, False, False, "unknown", recorded.get(id, 0)) for id in gone]
        return (*known, *forgotten)

    async def _family(self) -> tuple[dict[str, Run], bool]:
        """The runs that it has started, also those of which nothing is recorded yet, and those that it has joined."""
        most = PAGE if self.brief else MOST
        started: list[Run] = []
        while len(started) < most:
            before = started[-1].key if started else None
            page = await self.store.list_runs(
                RunFilter(parent=self.outline.run.id), limit=min(_ROWS, most), before=before
            )
            started += page
            if len(page) < min(_ROWS, most):
                break
        found = {one.id: one for one in reversed(started)}
        missing = [record for record in self.outline.records if record.preview not in found]
        return {**await known_runs(self.store, missing), **found}, len(started) >= most

    # How it went

    async def _staying_notices(self) -> list[Notice]:
        """The notices that a run keeps, oldest first: that it was reopened, and which steps it skipped."""
        run = self.outline.run
        if run.epoch < 2 and not run.state.is_terminal:
            return []  # it has not ended before
        feed = await self.store.feed(run.id, self._last, 0, _ROWS)
        return [] if feed is None else [notice for _, notice in feed.notices]

    def _skipped(self, notices: Sequence[Notice]) -> tuple[Skipped, ...]:
        """The steps that an ended run has skipped, in the order of its code; not those of an earlier end."""
        run = self.outline.run
        if not run.state.is_terminal:
            return ()
        last = [one for one in notices if one.kind == SKIPPED and one.part == str(run.epoch)]
        told = [(one.number, json.loads(one.data)) for one in last if not is_sealed(one.data)]
        found = [Skipped(step, data["name"], data["position"] + 1) for step, data in told]
        return tuple(sorted(found, key=lambda one: (one.before, one.step)))

    def _course(
        self,
        falls: Sequence[Fall],
        taken: Sequence[Record],
        approvals: Sequence[Approval],
        reopened: Sequence[float],
        *,
        is_agent: bool,
    ) -> Course:
        return Course(
            counts=self._counts(approvals, is_agent=is_agent),
            forkable=any(part.kind in _FORKABLE for part in self.outline.parts),
            falls=falls,
            reopened=len(reopened),
            unknown=[(one.position + 1, one.name) for one in to_be_settled(self.outline.run, taken)],
        )

    def _counts(self, approvals: Sequence[Approval], *, is_agent: bool) -> Counter[Kind]:
        """The number of records of each kind, without internal ones."""
        run = self.outline.run
        if self.after < 0 and self._is_last:
            return Counter(record.kind for record in self.outline.records if not is_internal(record, run))
        counts: Counter[Kind] = Counter()
        for part in self.outline.parts:
            counts[part.kind] += part.records
        # The names of records outside the page are not known here; what causes internal ones is.
        counts[Kind.STEP] -= sum(1 + one.reminders for one in approvals) + (is_agent and bool(run.session))
        counts[Kind.CHILD] -= is_agent and bool(run.previous)
        return counts

    async def _falls(
        self, workers: Mapping[int, Worker], known: Sequence[Hand], reopened: Sequence[float]
    ) -> list[Fall]:
        """The deaths of workers in the midst of its steps, as far as the journal tells.

        A run changes hands also when it was parked; then the first that is recorded is what it waited for. A step comes
        first where its holder died over it, or where a person let the run go on: then it had ended, and whatever became
        of its last holder is no part of its story. Only what a person has settled tells of a death itself.
        """
        hands = {hand.id: hand for hand in known}
        by_epoch: dict[int, list[Part]] = {}
        for part in self.outline.parts:
            by_epoch.setdefault(part.epoch, []).append(part)
        leases = [by_epoch[epoch] for epoch in sorted(by_epoch)]
        falls: list[Fall] = []
        for number, (before, lease) in enumerate(pairwise(leases), 1):
            fallen, heir = before[0].worker, lease[0].worker
            if fallen == heir or fallen not in workers or hands[fallen].alive or hands[fallen].state == "retired":
                continue
            begins = min(part.first for part in lease)
            around = await self._behind(begins - 2, _BEHIND + 1)
            records = [one for one in around if one.seq >= begins]
            first = records[0] if records else None
            if first is None or first.kind not in TIMED or workers[fallen].beat_at > first.started_at + _SLACK:
                continue
            since = max((one.at for one in around if one.seq < begins), default=0.0)
            if not first.is_settled and any(since <= at <= first.started_at + _SLACK for at in reopened):
                continue
            # What began before anything new was known had been asked for before, by whoever died.
            begun = [
                one
                for one in records
                if one.kind in TIMED and one.started_at < first.at and not is_unknown(one) and not one.is_settled
            ]
            steps = sum(part.records for lease in leases[:number] for part in lease if part.kind is Kind.STEP)
            falls.append(Fall(hands[fallen], hands.get(heir), first.position + 1, steps, len(begun), lease[0].epoch))
        return falls


def _reopenings(notices: Sequence[Notice]) -> list[float]:
    return [notice.at for notice in notices if notice.kind == REOPENED]


def _short(refusal: BudgetExceeded | None) -> Short | None:
    return None if refusal is None else Short(refusal.run_id, refusal.limit, str(refusal))


def _relative(run: Run, told: RunUsage | None) -> Relative:
    used = None if told is None or not told.used.calls else Used.of(told.used)
    return Relative(run.id, run.workflow, run.state, run.parent or None, used, is_short(run))


def _hand(worker: Worker, records: int, now: float) -> Hand:
    return Hand(
        worker.id,
        worker.name,
        worker.host,
        None if worker.by_lease else worker.pid,
        worker.by_lease,
        is_alive(worker, now),
        worker.state,
        records,
    )
