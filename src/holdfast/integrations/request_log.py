"""The requests of a program's model calls, recorded for people: for the conversation, and to show what has changed.

A conversation grows by a few messages from call to call, and each call sends all of it. So a call records only what it
adds to an earlier call of the run: its *base*, of which it keeps the first messages. Requests are recorded in the
details of ``CALL`` records (see ``core.program_calls``)::

    {"model": "openai:gpt-4o", "base": 3, "kept": 4, "added": [{"role": "user", "content": "..."}], "settings": {...}}

``settings`` is left out if they are those of the base. Long texts are shortened, except in what identifies the call.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import to_json

from holdfast.codec import compute_content_digest
from holdfast.codec.canonical import to_canonical_bytes
from holdfast.codec.formatting import truncate
from holdfast.core.program_calls import LoggedCall
from holdfast.engine.program_run import CallContent

if TYPE_CHECKING:
    from holdfast.engine.program_run import ProgramRun

MAX_TEXT_LENGTH = 20_000
"""Maximum number of characters of a recorded text."""
MAX_DIFF_LINES = 40

_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_encode_details = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode

Message = Mapping[str, Any]
FindCall = Callable[[int], LoggedCall | None]


class _KnownRequest(NamedTuple):
    position: int
    settings_digest: str


class _Prefix:
    """The first messages of a conversation.

    Each call sends the whole conversation, so the messages that were sent before are only looked up.
    """

    __slots__ = ("count", "digest", "longer", "request")

    def __init__(self, count: int, digest: bytes) -> None:
        self.count = count
        self.digest = digest
        """A digest of all of them."""
        self.request: _KnownRequest | None = None
        """The first request that has sent just these messages."""
        self.longer: dict[bytes, _Prefix] = {}
        """These messages and one more, by a digest of that one: of its canonical bytes, and of each other form."""

    def extend(self, message: Message) -> _Prefix:
        """These messages and one more."""
        try:
            key = _digest(to_json(message))  # quick, but the order of its keys counts
        except ValueError:
            key = b""
        found = self.longer.get(key)
        if found is None:
            canonical = _digest(_to_bytes(message))
            new = _Prefix(self.count + 1, _digest(self.digest + canonical))
            found = self.longer.setdefault(canonical, new)  # another thread may have added it
            if key:
                self.longer[key] = found
        return found


class _Conversation(NamedTuple):
    """The messages of a request."""

    data: bytes
    """Their JSON, without the bracket at the end."""
    prefixes: Sequence[_Prefix]
    """For each message, the conversation up to it."""

    def begins(self, data: bytes) -> bool:
        """Whether these messages are the first ones of the conversation with this JSON."""
        return data.startswith(self.data) and data[len(self.data) : len(self.data) + 1] in (b"", b",")


class MadeRequest(NamedTuple):
    """A request that a program makes."""

    model: str
    messages: Sequence[Message]
    settings: Mapping[str, Any]
    settings_digest: str
    prefixes: Sequence[_Prefix]
    """For each message, the conversation up to it."""


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _to_bytes(message: Message) -> bytes:
    """A message as bytes that are equal for equal messages."""
    try:
        return _encode_sorted(message).encode()
    except (TypeError, ValueError):
        return to_canonical_bytes(message)


def _compute_settings_digest(model: str, settings: Mapping[str, Any]) -> str:
    """A digest of everything but the messages."""
    try:
        data = _encode_sorted([model, settings]).encode()
    except (TypeError, ValueError):
        return compute_content_digest(model, settings)
    return hashlib.blake2b(data, digest_size=12).hexdigest()


class RequestLog:
    """The requests that a program has made in this process."""

    def __init__(self) -> None:
        self._nothing = _Prefix(0, b"")
        self._settings_digests: dict[bytes, str] = {}
        """By digests of their JSON with the keys in any order: each call sends the schemas of all tools."""
        self._latest: dict[str, _Conversation] = {}
        """The conversation of the latest request, by the settings: most requests continue it."""

    def make_content(self, model: str, messages: Sequence[Message], settings: Mapping[str, Any]) -> CallContent:
        """The content of the call that makes this request."""
        settings_digest = self._get_settings_digest(model, settings)
        prefixes = self._find_prefixes(messages, settings_digest)
        digest = compute_content_digest(settings_digest, (prefixes[-1] if prefixes else self._nothing).digest.hex())
        request = MadeRequest(model, messages, settings, settings_digest, prefixes)
        return CallContent(digest, partial(self._describe, request), partial(explain_change, request))

    def _get_settings_digest(self, model: str, settings: Mapping[str, Any]) -> str:
        try:
            key = _digest(to_json([model, settings]))
        except ValueError:
            return _compute_settings_digest(model, settings)
        found = self._settings_digests.get(key)
        if found is None:
            found = self._settings_digests[key] = _compute_settings_digest(model, settings)
        return found

    def _find_prefixes(self, messages: Sequence[Message], settings_digest: str) -> Sequence[_Prefix]:
        try:
            data = to_json(messages)[:-1]
        except ValueError:
            data = b""
        latest = self._latest.get(settings_digest)
        prefixes = [*latest.prefixes] if data and latest is not None and latest.begins(data) else []
        prefix = prefixes[-1] if prefixes else self._nothing
        for message in messages[len(prefixes) :]:
            prefix = prefix.extend(message)
            prefixes.append(prefix)
        if data:
            self._latest[settings_digest] = _Conversation(data, prefixes)
        return prefixes

    def _describe(self, request: MadeRequest, position: int) -> str:
        """The request of the call at this position, for its record; called on the engine's event loop."""
        details: dict[str, Any] = {"model": request.model}
        kept, base = 0, None
        for prefix in reversed(request.prefixes):
            if prefix.request is not None and prefix.request.position != position:
                kept, base = prefix.count, prefix.request
                details |= {"base": base.position, "kept": kept}
                break
        details["added"] = [_shorten(message) for message in request.messages[kept:]]
        if base is None or base.settings_digest != request.settings_digest:
            details["settings"] = _shorten(request.settings)
        if request.prefixes and request.prefixes[-1].request is None:
            request.prefixes[-1].request = _KnownRequest(position, request.settings_digest)
        return _encode_details(details)


def get_request_log(program: ProgramRun) -> RequestLog:
    """The log of this program."""
    return cast(RequestLog, program.extras.setdefault("requests", RequestLog()))


def _shorten(value: Any) -> Any:
    """The same data with shorter texts."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_LENGTH else truncate(value, MAX_TEXT_LENGTH)
    if isinstance(value, Mapping):
        return {str(key): _shorten(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_shorten(item) for item in cast("Sequence[Any]", value)]
    return value


# What has changed


def explain_change(request: MadeRequest, recorded: LoggedCall, find_call: FindCall) -> str:
    """The differences between the recorded request and the one that the program makes now."""
    details = _parse(recorded)
    if details is None or "added" not in details:
        return ""
    before = _format_request(details["model"], _read_settings(details, find_call), _read_messages(details, find_call))
    now = _format_request(request.model, _shorten(request.settings), [_shorten(one) for one in request.messages])
    lines = list(difflib.unified_diff(before, now, "recorded", "now", lineterm="", n=2))
    if len(lines) > MAX_DIFF_LINES:
        lines = [*lines[:MAX_DIFF_LINES], f"... {len(lines) - MAX_DIFF_LINES} more lines"]
    return "\n".join(f"  {line}" for line in lines)


def _parse(call: LoggedCall | None) -> dict[str, Any] | None:
    if call is None or not call.identity.details:
        return None
    try:
        return json.loads(call.identity.details)
    except ValueError:
        return None


def _read_messages(details: Mapping[str, Any], find_call: FindCall) -> list[Any]:
    """All messages of a recorded request."""
    added: list[list[Any]] = []
    kept: int | None = None
    current: Mapping[str, Any] | None = details
    while current is not None:
        added.append(current["added"] if kept is None else current["added"][: max(0, kept - current.get("kept", 0))])
        kept = current.get("kept", 0) if kept is None else min(kept, current.get("kept", 0))
        current = _parse(find_call(current["base"])) if "base" in current else None
    return [message for part in reversed(added) for message in part]


def _read_settings(details: Mapping[str, Any], find_call: FindCall) -> Any:
    current: Mapping[str, Any] | None = details
    while current is not None and "settings" not in current:
        current = _parse(find_call(current["base"])) if "base" in current else None
    return {} if current is None else current["settings"]


def _format_request(model: str, settings: Any, messages: Sequence[Any]) -> list[str]:
    lines = [f"model: {model}"]
    lines += json.dumps(settings, ensure_ascii=False, indent=1, sort_keys=True).splitlines()
    for message in messages:
        lines.append("--- message")
        for name, value in sorted(cast("dict[str, Any]", message).items()):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
            first, *rest = text.splitlines() or [""]
            lines += [f"{name}: {first}", *(f"  {line}" for line in rest)]
    return lines
