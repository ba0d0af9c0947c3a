"""A static check of workflow code: what in it would not replay, found in its source alone.

Nothing is imported and nothing runs: a file is read, parsed and looked through.

- ``names``: the scopes of a file, and what each name in them is bound to;
- ``modules``: files as modules, and the modules next to them that they import;
- ``values``: what an expression stands for: ``t.time`` is ``time.time`` under ``import time as t``;
- ``workflows``: which functions are steps, which are workflows, and what workflow code calls;
- ``calls``, ``order`` and ``awaiting``: what is wrong in such code (``rules`` has the table of calls);
- ``findings``: how it is told, and the comment that silences it;
- ``targets`` and ``check``: files, folders and modules in, findings out.

``holdfast.testing`` reads functions with the same ``order``, to name the cause of a failure that it has seen.
"""
