"""Runs that Temporal keeps: how they are written down there, and how clients read, start and change them.

A run is a Temporal workflow whose id is the run's id, a step an activity, a child a child workflow, a timer a timer.
Little of Holdfast's is kept beside: what a run is (its tags, its seed, its deadline) is in the workflow's memo, what
happened to it is its history. What many runs share has a workflow of its own.

The way there:

- ``targets``: what a ``temporal://`` URL says; ``connecting``: the connection, and how payloads travel over it;
- ``storing``: where large payloads are kept; ``faults``: what goes wrong, in words.

What is written down, which workers and clients share:

- ``naming``: task queues, ids and the names of messages;
- ``payloads``: recorded bytes as Temporal's payloads, and back;
- ``heads``: what the memo says of a run; ``carrying``: what an execution brings along from those before it;
- ``happenings``: what a history tells a run, workflow task by workflow task;
- ``keepers``: what many runs share, and who keeps it: ``budgets`` and ``sessions``.

What clients do, all of it behind ``store``:

- ``rows``: a run's row; ``listing``: lists of them; ``histories`` and ``following``: the events of executions;
- ``outcomes`` and ``journals``: records, made from events; ``reading``: what else there is to read of a run;
- ``starting``, ``requests`` and ``reopening``: what changes a run; ``waiting``: until it has ended;
- ``pointing``: small facts under a name, and ``announcing``: workflows;
- ``polling``: who serves what; ``lacking``: what there is not on Temporal.

The room ``holdfast.temporal`` has the other half: what workers do.
"""
