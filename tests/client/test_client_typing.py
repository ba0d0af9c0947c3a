"""Type checkers know the results of a client's methods: see ``typed_client``."""

from __future__ import annotations

from pathlib import Path

from type_checks import find_type_errors


def test_pyright_knows_what_a_client_returns(tmp_path: Path) -> None:
    assert find_type_errors(Path(__file__).with_name("typed_client.py"), tmp_path) == []
