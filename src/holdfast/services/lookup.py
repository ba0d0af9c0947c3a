"""Lookup by name: a run by its id, and suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from holdfast.errors import RunNotFound
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

MAX_SUGGESTIONS = 10
"""Maximum number of names to suggest."""


async def find_run(store: Store, run_id: str) -> Run:
    """The run's current row. Raises ``RunNotFound``."""
    run = await store.get_run(run_id)
    if run is None:
        raise make_run_not_found(store, run_id)
    return run


def make_run_not_found(store: Store, run_id: str) -> RunNotFound:
    """The error for an id that no run has."""
    return RunNotFound(f"there is no run {run_id!r} in {store.url}", run_id)


def suggest_name(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name: a similar one, or some of the known ones."""
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", …" if len(known) > MAX_SUGGESTIONS else ""
    return f"there are: {', '.join(map(repr, known[:MAX_SUGGESTIONS])) or 'none yet'}{more}."
