"""The page about deployment: its commands are executed, and its excerpts are in the files that they are taken from."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from free_ports import free_port
from waits import wait_until_sync

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/deployment.md").read_text()
FENCES = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.M | re.S)
COMMANDS = [line for language, code in FENCES if language == "bash" for line in code.splitlines()]
FILES = {"dockerfile": ["Dockerfile"], "ini": ["holdfast-worker.service"]}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
NOT_HERE = ("docker", "kubectl", "systemctl", "export")
"""Commands of programs that the tests do without; only what they name is checked."""


def list_commands(program: str) -> list[list[str]]:
    return [words for words in map(shlex.split, COMMANDS) if words[0] == program]


@pytest.mark.parametrize(("language", "code"), [fence for fence in FENCES if fence[0] != "bash"])
def test_an_excerpt_is_in_its_file(language: str, code: str):
    names = FILES.get(language) or [path.name for path in DEPLOY.glob("*.yaml")]
    texts = [(DEPLOY / name).read_text() for name in names]
    if language == "ini":  # without the comments in between
        texts = [re.sub(r"^#.*\n", "", text, flags=re.M) for text in texts]
    assert any(code in text for text in texts)


def test_commands_for_other_programs_name_what_is_there():
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for _, command, *words in [words[1:] for words in list_commands("docker")]:
        assert command in ("run", "up")
        named = [word for word in words if re.fullmatch(r"(server|worker|postgres)(=\d+)?", word)]
        assert all(word.partition("=")[0] in COMPOSE for word in named)
    for words in list_commands("kubectl"):
        for kind, name in re.findall(r"(deployment)/(\S+)", shlex.join(words)):
            assert any((one["kind"].lower(), one["metadata"]["name"]) == (kind, name) for one in manifests)
        if "--filename" in words:
            assert (DEPLOY / words[words.index("--filename") + 1]).exists()
    assert [words[-1] for words in list_commands("systemctl")] == ["holdfast-worker.service"]
    ((_, variable),) = list_commands("export")
    assert f"${{{variable.partition('=')[0]}:?}}" in (DEPLOY / "compose.yaml").read_text()


def test_the_commands_of_holdfast_and_curl_work_together(tmp_path: Path):
    (tmp_path / "app.py").write_text((DEPLOY / "app.py").read_text())
    probes, http = str(free_port()), str(free_port())
    (worker,) = [words for words in list_commands("holdfast") if words[1] == "worker"]
    (serve,) = [words for words in list_commands("holdfast") if words[1] == "serve"]
    assert {words[0] for words in map(shlex.split, COMMANDS)} == {"holdfast", "curl", *NOT_HERE}
    with ExitStack() as stack:
        stack.enter_context(running(tmp_path, [word.replace("7180", probes) for word in worker]))
        stack.enter_context(running(tmp_path, [*serve, "--port", http]))
        wait_until_sync(lambda: is_ok(f"http://127.0.0.1:{probes}/readyz"))
        wait_until_sync(lambda: is_ok(f"http://127.0.0.1:{http}/v1/health"))
        answers = [run(tmp_path, [word.replace("7180", probes) for word in words]) for words in list_commands("curl")]
        assert answers == [{"ok": True}, {"ready": True, "reason": None}]
        for words in list_commands("holdfast"):
            if words[1] not in ("worker", "serve"):
                assert run(tmp_path, words) == []
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v1/overview") as response:
            assert json.load(response)["runs"]["pending"]["count"] == 0


def to_command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", *words[1:]] if words[0] == "holdfast" else words


def run(folder: Path, words: list[str]) -> object:
    done = subprocess.run(to_command(words), cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def running(folder: Path, words: list[str]) -> Iterator[None]:
    process = subprocess.Popen(to_command(words), cwd=folder, env={**os.environ}, stderr=subprocess.DEVNULL)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()  # its processes notice that
        process.wait()


def is_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False
