"""Type checkers know the results of a client's methods: see ``typed_client``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path


def test_pyright_knows_what_a_client_returns(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("typed_client.py"), tmp_path)
    config = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--project", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in report["generalDiagnostics"]] == []
