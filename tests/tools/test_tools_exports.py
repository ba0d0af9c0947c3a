"""The names of ``holdfast.tools``, each of which is loaded when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import holdfast.tools

PUBLIC = {"McpServer", "file_tools", "mcp_http", "mcp_stdio", "shell_tool"}


def test_the_names_are_these_and_can_be_loaded():
    assert set(holdfast.tools.__all__) == PUBLIC
    assert all(getattr(holdfast.tools, name) is not None for name in PUBLIC)
    assert set(dir(holdfast.tools)) > PUBLIC
    with pytest.raises(AttributeError, match=r"module 'holdfast\.tools' has no attribute 'fiel_tools'"):
        holdfast.tools.fiel_tools  # type: ignore[attr-defined]


@pytest.mark.parametrize("making", ["file_tools('.')", "shell_tool(allow=['ls'], cwd='.')"])
def test_making_tools_does_not_load_the_model_library(making: str):
    name = making.partition("(")[0]
    code = f"from holdfast.tools import {name}; {making}; import sys; print('pydantic_ai' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "False\n"
