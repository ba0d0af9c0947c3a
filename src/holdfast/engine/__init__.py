"""The journal engine: it claims runs, replays them, executes their steps, and commits the outcomes.

``journal_engine`` puts the parts together; each duty has a module.

- A worker: ``membership`` (registration and the lease), ``heartbeat``, ``store_readiness`` (waiting for the store at
  the start), ``announcements`` (what its code declares), ``poller`` (its loop), ``claims``, ``held_runs`` (the runs in
  memory), ``schedule_ticker``, ``journal_writer`` (group commit), and ``live_events`` (for followers of a run).
- A run in memory: ``held_run`` (its state, and how it leaves memory) and ``driver`` (how it moves forward), with
  ``recorder`` (its writes), ``steps_in_flight``, ``timers``, ``child_runs``, ``run_approvals``, and ``mailbox``;
  ``idle_runs`` and ``park_operation`` (parking), ``run_outcome``, and ``replay_logging`` (replay logs nothing).
- A step: ``step_run`` (its attempts), ``attempts`` (one attempt), ``step_transactions`` (changes committed with the
  outcome), ``thread_pool`` (for plain functions), ``budget_reservation``, and ``step_context`` (``current_step()``).

``definitions`` describes workflows and steps, ``clock`` provides time and random numbers, ``contract`` is what a
runtime needs of any engine, and ``host`` what a driver and its steps need: Temporal's engine has the same driver.
"""
