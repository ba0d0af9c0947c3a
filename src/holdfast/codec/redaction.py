"""Removes credentials from texts that are recorded, logged, or shown.

Providers quote the key that they received, and exceptions quote URLs and headers. Everything that looks like a key is
replaced, and so is the value of every environment variable that holds one.
"""

from __future__ import annotations

import os
import re

_SECRET_PATTERN = re.compile(
    # What is assigned to a name that means a key, unless it only stands for one: `api_key=...`, `your-key`, `<key>`.
    r"(?P<name>\b(?:x-)?api[-_]key[\"']?\s*[:=]\s*[\"']?|[?&](?:key|api_key|token)=)"
    r"(?!\.\.\.|<|your|none\b|null\b)[^\s\"'`,;&})]+"
    # A bearer token: with a digit or a dot in it, or long. "Bearer auth" and "Bearer YOUR_KEY" are words.
    r"|(?P<bearer>\bBearer\s+)(?=[\w.+/=~*-]{0,200}(?:[\d*]|\w\.\w)|[\w.+/=~*-]{16})[\w.+/=~*-]+"
    # The password in a URL.
    r"|(?P<user>\b[a-z][a-z0-9+.-]{0,30}://[^\s/?#:@\"'`]{0,200}:)[^\s/?#@\"'`]+(?=@)"
    # By the beginnings that providers give them. `XAI_API_KEY` is the name of a variable.
    r"|\b(?:sk|pk|rk|gsk|xai|hf|r8|nvapi|fw|csk|pplx|tgp)[-_](?:(?=[\w*.-]{0,200}[\d*])[\w*.-]{6,}|[a-z*.-]{20,})"
    r"|\bAIza[\w*-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
    re.IGNORECASE,
)
_SECRET_VARIABLE_PATTERN = re.compile(r"(_|^)(API_?KEY|TOKEN|SECRET|SECRET_ACCESS_KEY|PASSWORD)$")


def redact_secrets(text: str) -> str:
    """The text with ``[key]`` in place of everything that looks like a key."""
    text = _SECRET_PATTERN.sub(lambda found: f"{found['name'] or found['bearer'] or found['user'] or ''}[key]", text)
    for name, value in os.environ.items():
        if len(value) >= 8 and value in text and _SECRET_VARIABLE_PATTERN.search(name):
            text = text.replace(value, "[key]")
    return text
