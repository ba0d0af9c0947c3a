"""The journal engine: it claims runs, replays them, carries out their steps and commits what happened.

``engine.JournalEngine`` is the whole; each duty has a file.

- A worker: ``membership`` (registering, the lease, coming back), ``heartbeat`` (the heartbeat), ``store_readiness``
  (with a store
  that is away when it starts), ``announcements`` (what its code has), ``claims`` (how it comes to runs),
  ``schedule_ticker`` (schedules), ``journal_writer`` (group commit) and ``live_events`` (what others may follow live).
- A run in memory: ``driver``, with ``recorder`` (its way to the writer), ``steps_in_flight`` (its steps), ``timers``,
  ``child_runs``, ``run_approvals`` and ``mailbox``; ``idle_runs`` and ``park_operation`` (leaving memory),
  ``run_outcome`` (how its end is told) and ``replay_logging`` (replay is silent).
- A step: ``step_run`` (its attempts), ``attempts`` (one of them), ``step_transactions`` (those that are committed
  with their
  outcome), ``thread_pool`` (where plain ones run), ``budget_reservation`` (budgets) and ``step_context`` (what it may
  know).

``definitions`` is what is executed, ``clock`` is time and chance; ``contract`` is what a runtime needs of any engine,
and ``host`` what a run and a step need of theirs: Temporal's has the same driver.
"""
