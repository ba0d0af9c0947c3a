"""The engine on Temporal: the same workflows, agents, and steps, as Temporal workflows and activities.

The path of one step: workflow code calls it, and ``core`` makes a command of the call. The run's driver, the one of the
journal engine, starts the command (``temporal_run``), which here schedules an activity (``live_run``). A worker gets
the activity, finds the command by its position (``rebuilt_runs``), executes the step (``step_attempt``), and Temporal
records the outcome. The next workflow task brings it to the driver, and the driver gives it to the code.

- ``engine``: what a ``Runtime`` over ``temporal://`` is; ``worker_thread``: the thread of Temporal's workers;
- ``run_workflow``: the one class that Temporal knows, whatever the workflow;
- ``temporal_run``: a run that is driven by events; ``live_run``: as a live execution, with its ``live_memo`` and
  ``child_workflows``; ``rebuilt_runs``: from its history;
- ``step_attempt``: the attempts of a step, in an activity; ``budget_reservation``: what they reserve;
- ``entity_workflows``: the workflows that keep what many runs share.

**Compatibility.** The order of events within a workflow task, the ids of activities, and the point at which a run
continues as new are part of the histories of existing runs. So they must not change. The histories in
``tests/temporal/histories`` are replayed in the tests to notice a change.

``holdfast.stores.temporal`` has what is stored in Temporal, and how clients read it.
"""
