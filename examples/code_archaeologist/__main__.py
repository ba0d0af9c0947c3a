"""``python -m code_archaeologist``"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from offline import is_offline, make_parser

from . import __doc__ as what_it_does
from .agents import foreman
from .legacy import SAMPLE, SOURCE


def main() -> int:
    parser = make_parser(what_it_does)
    parser.add_argument("file", nargs="?", type=Path, default=Path("sales.py"))
    file: Path = parser.parse_args().file.resolve()
    if is_offline() and file.name != "sales.py":
        parser.error("the scripted models know sales.py only: set a key, or name a model with --model")
    old = _save_original(file)

    print(f"renews {file.name}", flush=True)
    # The id makes it one run for this file, however often the program is started.
    renewal = foreman.options(id=f"renew-{file.stem}")
    result = renewal.run_sync(f"Renew {file.name}, and document it in {file.stem}.md.", deps=file.parent)
    print(f"\n{result.output}\n\n{result.usage}, sub-agents included\nholdfast show {result.run_id}\n")
    return _compare_output(old, file)


def _save_original(file: Path) -> Path:
    """Save a copy of the original file."""
    old = file.with_suffix(".py.old")
    if not old.exists():
        if not file.exists():
            file.write_text(SOURCE)
        old.write_text(file.read_text())
    return old


def _compare_output(old: Path, new: Path) -> int:
    """Whether both programs print the same for the same data."""
    compile(new.read_text(), new.name, "exec")
    sample = new.with_name("sample.txt")
    sample.write_text(SAMPLE)
    for given in ([sample.name], []):
        was, now = (
            subprocess.run([sys.executable, path, *given], cwd=new.parent, capture_output=True, text=True, check=False)
            for path in (old, new)
        )
        if (was.returncode, was.stdout) != (now.returncode, now.stdout):
            print(f"{new.name} does not do the same as before:\n{was.stdout}---\n{now.stdout}{now.stderr}")
            return 1
    print(f"{new.name} compiles, and prints the same as {old.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
