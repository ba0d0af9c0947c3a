"""The engine on Temporal: the same workflows, agents and steps, as Temporal workflows and activities.

The way of one step: workflow code asks for it, and ``core`` makes a command of that. The run's driver, the one of the
journal engine, begins the command (``temporal_run``), which here means that an activity is scheduled (``live_run``). A
worker is handed the activity, finds the command by its position (``rebuilt_runs``), carries the step out
(``step_attempt``), and Temporal records the outcome. The next workflow task hands it to the driver, and the driver to
the code.

- ``engine``: what a ``Runtime`` over ``temporal://`` is; ``worker_thread``: the thread in which Temporal's workers
  live;
- ``run_workflow``: the one class that Temporal knows, whatever the workflow;
- ``temporal_run``: a run that is fed with what happened; ``live_run``: as a live execution; ``rebuilt_runs``: from
  its history;
- ``step_attempt``: the attempts of a step, in an activity; ``budget_reservation``: what they ask of budgets;
- ``entity_workflows``: the workflows that keep what many runs share.

What is written down in Temporal, and how clients read it, is in ``holdfast.stores.temporal``.
"""
