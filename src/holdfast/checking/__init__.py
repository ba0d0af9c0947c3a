"""A static check of workflow code: what in it would not replay, found in its source alone.

Nothing is imported and nothing runs: a file is read, parsed and looked through.

- ``scopes``: the scopes of a file, and what each name in them is bound to;
- ``modules``: files as modules, and the modules next to them that they import;
- ``resolver``: what an expression stands for: ``t.time`` is ``time.time`` under ``import time as t``;
- ``workflow_code``: which functions are steps, which are workflows, and what workflow code calls;
- ``call_checks``, ``syntax_checks`` and ``await_checks``: what is wrong in such code (``rules`` has the table of
  calls);
- ``findings``: how it is told, and the comment that silences it;
- ``targets`` and ``checker``: files, folders and modules in, findings out.

``holdfast.testing`` reads functions with the same ``syntax_checks``, to name the cause of a failure that it has seen.
"""
