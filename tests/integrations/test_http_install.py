"""Installing the recording of HTTP calls: cheap, and only for libraries that the program imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import UsageError
from holdfast.integrations.http.endpoints import RequestFilter, find_protocols, find_provider
from holdfast.integrations.http.exchange import Request

MAX_OWN_MODULES = 8
"""The packages above the module, errors, and what they need."""


def run_python(code: str, folder: Path) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True)
    return json.loads(done.stdout)


def test_installing_imports_no_http_library_and_few_modules(tmp_path: Path):
    code = """
import json, re, sys, importlib, importlib.machinery, collections.abc, types, typing, pathlib
before = set(sys.modules)
from holdfast.integrations.http import install
install(["GET https://api.example.com/*"])
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    modules = run_python(code, tmp_path)
    assert not {"httpx", "httpx2", "aiohttp", "urllib3", "requests", "ssl", "asyncio", "pydantic_core"} & set(modules)
    own = [name for name in modules if name.startswith("holdfast")]
    assert len(own) <= MAX_OWN_MODULES, own


def test_a_library_is_patched_when_it_is_imported_and_if_it_was(tmp_path: Path):
    for name, loaded in ((name, loaded) for name in ("sample", "sample.part") for loaded in (False, True)):
        folder = tmp_path / f"{name}-{loaded}"
        (folder / "sample").mkdir(parents=True)
        (folder / "sample" / "__init__.py").write_text("value = 1\n")
        (folder / "sample" / "part.py").write_text("value = 2\n")
        (folder / "patching.py").write_text("def patch(module, request_filter):\n    module.value += 10\n")
        code = f"""
import json, sys
sys.path.insert(0, {str(folder)!r})
from holdfast.integrations.http.endpoints import RequestFilter
from holdfast.integrations.http.import_hook import patch_when_imported
{f"import {name}" if loaded else ""}
patch_when_imported({name!r}, "patching", RequestFilter())
patch_when_imported({name!r}, "patching", RequestFilter())
import {name}
module = sys.modules[{name!r}]
print(json.dumps([module.value, type(module.__loader__).__name__, "exec_module" in vars(module.__loader__)]))
"""
        expected = 11 if name == "sample" else 12
        assert run_python(code, folder) == [expected, "SourceFileLoader", False]


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("POST", "https://api.openai.com/v1/chat/completions", True),
        ("POST", "http://localhost:4000/responses", True),
        ("POST", "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=1", True),
        ("POST", "https://api.anthropic.com/v1/messages?beta=true", True),
        ("POST", "https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent?alt=sse", True),
        ("POST", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/a.b-v1%3A0/converse", True),
        ("POST", "http://localhost:11434/api/chat", True),
        ("GET", "https://api.openai.com/v1/responses/resp_1", False),
        ("POST", "https://api.anthropic.com/v1/messages/count_tokens", False),
        ("POST", "https://example.com/search?next=/chat/completions", False),
        ("GET", "https://api.example.com/prices/oslo?day=1", True),
        ("POST", "https://api.example.com/prices/oslo", False),
        ("PUT", "https://api.example.com/any?page=2", True),
        ("PUT", "https://api.example.com/any?page=3", False),
    ],
)
def test_which_requests_may_be_recorded(method: str, url: str, expected: bool):
    request_filter = RequestFilter()
    request_filter.set_patterns(["get https://api.example.com/prices/*", "https://api.example.com/any?page=2"])
    assert request_filter.may_match(method, url) is expected


@pytest.mark.parametrize("pattern", ["api.example.com/*", "GET", "two words https://x/*", ""])
def test_an_invalid_pattern_is_refused(pattern: str):
    with pytest.raises(UsageError, match=r"is not a pattern of HTTP calls: write a URL"):
        RequestFilter().set_patterns([pattern])


def test_the_host_says_whose_prices_apply():
    assert find_provider("https://api.groq.com/openai/v1/chat/completions") == "groq"
    assert find_provider("https://user:key@API.openai.com:443/v1/responses") == "openai"
    assert find_provider("https://europe-west1-aiplatform.googleapis.com/v1/x:generateContent") == "google"
    assert find_provider("https://evil.example/api.openai.com/v1") is None
    assert [type(one).__name__ for one in find_protocols("/v1/messages")] == ["Messages"]


def test_keys_are_not_a_part_of_a_recorded_url():
    url = "https://user:pw@x.example/a?key=K&api_key=K&access_token=K&X-Amz-Signature=K&page_token=2&q=keys#part"
    assert Request("GET", url, b"").public_url == "https://x.example/a?page_token=2&q=keys"
