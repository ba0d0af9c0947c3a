"""What ``holdfast run`` adds to the start of a script: with no model call, and with one, which imports the engine.

Each script is started alternately with ``python`` and ``holdfast run``, and the differences of neighbors are
compared, because other load on the machine changes slowly. The model is a server on this machine that answers at once,
called with ``httpx2``, which both need to import; or it takes as long as a quick model, called with ``openai``::

    python -m benchmarks.frameworks.script_startup [ROUNDS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140},
    }
).encode()  # fmt: skip
SCRIPTS = {
    "no model call": "import httpx2; print('done')",
    "one model call": """
import httpx2, os
body = {"model": "gpt-4o", "messages": [{"role": "user", "content": os.environ["ROUND"]}]}
print(httpx2.post(os.environ["MODEL_URL"] + "/v1/chat/completions", json=body).json()["choices"][0])
""",
    "one call with openai, of a model that takes 500 ms": """
import openai, os
client = openai.OpenAI(base_url=os.environ["MODEL_URL"] + "/slow/v1", api_key="none")
client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": os.environ["ROUND"]}])
""",
}


class Model(BaseHTTPRequestHandler):
    """Answers requests at once, or slowly."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path.startswith("/slow"):
            time.sleep(0.5)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Cost(NamedTuple):
    """What one process took, in milliseconds."""

    elapsed: float
    cpu: float


def measure(command: list[str], environment: dict[str, str], folder: str) -> Cost:
    """Run a process until it has ended."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return Cost((time.perf_counter() - started) * 1000, (usage.ru_utime + usage.ru_stime) * 1000)


def describe(what: str, bare: list[float], added: list[float]) -> str:
    """The medians of some costs."""
    low, _, high = statistics.quantiles(added, n=4)
    return (
        f"  {what}: python {statistics.median(bare):.0f} ms; holdfast run adds {statistics.median(added):.0f} ms "
        f"(quartiles {low:.0f} to {high:.0f})"
    )


def main(rounds: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    for name, code in SCRIPTS.items():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "script.py").write_text(code)
            environment = {**os.environ, "MODEL_URL": f"http://127.0.0.1:{server.server_port}", "NO_PROXY": "*"}
            bare: list[Cost] = []
            durable: list[Cost] = []
            for number in range(rounds + 1):
                environment["ROUND"] = str(number)
                bare.append(measure([sys.executable, "script.py"], environment, folder))
                durable.append(measure([holdfast, "run", "script.py"], environment, folder))
            print(f"{name}, {rounds} rounds")
            for index, what in enumerate(Cost._fields):
                one, other = [cost[index] for cost in bare[1:]], [cost[index] for cost in durable[1:]]
                print(describe(what, one, [after - before for before, after in zip(one, other, strict=True)]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
