"""The workflows that this process knows, by name.

A workflow's name does not contain its module, so that a script (`__main__.etl`) and a worker that imports it
(`app.etl`) speak of the same workflow. The price is that a name must be unique in a program.
"""

from __future__ import annotations

from holdfast.authoring.functions import place_of
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import DefinitionError

definitions: dict[str, WorkflowDefinition] = {}


def register(definition: WorkflowDefinition) -> None:
    """Make a workflow known. Defining the same function again (a reload, a notebook cell) replaces it."""
    known = definitions.get(definition.name)
    if known is not None and not _same_place(known, definition):
        raise DefinitionError(
            f"two workflows are named {definition.name!r}: {place_of(known.function)} and "
            f"{place_of(definition.function)}. "
            f"Runs are found by name: give one of them another with `@workflow(name=...)`."
        )
    definitions[definition.name] = definition


def _same_place(one: WorkflowDefinition, other: WorkflowDefinition) -> bool:
    a, b = one.function.__code__, other.function.__code__
    interactive = a.co_filename.startswith("<") or "ipykernel" in a.co_filename
    return interactive or (a.co_filename == b.co_filename and a.co_qualname == b.co_qualname)
