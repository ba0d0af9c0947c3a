"""The journal engine: it claims runs, replays them, carries out their steps and commits what happened.

``journal_engine`` puts the parts together; each duty has a module.

- A worker: ``membership`` (registration and the lease), ``heartbeat``, ``store_readiness`` (waiting for a store that is
  away at the start), ``announcements`` (what its code declares), ``claims``, ``held_runs`` (those in memory),
  ``schedule_ticker``, ``journal_writer`` (group commit) and ``live_events`` (what others may follow live).
- A run in memory: ``driver``, with ``recorder`` (its way to the writer), ``steps_in_flight``, ``timers``,
  ``child_runs``, ``run_approvals`` and ``mailbox``; ``idle_runs`` and ``park_operation`` (leaving memory),
  ``run_outcome`` and ``replay_logging`` (replay logs nothing).
- A step: ``step_run`` (its attempts), ``attempts`` (one attempt), ``step_transactions`` (committed with the outcome),
  ``thread_pool`` (for plain functions), ``budget_reservation`` and ``step_context`` (``current_step()``).

``definitions`` is what is executed, ``clock`` is time and chance; ``contract`` is what a runtime needs of any engine,
and ``host`` what a run and a step need of theirs: Temporal's has the same driver.
"""
