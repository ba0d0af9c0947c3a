"""Runs that Temporal keeps: how they are written down there, and how clients read, start and change them.

A run is a Temporal workflow whose id is the run's id, a step an activity, a child a child workflow, a timer a timer.
Little of Holdfast's is kept beside: what a run is (its tags, its seed, its deadline) is in the workflow's memo, what
happened to it is its history. What many runs share has a workflow of its own.

The way there:

- ``targets``: what a ``temporal://`` URL says; ``connection``: the connection, and how payloads travel over it;
- ``payload_storage``: where large payloads are kept; ``errors``: what goes wrong, in words.

What is written down, which workers and clients share:

- ``identifiers``: task queues, ids and the names of messages;
- ``payloads``: recorded bytes as Temporal's payloads, and back;
- ``run_memo``: what the memo says of a run; ``carried_records``: what an execution brings along from those before it;
- ``run_events``: what a history tells a run, workflow task by workflow task;
- ``entity_workflows``: what many runs share, and who keeps it: ``budgets`` and ``sessions``.

What clients do, all of it behind ``store``:

- ``rows``: a run's row; ``visibility``: lists of them; ``history`` and ``history_cache``: the events of executions;
- ``outcomes`` and ``journals``: records, made from events; ``run_details``: what else there is to read of a run;
- ``run_start``, ``requests`` and ``retry_and_fork``: what changes a run; ``end_watcher``: until it has ended;
- ``pointers``: small facts under a name, and ``announcements``: workflows;
- ``pollers``: who serves what; ``memories``: what another store keeps; ``unsupported``: what there is not on Temporal.

The room ``holdfast.temporal`` has the other half: what workers do.
"""
