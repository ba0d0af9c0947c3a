"""What a test changes in its process, and must not leave behind for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.authoring.registry import definitions


@contextmanager
def own_definitions(*, only: bool = False) -> Iterator[None]:
    """Workflows are known by name, and tests like to name theirs alike: what is defined meanwhile is forgotten again.

    Args:
        only: until then, as if the process knew nothing else.
    """
    before = dict(definitions)
    if only:
        definitions.clear()
    try:
        yield
    finally:
        definitions.clear()
        definitions.update(before)
