"""Keeps the records of the golden answers, as this version writes them.

python tests/golden/record_replies.py                          # for a new release
python tests/golden/record_replies.py --overwrite-unreleased   # only while that version is not released yet
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from golden_replies import REPLIES

import holdfast
from holdfast.agents.models import reply

FOLDER = Path(__file__).parent / "replies"
"""Two levels deep: what lies one level below `golden` is a journal."""
CURRENT = FOLDER / ".".join(holdfast.__version__.split(".")[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the golden answers of this version.")
    parser.add_argument("--overwrite-unreleased", action="store_true", help="record again what is not released yet")
    if CURRENT.exists() and not parser.parse_args().overwrite_unreleased:
        sys.exit(f"{CURRENT} is there already; if this version is not released yet, pass --overwrite-unreleased.")
    shutil.rmtree(CURRENT, ignore_errors=True)
    CURRENT.mkdir(parents=True)
    for name, one in REPLIES.items():
        (CURRENT / f"{name}.json").write_bytes(reply.REPLY_CODEC.encode(one, name))


if __name__ == "__main__":
    main()
