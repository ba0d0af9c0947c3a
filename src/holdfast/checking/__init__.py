"""A static check for workflow code that would not replay.

It imports and runs nothing: it reads and parses files, and searches their syntax trees.

- ``scopes``: the scopes of a file, and the bindings of each name in them;
- ``modules``: files as modules, and the modules next to them that they import;
- ``resolver``: what an expression refers to: ``t.time`` is ``time.time`` under ``import time as t``;
- ``workflow_code``: which functions are steps, which are workflows, and what workflow code calls;
- ``call_checks``, ``syntax_checks`` and ``await_checks``: the checks (``rules`` has the table of calls);
- ``findings``: the format of findings, and the comment that silences them;
- ``targets`` and ``checker``: files, folders and modules in, findings out.

``holdfast.testing`` uses ``syntax_checks`` as well, to name the cause of a failed replay.
"""
