"""The engine on Temporal: the same workflows, agents, and steps, as Temporal workflows and activities.

The path of one step: workflow code calls it, and ``core`` makes a command of the call. The run's driver, that of the
journal engine, starts the command (``temporal_run``), which here schedules an activity (``live_run``). A worker gets
the activity (``activities``), finds the command by its position (``rebuilt_runs``), executes the step
(``step_attempt``), and Temporal records the outcome. The next workflow task delivers it to the driver, and the driver
to the code.

- ``engine``: the engine of a ``Runtime`` over ``temporal://``; ``worker_thread``: the thread of Temporal's workers;
- ``run_workflow``: the one workflow class that Temporal knows;
- ``temporal_run``: a run that events drive; ``live_run``: as a live execution, with its ``live_memo`` and
  ``child_workflows``; ``rebuilt_runs``: from its history;
- ``step_attempt``: the attempts of a step, in an activity; ``budget_reservation``: their reservations; ``failures``:
  how they and runs fail;
- ``entity_workflows``: the state that several runs share.

**Compatibility.** The order of events within a workflow task, the ids of activities, and the point at which a run
continues as new are part of the histories of existing runs, so they must not change. The histories in
``tests/temporal/histories`` are replayed in the tests to notice a change.

``holdfast.stores.temporal`` defines what is stored in Temporal, and how clients read it.
"""
