"""The statements that a database brings along, by name. Their texts are in ``statements`` of each, and beside that.

Each comment tells the values that go in, in order, and after the arrow what comes out. See ``database`` for the ways in
which they are used: under *Writes* a row is one change, whatever the text makes of it; under *Lookups* the comment is
about one question. A list goes in as ``Database.listed`` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_END = 2**63 - 1
"""For a limit, or a number below which something is: more than there can be."""


class Statements:
    """What every database has a text for."""

    @classmethod
    def of(cls, texts: Mapping[str, Any]) -> Statements:
        """Those that a module has under these names."""
        found = Statements()
        for name in Statements.__annotations__:
            setattr(found, name, texts[name])
        return found

    # Runs (RUN: the columns of ``rows.Reader.run``)

    GET_RUN: str  # id -> RUN
    GET_RUNS_BY_ID: str  # list of ids -> RUN
    GET_RUNS_BY_KEY: str  # list of keys -> RUN
    GET_RUN_BY_KEY: str  # key -> RUN
    ID: str  # key -> id
    ID_BYTES: str  # key -> id, as bytes
    SEED: str  # key -> seed

    # Lookups

    RECORD_EPOCH: str  # run, seq -> epoch
    SENT: str  # run -> name, position: the signals in its mailbox, position NULL unless it is an end or an answer
    LINKS: str  # parent, first position, last position -> position, child, told
    WAITING: str  # child -> parent, position: of the links that are not told yet
    IS_LIVE: str  # worker -> 1, if it is live; it stays so until the commit
    NEWEST_OF_SESSION: str  # workflow, session -> id
    HAS_SIGNAL_KEY: str  # run, dedup -> 1
    ACCOUNT: str  # run -> the columns of ``rows.account_row`` without the first
    ABOVE: str  # run -> key of its parent, if that is there
    RESERVATIONS: str  # run -> position, calls, tokens, nano_usd
    LEFTOVERS: str  # -> whether there are notices that do not stay, and open questions (or may be), of any run
    SWITCHES: str  # -> workflow, off_since, set_by, reason, is_temporary
    DELIVERIES: str  # run -> deliveries, max_deliveries, suspicion
    SUSPECTS: str  # workflow, version, time, limit -> the fields of ``suspects.SuspectRun``: those due by then

    # Writes: records, attempts, signals, links

    APPEND: str  # ``rows.record_row``
    NOTE_ATTEMPT: str  # ``rows.attempt_row``; the last one of a place counts, and leaves its outcome as it is
    CLEAR_ATTEMPT: str  # run, position
    SEND_SIGNAL: str  # run, name, sent_at, payload, position
    NOTE_SIGNAL_KEY: str  # run, dedup
    CONSUME_SIGNAL: str  # id, run
    DROP_END: str  # run, position: the end of a run in the mailbox, no answer
    DROP_ANSWER: str  # run, position: the other way round
    LINK: str  # parent, position, child, told; the last one of a place counts
    UNLINK: str  # parent, position

    # Writes: a run's life

    START_RUN: str  # key and ``rows.run_row``; a Collision if there is one under this id
    TAG_RUN: str  # tag, run; nothing if it is there
    RESET_DELIVERIES: str  # key
    FINISH_RUN: str  # state, output, error, finished_at, rewind, key
    PARK_RUN: str  # ready, wake_at, waits_for, whether its holder is noted (1 or 0), key
    RELEASE_RUN: str  # wake_at, key
    RELEASE_LATER: str  # wake_at, by how much deliveries rise, key: due then
    WAKE_RUN: str  # wake_at, key: if it waits and is not paused
    CANCEL_HELD: str  # key
    CANCEL_SLEEPING: str  # wake_at, key
    CANCEL_AT_ONCE: str  # finished_at, key
    CANCEL_RECORDED: str  # key
    PAUSE_RUN: str  # paused_at, key
    RESUME_HELD: str  # key
    RESUME_SLEEPING: str  # wake_at, key
    RESUME_UNBEGUN: str  # now, key
    CLAIM: str  # worker, key
    FREE_RUN: str  # wake_at, deliveries, key: of a dead worker
    KILL_RUN: str  # deliveries, error, finished_at, key

    # Writes: all the rest

    TELL: str  # run, position, part, number, stays, kind, at, data; nothing if it is there
    CLEAR_NOTICES: str  # run, position
    CLEAR_ALL_NOTICES: str  # run
    WITHDRAW_ALL: str  # run
    KEEP_BLOB: str  # hash, size, data; nothing if it is there
    KEEP_ACCOUNT: str  # ``rows.account_row``
    RESERVE: str  # run, position, calls, tokens, nano_usd
    GIVE_BACK: str  # run, position
    PUBLISH: str  # ``rows.spec_row``

    # Changes of which somebody has to know what they did, one at a time

    COPY_JOURNAL: str  # new run, old run, seq: records before it
    ADOPT_ORPHAN: str  # starter, key
    FAIL_UNREADABLE: str  # error, finished_at, key: if it is running
    SWITCH_OFF: str  # workflow, off_since, set_by, reason, is_temporary
    SWITCH_ON: str  # workflow, 1: only if it is temporary
    FIND_ORPHAN: str  # workflow, digest, version -> RUN; nobody else finds it until the commit

    # Runs by delivery whose deadline has passed

    OVERDUE: str  # now, limit -> key, the one that is overdue for the longest time first
    STILL_OVERDUE: str  # now, list of keys -> key, id: in the same order

    # Reopening; ``taken`` is a mapping with run, first, failed (a list), positions, timers

    REOPENED: str  # key -> id, state, rewind
    OPEN_ENDS: str  # taken -> position, key, state, parent, whether it had an end that is taken back
    PUT_BACK: str  # taken
    TAKE_BACK: str  # taken
    DROP_ANSWERS: str  # taken
    TAKE_BACK_ANSWERS: str  # taken
    TAKE_BACK_ATTEMPTS: str  # taken: those of steps begun because of what is taken back, except for intents
    NOTE_REWOUND: str  # position, key
    REOPEN_RUN: str  # wake_at, now, key
    SET_VERSION: str  # version, key

    # Approvals

    APPROVAL: str  # id -> run, position, state, reminders, withdrawn_in
    OTHERS_ASKED: str  # run, position, id -> id: the others that are not withdrawn, the first one first
    ASK: str  # id, run, position, asked_at, expires_at, asked_of, question, form, arguments; anew if it is there
    REMIND: str  # reminders, asked_of, reminded_at, expires_at, id
    WITHDRAW: str  # withdrawn_in, id
    ANSWER: str  # answer, answered_by, answered_at, id
    LIST_APPROVALS: str  # with {conditions}; their values, limit -> see ``asking.approvals``
    CLOSED_APPROVALS: str  # the same, of those that are not open, the newest first
    APPROVAL_CONDITIONS: Mapping[str, str]  # by field of ``ApprovalFilter``

    # Notices and journals

    LEAVE_NOTICE: str  # a mapping with run, position, kind, at, data: numbered on in the part ''
    LAST_SEQ: str  # run -> the number of its last record, or -1
    NEW_NOTICES: str  # run, id, limit -> id, position, part, number, kind, data, at
    NEW_RECORDS: str  # run, seq, limit -> RECORD (the fields of ``Record``)
    JOURNAL_PARTS: str  # run -> the fields of ``Part``, those that began first come first
    LAST_RECORD: str  # run id, name -> RECORD: the newest one that is ok
    JOURNAL: str  # lookup: run -> RECORD
    JOURNAL_PLACES: str  # run -> seq, position, name as bytes
    JOURNAL_ENTRY: str  # run, seq -> RECORD
    ATTEMPTS: str  # lookup: run -> position, attempt, intent, progress, error, at, name, outcome
    OUTCOME: str  # run, position, name -> 1, if a transaction of this step has left its outcome
    MAILBOX: str  # lookup: run -> the fields of ``Signal``, the oldest first
    LINKED: str  # lookup: run -> position, id and digest of the awaited run: of the links that are not late
    # cursor, worker -> run, the fields of ``Signal``, a cursor: the oldest first; a row without a run has only a cursor
    NEW_SIGNALS: str
    REQUESTS: str  # worker -> key, whether a cancel is asked, whether it is paused

    # Memories

    GET_MEMORY: str  # namespace, key -> the fields of ``Memory``
    LIST_MEMORIES: str  # namespace, key, limit -> the fields of ``Memory``

    # Usage

    SHORT: str  # -> run: those that are short of something
    USAGES: str  # list of ids -> id, the fields of ``Usage``, budget

    # Large values

    BLOBS: str  # lookup: hash -> hash, data
    BLOB_SIZES: str  # lookup: hash -> hash, size

    # Claims: a mapping with what ``Database.served`` tells, queues (a list, or NULL for all) and now

    HAS_DUE: str  # -> whether anything is due
    # -> wake_at of a run that is due, when limited queues let the first one of theirs be taken, wake_at of a suspect
    NEXT_READY: str
    NEXT_TIMER: str  # -> the earliest wake_at of those that are not

    # Lists of runs: the keys of a page, with {filters} made of FILTERS; values: those of the condition, the key below
    # which they are and the lowest one, those of the filters, limit

    LIST_BY_KEY: str  # key, key, ..., limit -> key
    LIST_STRETCH: str  # lookup: workflow, state, key, key, ..., limit -> key
    LIST_STATE: str  # lookup: state, key, key, ..., limit -> key
    LIST_BY: Mapping[str, str]  # by what narrows the list: owner, parent, tag, id_prefix, created
    HOW_MANY: Mapping[str, str]  # the values of the condition, limit -> how many fulfil it, at most limit
    NEWEST_CREATED: str  # from, to -> the highest key
    CREATED_BELOW: str  # from, to, key -> whether a run of that time has a lower key
    FILTERS: Mapping[str, str]  # states (a list), workflow, owner, parent, tag, id_prefix (2), created (2)
    KNOWN_WORKFLOWS: str  # -> the workflows of all runs
    COUNT_RUNS: str  # -> workflow, state, how many
    COUNT_SOME: str  # states, the most of each -> workflow, state, how many, 0 too
    COUNT_UNFINISHED: str  # workflows -> workflow, version, how many that have not ended

    # Pruning

    ENDED_STRETCH: str  # workflow, state, key, key, finished_at, limit -> key: between the keys, and ended before
    KIN: str  # lookup: key -> the fields of ``pruning.Kin``
    KEY_OF: str  # lookup: id -> key
    CHILDREN: str  # lookup: id -> key: of the runs that it has started
    CONTINUED: str  # lookup: id -> key: of the runs that continue its conversation
    SESSION_RUNS: str  # lookup: workflow, session -> key
    IS_AWAITED: str  # lookup: key -> 1, if an unfinished run has a link to it
    AWAITED_RUNS: str  # lookup: key -> key: of the runs that it has links to
    JOURNAL_SIZE: str  # lookup: run -> records, bytes of its values and of those in its row
    LOCK_ENDED: str  # list of keys -> key: those that have ended, and that nobody changes just now; they stay
    NOTE_PRUNED: str  # write: key: what is to be swept away, and the references in its row
    FORGET_RUN: str  # write: key
    FORGET_LINKS: str  # write: key: those from it
    FORGET_ACCOUNT: str  # write: key
    NEXT_PRUNED: str  # limit -> key, bytes, references or NULL (3); nobody else sweeps them until the commit
    FORGET_RECORDS: str  # run, limit -> bytes, reference or NULL, of each that is deleted
    LARGE_SIGNALS: str  # list of runs -> reference
    LARGE_APPROVALS: str  # list of runs -> reference
    FORGET_ATTEMPTS: str  # write: run
    FORGET_SIGNALS: str  # write: run
    FORGET_SIGNAL_KEYS: str  # write: run
    FORGET_TAGS: str  # write: run
    FORGET_RESERVATIONS: str  # write: run
    FORGET_APPROVALS: str  # write: run
    FORGET_NOTICES: str  # write: run
    FORGET_PRUNED: str  # write: key
    LOCK_BLOB: str  # lookup: hash -> bytes; nobody refers to it anew until the commit
    IS_REFERRED_TO: str  # lookup: reference -> 1, if it stands in a column
    FORGET_BLOB: str  # write: hash
    # write: at most so many, time, now: workers by lease that are live no more, whose lease ended before this time, and
    # before the oldest run by delivery (or now) was created
    FORGET_LISTENERS: str
    # write: the same of the other workers, and before the oldest run of any kind was created
    FORGET_WORKERS: str

    # Schedules

    # name, workflow, timing, catch_up, most, overlap, by_code, options, inputs, created_at, fired_up_to; what is there
    # is replaced, except for created_at, and fired_up_to never becomes less
    PUT_SCHEDULE: str
    ADD_SCHEDULE: str  # the same; nothing if there is one of this name
    ANNOUNCE_SCHEDULE: str  # schedule, worker; nothing if it is there
    DROP_ANNOUNCEMENTS: str  # those of workers that are no longer live
    FORGET_ANNOUNCEMENTS: str  # schedule
    # now -> the first nine of PUT_SCHEDULE, the fields of ``Schedule`` without the first; in the order of their names
    SCHEDULES: str
    SCHEDULES_NAMED: str  # now, list of names -> the same
    SETTLE_SCHEDULE: str  # fired_up_to, run or '' (twice), skipped or NULL, name, the fired_up_to that it has
    PAUSE_SCHEDULE: str  # paused_at, name
    RESUME_SCHEDULE: str  # name
    DELETE_SCHEDULE: str  # name

    # Archives

    UNCLAIMED: str  # key -> unclaimed
    SIGNAL_KEYS: str  # run -> dedup
    LINKS_OF: str  # run -> position, id of the awaited run, told: of those that are there
    # write: state, epoch, deliveries, wake_at, waits_for, cancel, paused_at, finished_at, rewind, output, error,
    # unclaimed, key; it is not ready
    RESTORE_RUN: str
    RESTORE_ATTEMPT: str  # write: ``rows.attempt_row``, outcome
    # write: id, run, position, state, asked_at, expires_at, asked_of, reminders, reminded_at, answered_by, answered_at,
    # question, form, arguments, answer
    RESTORE_APPROVAL: str
    SET_GOING: str  # write: ready, paused_at, key: if it is held back

    # Queues, for claims (QUEUE: name, limits, turns, used, open_at, the database's clock or NULL;
    # CANDIDATE: the fields of ``queueing.Candidate``)

    LIMITED: str  # lookup: name -> QUEUE; nothing if it is paused, or somebody else is taking runs from it just now
    LIMITED_ALL: str  # lookup: -> QUEUE, of all of them
    EXECUTED: str  # lookup: queue -> key, how many of its runs are executed
    STRETCH: str  # lookup: queue, workflow, version, ready, limit -> CANDIDATE, in order
    ASIDE_KEYS: str  # lookup: queue, now, limit -> key, used: with runs that are set aside, to be looked at
    ASIDE_RUNS: str  # lookup: queue, key, ready, workflow, version, limit -> CANDIDATE, in order
    KEY_USED: str  # lookup: queue, key -> used
    TAKE_CHARGES: str  # lookup: queue -> key, tokens, at; they are gone then
    LOCK_DUE: str  # list of keys -> key: those that are due, and that nobody changes just now; they stay so
    SET_ASIDE: str  # write: queue, key, ready (2 or 3), limit: so many runs of the key
    KEEP_QUEUE: str  # write: turns, used, open_at, name
    KEEP_KEY: str  # write: queue, key, used, open_at, until; what is set aside is counted

    # Queues, for whoever starts runs

    QUEUE_TURN: str  # lookup: name -> turns; the queue is not deleted before the commit
    KEY_TURN: str  # lookup: queue, priority, key -> turn
    KEEP_TURN: str  # write: queue, priority, key, turn, at
    # lookup: queue, dedup -> as ``Database.fences``, debounced, workflow, created_at, inputs if they may be a reference
    DEDUP: str
    REPLACE_INPUTS: str  # write: inputs, digest, version, deadline, wake_at, now, key
    NOTE_REPLACED: str  # write: a new key, a reference that is perhaps needed no more: to be swept away
    CHARGE: str  # write: tokens, at, run: if its queue counts them
    KEEP_QUEUE_OF: str  # key -> 1, if the run's queue is limited; it is not deleted before the commit

    # Queues, for whoever sets their limits

    QUEUE: str  # name -> name, limits, declared, by_hand, paused_at, settled, used; nobody else uses it
    QUEUES: str  # -> the same of all
    ADD_QUEUE: str  # write: name, limits, by_hand, counts_tokens, turns, used, open_at, settled; nothing if it is there
    PUT_QUEUE: str  # limits, declared, by_hand, paused_at, concurrency, key_concurrency, counts_tokens, name
    OPEN_KEYS: str  # queue: look at all that is set aside
    SETTLE_QUEUE: str  # name
    QUEUE_CONTENT: str  # now, queue -> key, running, waiting
    SEE_CHARGES: str  # queue -> key, tokens, at
    UNLIMITED_STRETCH: str  # workflow, state, key, queue, limit -> key: of runs that are not limited, behind the key
    LOCK_UNLIMITED: (
        str  # list of keys -> key, queue_key, epoch, priority: of those that are not limited, and have not ended
    )
    LIMIT_RUN: str  # write: due_as, turn, key
    LIMITED_RUNS: str  # queue, limit -> key: of runs that are limited, and have not ended; they stay so
    UNLIMIT_RUN: str  # write: key
    DROP_QUEUE: str  # name
    DROP_TURNS: str  # queue
    DROP_KEYS: str  # queue
    DROP_CHARGES: str  # queue
    OLD_TURNS: str  # at, limit -> queue, priority, key, whether it has an unfinished run; nobody else changes them
    KEEP_TURN_LONGER: str  # write: at, queue, priority, key
    DROP_TURN: str  # write: queue, priority, key
    OLD_KEYS: str  # until, limit -> queue, key, whether something is set aside; nobody else changes them
    KEEP_KEY_LONGER: str  # write: until, queue, key
    DROP_KEY: str  # write: queue, key

    # What servers keep (DOCUMENT: the fields of ``Document``)

    PUT_DOCUMENT: str  # kind, name, created_at, updated_at, data -> DOCUMENT
    ADD_DOCUMENT: str  # the same, if there is none -> DOCUMENT
    CHANGE_DOCUMENT: str  # data, updated_at, kind, name, the version that it has -> DOCUMENT
    DOCUMENTS: str  # kind, name, limit -> DOCUMENT: those behind the name, in order
    DOCUMENTS_NAMED: str  # kind, name, list of names, limit -> the same of these
    DELETE_DOCUMENT: str  # kind, name
    NOTE_AUDIT: str  # write: the fields of ``NewAudit``
    AUDIT: str  # id, limit -> id, the fields of ``NewAudit``: those before the id, the newest first
    TRIM_AUDIT: str  # at, limit: the oldest ones that are older

    # Spending

    SPEND: str  # write: day, model, the fields of ``Usage`` but the seconds, run
    SPENDING: str  # day, day, workflow or NULL (twice) -> day, workflow, model, the fields of ``Usage`` but the seconds
    FIRST_AND_LAST_CREATED: str  # -> the earliest and the latest created_at of all runs, NULL if there are none
    CREATED_ON: str  # lookup: from, to -> workflow, how many runs were created from then on, and before that

    # Workers (WORKER: the fields of ``contract.Worker``)

    WORKER: str  # id -> WORKER
    WORKERS: str  # list of ids -> WORKER: of those, and of all that are live or referred to by unfinished runs
    SERVE: str  # workflows, id
    LEASE: str  # id -> beat_at, lease_until, if it is live; nobody prolongs it, and it takes nothing, until the commit
    END_WORKER: str  # state, id
    HELD_RUNS: str  # worker -> key, id, deliveries, max_deliveries, suspicion; they stay so until the commit
    HELD_WITH_BUDGET: str  # worker -> key
    WAKE_PARKED_BY: str  # now, worker
    RELEASE_ALL: str  # wake_at, worker: all that it holds
    SPECS: str  # -> ``rows.spec_row``
