"""Finding things by their names: a run's row by its id; what to say of a name that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from holdfast.errors import RunNotFound
from holdfast.stores.contract import Store
from holdfast.stores.operations import Run

MAX_SUGGESTIONS = 10
"""So many names are told of those that there are."""


async def find_run(store: Store, run_id: str) -> Run:
    """The row of this run, as it is now. Raises ``RunNotFound``."""
    run = await store.get_run(run_id)
    if run is None:
        raise make_run_not_found(store, run_id)
    return run


def make_run_not_found(store: Store, run_id: str) -> RunNotFound:
    """The error of an id that no run has."""
    return RunNotFound(f"there is no run {run_id!r} in {store.url}", run_id)


def suggest_name(name: str, known: Sequence[str]) -> str:
    """What may be meant by a name that is not known: one like it, or else some of those that there are."""
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", …" if len(known) > MAX_SUGGESTIONS else ""
    return f"there are: {', '.join(map(repr, known[:MAX_SUGGESTIONS])) or 'none yet'}{more}."
