"""The journal engine: it claims runs, replays them, carries out their steps and commits what happened.

``engine.JournalEngine`` is the whole; each duty has a file.

- A worker: ``membership`` (registering, the lease, coming back), ``pulse`` (the heartbeat), ``patience`` (with a store
  that is away when it starts), ``announcing`` (what its code has), ``claims`` (how it comes to runs), ``ticking``
  (schedules), ``writer`` (group commit) and ``telling`` (what others may follow live).
- A run in memory: ``driver``, with ``recording`` (its way to the writer), ``in_flight`` (its steps), ``timing``,
  ``children``, ``asking`` and ``mailbox``; ``idle`` and ``parking`` (leaving memory), ``ending`` (how its end is told)
  and ``quiet`` (replay is silent).
- A step: ``steps`` (its attempts), ``attempting`` (one of them), ``transacting`` (those that are committed with their
  outcome), ``threads`` (where plain ones run), ``reserving`` (budgets) and ``step_context`` (what it may know).

``definitions`` is what is executed, ``clock`` is time and chance; ``contract`` is what a runtime needs of any engine,
and ``hosting`` what a run and a step need of theirs: Temporal's has the same driver.
"""
