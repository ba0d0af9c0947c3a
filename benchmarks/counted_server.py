"""A program: the `holdfast` command, with SQL statements counted: ``python counted_server.py COUNTS serve ...``.

It imports nothing of these benchmarks, so that it can run the code of another worktree. A thread writes the counts to
the file: the number of statements, and the number of transactions that wrote something or could have.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any

WRITE_INTERVAL_S = 0.1


class Counts:
    statement_count = 0
    transaction_count = 0

    def count(self, statement: str) -> None:
        self.statement_count += 1
        if statement.startswith("COMMIT"):
            self.transaction_count += 1

    def write_for_ever(self, file: Path) -> None:
        temporary = file.with_suffix(".new")
        while True:
            temporary.write_text(json.dumps([self.statement_count, self.transaction_count]))
            os.replace(temporary, file)
            time.sleep(WRITE_INTERVAL_S)


def main() -> None:
    counts, connect = Counts(), sqlite3.connect

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(counts.count)
        return connection

    sqlite3.connect = connect_counted
    threading.Thread(target=counts.write_for_ever, args=[Path(sys.argv[1])], daemon=True).start()
    sys.argv = ["holdfast", *sys.argv[2:]]
    from holdfast.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
