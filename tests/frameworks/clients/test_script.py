"""``holdfast run``: a script that knows nothing of Holdfast."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from provider_server import ProviderServer

PROJECT = Path(__file__).parents[3]
SCRIPT = """
import os, signal
import openai

client = openai.OpenAI()
texts = []
for number in range(3):
    answer = client.chat.completions.create(
        model="gpt-4o", messages=[{"role": "user", "content": f"script:s{number} Hello"}], stream=number == 1
    )
    if number == 1:
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices))
    else:
        texts.append(answer.choices[0].message.content)
    if number == 1 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
print(texts)
"""


def test_a_killed_script_repeats_no_model_call(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    scripts = {f"s{number}": [{"text": f"answer {number}"}] for number in range(3)}
    with ProviderServer(scripts, tmp_path / "ledger") as provider:
        environment = {
            **os.environ,
            **provider.address.environment,
            "HOLDFAST_URL": f"sqlite:///{tmp_path}/runs.db",
            "PYTHONPATH": str(PROJECT / "src"),
        }
        command = [sys.executable, "-m", "holdfast.cli", "run", "--id", "demo", "script.py"]
        first, second = (
            subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
            for _ in range(2)
        )
        assert first.returncode == -signal.SIGKILL, first.stderr
        assert second.stdout == "['answer 0', 'answer 1', 'answer 2']\n", second.stderr
        assert "2 model calls answered from the record" in second.stderr
        assert len(provider.address.calls) == 3
