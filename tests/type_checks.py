"""Checks with pyright that type checkers know the types of the public API."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path


def find_type_errors(file: Path, folder: Path) -> list[str]:
    """The errors of pyright, in strict mode, for a copy of this file in an empty folder."""
    shutil.copy(file, folder)
    config = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": True}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--project", str(folder), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [f"{error['range']['start']['line'] + 1}: {error['message']}" for error in report["generalDiagnostics"]]
