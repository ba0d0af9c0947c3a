"""Errors in the definitions of workflows and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import DefinitionError


def get_definition_error(define: Callable[[], Any]) -> str:
    """The message of the error that a definition raises."""
    with pytest.raises(DefinitionError) as raised:
        define()
    return str(raised.value)
