"""The workflows that this process knows, by name.

A workflow's name does not contain its module, so that a script (`__main__.etl`) and a worker that imports it
(`app.etl`) speak of the same workflow. The price is that a name must be unique in a program.
"""

from __future__ import annotations

from holdfast.authoring.functions import defined_at, place_of
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import DefinitionError

definitions: dict[str, WorkflowDefinition] = {}


def register(definition: WorkflowDefinition) -> None:
    """Make a workflow known. Defining the same function or class again (a reload, a notebook cell) replaces it."""
    known = definitions.get(definition.name)
    if known is not None and not _same_place(known, definition):
        raise DefinitionError(
            f"two workflows are named {definition.name!r}: {place_of(known.function)} and "
            f"{place_of(definition.function)}. "
            f"Runs are found by name: give one of them another with `name=...`."
        )
    definitions[definition.name] = definition


def _same_place(one: WorkflowDefinition, other: WorkflowDefinition) -> bool:
    a, b = defined_at(one.function), defined_at(other.function)
    if a is None or b is None:
        return one.function is other.function
    interactive = a.file.startswith("<") or "ipykernel" in a.file
    return interactive or (a.file == b.file and a.qualname == b.qualname)
