"""The engine on Temporal: the same workflows, agents and steps, as Temporal workflows and activities.

The way of one step: workflow code asks for it, and ``core`` makes a command of that. The run's driver, the one of the
journal engine, begins the command (``feeding``), which here means that an activity is scheduled (``holding``). A worker
is handed the activity, finds the command by its position (``recalling``), carries the step out (``carrying_out``), and
Temporal records the outcome. The next workflow task hands it to the driver, and the driver to the code.

- ``engine``: what a ``Runtime`` over ``temporal://`` is; ``workers``: the thread in which Temporal's workers live;
- ``workflow``: the one class that Temporal knows, whatever the workflow;
- ``feeding``: a run that is fed with what happened; ``holding``: as a live execution; ``recalling``: from its history;
- ``carrying_out``: the attempts of a step, in an activity; ``spending``: what they ask of budgets;
- ``keeping``: the workflows that keep what many runs share.

What is written down in Temporal, and how clients read it, is in ``holdfast.stores.temporal``.
"""
