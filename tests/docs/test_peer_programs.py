"""The programs that are measured: the peers' packages are not installed here, so only Holdfast's is executed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.ledger import list_repeated, read_entries, wait_for_step
from benchmarks.peers.peer_benchmark import PROGRAMS_FOLDER, PeerProcess
from benchmarks.peers.peer_stores import SqliteStore
from benchmarks.peers.programs import peer_protocol


def test_the_program_of_holdfast_does_every_job(tmp_path: Path) -> None:
    [peer] = [peer for peer in PEERS if peer.key == "holdfast-sqlite"]
    path, ledger = tmp_path / "runs.db", tmp_path / "ledger"
    store = SqliteStore(f"sqlite:///{path}", path)
    first = PeerProcess(peer, store, tmp_path / "log")
    try:
        first.wait_until_ready()
        assert float(first.request("many 2 3")) > 0
        assert first.request(f"begin {ledger}") == "begun"
        assert wait_for_step(ledger, peer_protocol.HELD_STEP, timeout_s=30) is not None
    finally:
        first.kill()
    second = PeerProcess(peer, store, tmp_path / "log")
    try:
        assert wait_for_step(ledger, peer_protocol.STEP_COUNT, timeout_s=60) is not None
    finally:
        second.kill()
    assert list_repeated(read_entries(ledger)) == [peer_protocol.HELD_STEP]


@pytest.mark.parametrize("path", sorted(PROGRAMS_FOLDER.glob("*_peer.py")), ids=lambda path: path.stem)
def test_a_program_uses_the_protocol_as_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "peer_protocol"
    }
    assert "serve" in used
    assert used <= vars(peer_protocol).keys()
    local = {file.stem for file in PROGRAMS_FOLDER.glob("*.py")}
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported & local == {"peer_protocol"}
    [program] = [node for node in tree.body if isinstance(node, ast.ClassDef) and _has_method(node, "run_many")]
    for method in ("open", "start_run", "resume_run"):
        assert _has_method(program, method)


def _has_method(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(member, ast.AsyncFunctionDef) and member.name == name for member in node.body)
