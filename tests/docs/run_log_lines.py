"""What a script without a terminal may write to stderr: what the log says about its runs, and nothing else."""

from __future__ import annotations

import re

_RUN_LOG = re.compile(r"(step '.*' of run '|run '.*' (of workflow '.*' )?(failed|is )|workers? [\d, ]+ died: )")


def without_run_log(stderr: str) -> str:
    """What is left when lines about runs are taken away."""
    return "\n".join(line for line in stderr.splitlines() if not _RUN_LOG.match(line))
