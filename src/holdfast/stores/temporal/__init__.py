"""Runs in Temporal: how they are stored there, and how clients read, start and change them.

A run is a Temporal workflow with the run's id, a step is an activity, a child a child workflow, a timer a timer.
Holdfast adds little: the workflow's memo says how the run was started (its tags, its seed, its deadline), and its
history says what happened. State that several runs share has workflows of its own.

The connection:

- ``targets``: ``temporal://`` URLs; ``connection``: the connection, and the encoding of payloads;
- ``payload_storage``: external storage for large payloads; ``errors``: Temporal's errors as Holdfast's.

The stored forms, which workers and clients share:

- ``identifiers``: the names of task queues, ids and messages;
- ``payloads``: recorded bytes as Temporal's payloads, and back;
- ``run_memo``: a run's memo; ``carried_records``: the records of earlier executions;
- ``run_events``: the events of a history, by workflow task; ``awaited_run``: waiting for a run that is not a child;
- ``entity_workflows``: the state that several runs share: ``budgets`` and ``sessions``.

Clients, which all go through ``store``:

- ``rows``: a run's row; ``visibility``: lists of runs; ``history`` and ``history_cache``: the events of executions;
- ``outcomes`` and ``journals``: records, made from events; ``run_details`` and ``approvals``: other details of a run;
- ``run_start``, ``requests`` and ``retry_and_fork``: changes to a run; ``end_watcher``: waits for its end;
- ``announcements``: workflows; ``pollers``: workers; ``memories``: kept in another store; ``unsupported``: the rest.

``holdfast.temporal`` has the other half: the workers.
"""
