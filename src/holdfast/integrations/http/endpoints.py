"""Which HTTP requests are model calls.

The path decides, because SDKs can be pointed at any base URL; then the body must look like the protocol (see
``Protocol.accepts``). The host only decides which provider's prices apply. This module is imported at the start of
every process that records, so it needs nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.integrations.http.protocol import ModelProtocol

_PROTOCOLS = (
    (r"/chat/completions", "openai_protocols:CHAT"),
    (r"/responses", "openai_protocols:RESPONSES"),
    (r"/v1/messages", "anthropic_protocol:MESSAGES"),
    (r":(?:stream)?[gG]enerateContent", "gemini_protocol:GENERATE"),
    (r":(?:embedContent|batchEmbedContents)", "gemini_protocol:EMBED"),
    (r":(?:raw|streamRaw)Predict", "anthropic_protocol:MESSAGES"),
    (r"/model/[^/]+/converse(?:-stream)?", "bedrock_protocols:CONVERSE"),
    (r"/model/[^/]+/invoke(?:-with-response-stream)?", "bedrock_protocols:INVOKE"),
    (r"/model/[^/]+/invoke(?:-with-response-stream)?", "plain_protocol:PLAIN"),
    (r"/api/(?:chat|generate)", "ollama_protocol:OLLAMA"),
    (r"/v2/chat", "cohere_protocol:CHAT"),
    (r"/completions|/v1/chat", "plain_protocol:PLAIN"),
    (r"/embeddings|/v[12]/embed|/api/embed", "plain_protocol:PLAIN"),
    (r"/rerank|/moderations|/images/generations|/audio/speech", "plain_protocol:PLAIN"),
)
"""The end of a path, and where the protocol is."""

_ANY_PATH = re.compile("(?:" + "|".join(path for path, _ in _PROTOCOLS) + ")/?$")
_PATHS = tuple((re.compile(f"(?:{path})/?$"), home) for path, home in _PROTOCOLS)

_PROVIDERS = (
    (r"api\.openai\.com", "openai"),
    (r".*\.azure\.com|.*\.azure-api\.net", "azure"),
    (r"api\.anthropic\.com", "anthropic"),
    (r".*\.googleapis\.com", "google"),
    (r"bedrock-runtime.*\.amazonaws\.com(?:\.cn)?", "aws"),
    (r"api\.mistral\.ai", "mistral"),
    (r"api\.groq\.com", "groq"),
    (r"api\.cohere\.(?:ai|com)", "cohere"),
    (r"(?:api\.)?openrouter\.ai", "openrouter"),
    (r"api\.together\.(?:xyz|ai)", "together"),
    (r"api\.fireworks\.ai", "fireworks"),
    (r"api\.deepseek\.com", "deepseek"),
    (r"api\.x\.ai", "x-ai"),
    (r"api\.cerebras\.ai", "cerebras"),
    (r"api\.perplexity\.ai", "perplexity"),
    (r"api\.moonshot\.(?:ai|cn)", "moonshotai"),
    (r"api\.voyageai\.com", "voyageai"),
    (r"router\.huggingface\.co", "huggingface"),
)
_HOSTS = tuple((re.compile(host), provider) for host, provider in _PROVIDERS)


class _Pattern(NamedTuple):
    """A pattern of other calls to record."""

    method: str
    """Empty: any."""
    url: re.Pattern[str]
    has_query: bool


class RequestFilter:
    """Which requests are recorded: model calls, and those that match a pattern."""

    def __init__(self) -> None:
        self._patterns: tuple[_Pattern, ...] = ()

    def set_patterns(self, patterns: Sequence[str]) -> None:
        """Record the calls that match one of these patterns, too."""
        self._patterns = tuple(_parse_pattern(pattern) for pattern in patterns)

    def may_match(self, method: str, url: str) -> bool:
        """Whether this request may have to be recorded; cheap, because every request of the process asks."""
        if method == "POST" and _ANY_PATH.search(get_path(url)) is not None:
            return True
        return bool(self._patterns) and self.has_pattern(method, url)

    def has_pattern(self, method: str, url: str) -> bool:
        """Whether a pattern matches this request."""
        url = url.partition("#")[0]
        base = url.partition("?")[0]
        return any(
            pattern.method in ("", method) and pattern.url.fullmatch(url if pattern.has_query else base) is not None
            for pattern in self._patterns
        )


def find_protocols(path: str) -> list[ModelProtocol]:
    """The protocols that use this path."""
    homes = [home for pattern, home in _PATHS if pattern.search(path) is not None]
    found: list[ModelProtocol] = []
    for home in homes:
        module, _, name = home.partition(":")
        found.append(getattr(import_module(f"holdfast.integrations.http.{module}"), name))
    return found


def find_provider(url: str) -> str | None:
    """The provider at this URL; ``None``: it is not known."""
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
    return next((provider for pattern, provider in _HOSTS if pattern.fullmatch(host) is not None), None)


def get_path(url: str) -> str:
    """The path of a URL."""
    rest = url.partition("://")[2].partition("?")[0].partition("#")[0]
    return rest[rest.find("/") :] if "/" in rest else "/"


def _parse_pattern(text: str) -> _Pattern:
    method, _, url = text.strip().rpartition(" ")
    if not re.match(r"https?://|\*", url) or (method and not method.strip().isalpha()):
        raise UsageError(
            f"{text!r} is not a pattern of HTTP calls: write a URL in which * stands for anything, and a method before "
            "it if only that is meant, as in 'GET https://api.example.com/prices/*'"
        )
    expression = ".*".join(re.escape(part) for part in url.split("*"))
    return _Pattern(method.strip().upper(), re.compile(expression, re.DOTALL), "?" in url)
