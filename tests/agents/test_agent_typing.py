"""An agent's output type, and its options, are known to type checkers: see ``typed_agents``."""

from __future__ import annotations

from pathlib import Path

from type_checks import find_type_errors


def test_pyright_knows_what_an_agent_returns(tmp_path: Path) -> None:
    assert find_type_errors(Path(__file__).with_name("typed_agents.py"), tmp_path) == []
