"""A model provider on this machine: it speaks OpenAI's, Anthropic's, and Gemini's protocols, and answers by a script.

It counts the requests. What it answers depends on the request alone, so that a client that was killed and asks again
gets the same answer, down to the ids. A script is plain data::

    {"weather": [
        {"text": "Let me look.", "calls": [{"tool": "look", "arguments": {"city": "Oslo"}}]},
        {"text": "It said: {results}", "usage": {"input": 120, "output": 30, "cached": 100},
         "faults": [{"kind": "rate_limit", "retry_after": 7}, {"kind": "server_error", "times": 2}]}
    ]}

A request's script is the one that its instructions name (``... script:weather ...``), or else what the user said first,
or else the one with the model's name; a script ``weather@gpt-4o`` is for that model only. The turn is the number of
answers in the conversation so far, with those that a summary stands for. A request for a summary is answered by the
script ``weather~summary``, whose texts count themselves: ``summary:1 ...``. A turn has:

- ``text``, in which ``{task}`` is what the user said first and ``{results}`` the results of the last calls;
- ``calls``, each a ``tool`` with its ``arguments``: an object, or a string for what is not JSON (not with Anthropic);
- ``answer``: any JSON, handed in by the output tool if the request offers it, and as text if not;
- ``finish``: ``length`` or ``content_filter``, if the answer was cut off by that; ``refusal``: what the model says in
  place of an answer;
- ``usage`` in tokens, ``cached`` ones being part of ``input``; a guess from the length, if it is not given;
- ``delay``, seconds before the answer;
- ``hold``, ``{"touch": F, "until": G}``: makes the file F and does not answer before there is a file G, or with
  ``"after": N`` not more than N events of a stream;
- ``faults``: what happens instead the first times that this very request is seen, each ``times`` times (1, or ``null``:
  always), and if it has more than ``over`` tokens. ``kind`` is one of ``STATUS`` (``words`` instead of the provider's
  usual ones, ``retry_after`` seconds), ``stall`` (``seconds`` of silence before the answer), ``cut`` (the connection
  breaks in the middle of the answer), ``malformed`` (half of the JSON), ``broken`` (the
  middle of a stream says that there is an error; else ``cut``), ``unfinished`` (a stream ends in the middle, in good
  order; else the whole answer) or ``html`` (a page with status 200).

Each request is written to the ledger when it comes, and again when it has been answered, so that a test can count from
outside (``read_calls``), whoever has died meanwhile.

It runs in a thread (``with ProviderServer(scripts, ledger) as server``) or in a process of its own
(``with server_process(folder, scripts) as server``), which reads its script anew for every request.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from provider_protocols import OUTPUT_TOOL, Answer, Anthropic, Conversation, Refused, ToolCall, find_protocol

KEY = "sk-scripted-0123456789abcdef"
"""The key that clients of the tests present. It must never be seen anywhere else."""
STATUS = {
    "rate_limit": 429,
    "quota": 429,
    "server_error": 500,
    "overloaded": 503,
    "unauthorized": 401,
    "bad_request": 400,
    "not_found": 404,
    "too_long": 400,
}
"""The faults that are answers with a status, as OpenAI numbers them."""
ANTHROPIC_STATUS = STATUS | {"quota": 400, "overloaded": 529}
WORDS = {
    "rate_limit": "Rate limit reached for requests per minute. Please try again later.",
    "quota": "You exceeded your current quota, please check your plan and billing details.",
    "server_error": "The server had an error while processing your request. Sorry about that!",
    "overloaded": "The engine is currently overloaded, please try again later.",
    "unauthorized": "Incorrect API key provided: sk-scr****cdef.",
    "bad_request": "Invalid value for 'temperature': expected a number between 0 and 2.",
    "not_found": "The model does not exist or you do not have access to it.",
    "too_long": "This model's maximum context length is 128000 tokens, your messages resulted in 200123 tokens.",
}
ANTHROPIC_WORDS = WORDS | {
    "quota": "Your credit balance is too low to access the Anthropic API.",
    "overloaded": "Overloaded",
    "unauthorized": "invalid x-api-key",
    "too_long": "prompt is too long: 200123 tokens > 200000 maximum",
}
PAGE = b"<!doctype html><html><body><h1>Please log in to the guest network</h1></body></html>"
GLANCE = 0.005
"""Seconds between two looks at whether a wait is over."""

Script = Mapping[str, Sequence[Mapping[str, Any]]]


class Call(NamedTuple):
    """One request, as the ledger has it."""

    protocol: str
    model: str
    agent: str
    turn: int
    digest: str
    """Of the conversation: a repeated request has the same."""
    nth: int
    """How many times this very request has been seen, from 1."""
    stream: bool
    user_agent: str
    at: float
    answered: Mapping[str, Any] | None
    """``text`` and ``calls``, or ``fault`` with ``status`` and ``words``. ``None``: it is still being answered."""
    gone: bool
    """The client went away before it had the whole answer."""


def read_calls(ledger: Path) -> list[Call]:
    """All requests so far, in the order in which they came."""
    asked: dict[int, dict[str, Any]] = {}
    for line in ledger.read_text().splitlines(keepends=True) if ledger.exists() else ():
        if line.endswith("\n"):
            entry = json.loads(line)
            asked.setdefault(entry.pop("id"), {"answered": None, "gone": False}).update(entry)
    return [Call(**entry) for entry in asked.values()]


def count_calls(ledger: Path) -> Counter[tuple[str, int]]:
    """How many requests there were for each turn of each agent."""
    return Counter((call.agent, call.turn) for call in read_calls(ledger))


@dataclass(frozen=True)
class Address:
    """Where a server is, for those who call it."""

    port: int
    ledger: Path

    @property
    def url(self) -> str:
        """Anthropic's base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """OpenAI's base URL."""
        return f"{self.url}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What makes names such as ``openai:gpt-4o`` mean this server."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": self.url,
            "GOOGLE_API_KEY": KEY,
        }

    @property
    def calls(self) -> list[Call]:
        """All requests so far."""
        return read_calls(self.ledger)


class ProviderServer(ThreadingHTTPServer):
    """The server, in threads of this process."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, scripts: Script | Path, ledger: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.scripts = scripts
        """May be changed at any time; that of a path is read anew for every request."""
        self.address = Address(self.server_address[1], ledger)
        self.stopping = threading.Event()
        self.serving = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True, name="provider")
        self._lock = threading.Lock()
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._numbers = itertools.count()
        self._connections: set[socket.socket] = set()
        self.bodies: list[Any] = []
        """What was asked, as it came in."""

    def script(self) -> Script:
        """The scripts as they are now."""
        return json.loads(self.scripts.read_text()) if isinstance(self.scripts, Path) else self.scripts

    def number(self, request: tuple[str, str, str]) -> tuple[int, int]:
        """Give a request its number, and tell how many times it has been seen."""
        with self._lock:
            self._seen[request] += 1
            return next(self._numbers), self._seen[request]

    def note(self, **entry: Any) -> None:
        """Write to the ledger."""
        descriptor = os.open(self.address.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{json.dumps(entry)}\n".encode())
        finally:
            os.close(descriptor)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (ConnectionError, _Gone)):  # a client that is killed is none of our errors
            super().handle_error(request, client_address)

    def __enter__(self) -> ProviderServer:
        self.serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.shutdown()
        self.serving.join()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Gone(Exception):
    """The client went away, or the server is to stop."""


class _Handler(BaseHTTPRequestHandler):
    server: ProviderServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    number: int | None = None
    """The request's number in the ledger; ``None``: it is not understood well enough to be there."""
    answered: dict[str, Any]

    def log_message(self, *_: object) -> None:
        """Nothing: the ledger has it."""

    def do_POST(self) -> None:
        self.number, self.answered = None, {}  # a connection has many requests
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client died while it sent it
            return
        found = find_protocol(self.path.partition("?")[0])
        if found is None:
            self._send(404, b'{"error": {"message": "There is nothing at this address."}}')
            return
        protocol, said_by_path = found
        self.protocol = protocol
        try:
            self.server.bodies.append(json.loads(body) | said_by_path)
            self._converse(protocol.read(self.server.bodies[-1]))
        except Refused as error:
            self._refuse(error.status, error.kind, str(error))

    def _converse(self, conversation: Conversation) -> None:
        scripts = self.server.script()
        agent = _agent_of(conversation, scripts)
        digest = conversation.digest
        number, nth = self.server.number((self.protocol.name, conversation.model, digest))
        self.server.note(
            id=number,
            protocol=self.protocol.name,
            model=conversation.model,
            agent=agent,
            turn=conversation.turn,
            digest=digest,
            nth=nth,
            stream=conversation.stream,
            user_agent=self.headers.get("user-agent", ""),
            at=time.time(),
        )
        self.number, self.answered = number, {}
        try:
            try:
                self._check(conversation)
                self._answer(conversation, _turn_of(conversation, agent, scripts), nth)
            except Refused as error:
                self._refuse(error.status, error.kind, str(error))
        except (_Gone, ConnectionError):
            self.close_connection = True
            self._settle(gone=True)

    def _settle(self, gone: bool = False) -> None:
        """Note an answer just before its end is sent, so that a client that has it finds it in the ledger."""
        if self.number is not None:
            self.server.note(id=self.number, answered=self.answered, gone=gone)

    def _check(self, conversation: Conversation) -> None:
        # Anthropic's key goes by a header of its own in its documentation, and as a bearer in its SDK.
        own = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        key = own or self.headers.get("authorization", "").removeprefix("Bearer ")
        if key != KEY:
            raise Refused("The key is not the one that this provider gave out.", 401, "unauthorized")
        conversation.check()

    def _answer(self, conversation: Conversation, turn: Mapping[str, Any], nth: int) -> None:
        fault = _fault_of(turn, nth, conversation.size)
        kind = fault.get("kind", "")
        self.answered = {"fault": kind} if kind else {}
        hold = turn.get("hold")
        if hold and not ("after" in hold and conversation.stream):
            self._hold(hold)
        self._wait(float(turn.get("delay", 0.0)))
        if kind in STATUS:
            self._fail(kind, fault)
            return
        if kind == "html":
            self._send(200, PAGE, "text/html")
            return
        if kind == "stall":
            self._wait(float(fault["seconds"]))
        answer = _answer_of(conversation, turn)
        self.answered |= {"text": answer.text, "calls": [call.name for call in answer.calls]}
        if conversation.stream:
            self._stream(answer, conversation, kind, hold)
        else:
            self._whole(json.dumps(self.protocol.body(answer)).encode(), kind)

    def _whole(self, body: bytes, kind: str) -> None:
        if kind in ("cut", "broken"):
            self._send(200, body[: len(body) // 2], length=len(body))
            self._hang_up()
        elif kind == "malformed":
            self._send(200, body[: len(body) // 2])
        else:
            self._send(200, body)

    def _stream(self, answer: Answer, conversation: Conversation, kind: str, hold: Mapping[str, Any] | None) -> None:
        events = [(name, json.dumps(data)) for name, data in self.protocol.events(answer, conversation)]
        if kind in ("cut", "malformed", "broken", "unfinished"):
            events = events[: len(events) // 2]
        if kind == "broken":
            self.answered = {"fault": kind}
            words = (ANTHROPIC_WORDS if self.protocol is Anthropic else WORDS)["overloaded"]
            events.append(("error", json.dumps(self.protocol.broken(words))))
        if kind == "malformed":
            name, data = events[-1]
            events[-1] = name, data[: len(data) // 2]
        parts = [f"{f'event: {name}' if name else ''}\ndata: {data}\n\n".lstrip().encode() for name, data in events]
        if kind not in ("cut", "unfinished"):
            parts[-1] += self.protocol.done
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
        chunks[-1] += b"" if kind == "cut" else b"0\r\n\r\n"
        self._open(200, "text/event-stream", {"transfer-encoding": "chunked"})
        for index, chunk in enumerate(chunks):
            if hold and hold.get("after") == index:
                self._hold(hold)
            if index == len(chunks) - 1:
                self._settle()
            self.wfile.write(chunk)
        if kind == "cut":
            self._hang_up()

    def _fail(self, kind: str, fault: Mapping[str, Any]) -> None:
        statuses, words = (STATUS, WORDS) if self.protocol is not Anthropic else (ANTHROPIC_STATUS, ANTHROPIC_WORDS)
        headers = {"retry-after": str(fault["retry_after"])} if "retry_after" in fault else {}
        self._refuse(statuses[kind], kind, fault.get("words", words[kind]), headers)

    def _refuse(self, status: int, kind: str, words: str, headers: Mapping[str, str] | None = None) -> None:
        self.answered = {"fault": kind, "status": status, "words": words}
        self._send(status, json.dumps(self.protocol.error(status, kind, words)).encode(), headers=headers)

    # The wire

    def _send(
        self,
        status: int,
        body: bytes,
        content: str = "application/json",
        length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._open(status, content, {"content-length": str(length or len(body)), **(headers or {})})
        self._settle()
        self.wfile.write(body)

    def _open(self, status: int, content: str, headers: Mapping[str, str]) -> None:
        self._check_client()
        self.send_response(status)
        for name, value in {"content-type": content, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _check_client(self) -> None:
        """Raise ``_Gone`` if the client has disconnected."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if self.server.stopping.is_set() or (readable and not self.connection.recv(1, socket.MSG_PEEK)):
            raise _Gone

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check_client()
            time.sleep(min(GLANCE, left))

    def _hold(self, hold: Mapping[str, Any]) -> None:
        Path(hold["touch"]).touch()
        while not Path(hold["until"]).exists():
            self._check_client()
            time.sleep(GLANCE)


def _agent_of(conversation: Conversation, scripts: Script) -> str:
    """The name of the script that answers."""
    for text in (conversation.system, conversation.task):
        if found := re.search(r"\bscript:([\w.-]*\w)", text):
            if conversation.wants_summary:
                return f"{found[1]}~summary"
            own = f"{found[1]}@{conversation.model}"
            return own if own in scripts else found[1]
    return conversation.model


def _turn_of(conversation: Conversation, agent: str, scripts: Script) -> Mapping[str, Any]:
    if agent not in scripts:
        raise Refused(f"There is no script {agent!r}, only {', '.join(map(repr, scripts)) or 'none at all'}.")
    if conversation.turn >= len(scripts[agent]):
        raise Refused(f"The script {agent!r} has {len(scripts[agent])} turns, and all of them have been answered.")
    return scripts[agent][conversation.turn]


def _fault_of(turn: Mapping[str, Any], nth: int, size: int) -> Mapping[str, Any]:
    """What goes wrong the nth time that this turn is asked for; nothing: ``{}``."""
    for fault in turn.get("faults", ()):
        if size <= fault.get("over", 0):
            continue
        times = fault.get("times", 1)
        if times is None or nth <= times:
            return fault
        nth -= times
    return {}


def _answer_of(conversation: Conversation, turn: Mapping[str, Any]) -> Answer:
    text = turn.get("text", "").replace("{task}", conversation.task).replace("{results}", conversation.results)
    wanted = [(call["tool"], call.get("arguments", {})) for call in turn.get("calls", ())]
    if "answer" in turn:
        if OUTPUT_TOOL in conversation.tools:
            wanted.append((OUTPUT_TOOL, turn["answer"]))
        else:
            text += json.dumps(turn["answer"])
    identity = f"{conversation.digest}{conversation.turn:02}"
    calls = [
        ToolCall(f"call_{identity}{at:02}", tool, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for at, (tool, arguments) in enumerate(wanted)
    ]
    usage = {
        "input": conversation.size,
        "output": (len(text) + sum(len(call.arguments) for call in calls)) // 4 + 1,
        "cached": 0,
    } | turn.get("usage", {})
    ended = turn.get("finish", ""), turn.get("refusal", "")
    return Answer(identity, conversation.model, text, calls, usage["input"], usage["output"], usage["cached"], *ended)


# A process of its own


@contextlib.contextmanager
def server_process(folder: Path, scripts: Script) -> Iterator[Address]:
    """A server in a process of its own. Its script is ``script.json`` in the folder (see ``write_script``)."""
    write_script(folder, scripts)
    port, ledger = folder / "provider.port", folder / "provider.ledger"
    command = [sys.executable, __file__, "--port-file", port, "--ledger", ledger, "--script", folder / "script.json"]
    with subprocess.Popen(command) as process:
        try:
            while not port.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"The provider's process ended with {process.returncode} before it served.")
                time.sleep(GLANCE)
            yield Address(int(port.read_text()), ledger)
        finally:
            process.terminate()


def write_script(folder: Path, scripts: Script) -> None:
    """Give a server in a process of its own another script."""
    new = folder / "script.json.new"
    new.write_text(json.dumps(scripts))
    new.replace(folder / "script.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted model provider.")
    parser.add_argument("--port-file", type=Path, required=True, help="where to write the port, once it serves")
    parser.add_argument("--ledger", type=Path, required=True, help="where requests are written")
    parser.add_argument("--script", type=Path, required=True, help="the scripts, as JSON")
    parser.add_argument("--port", type=int, default=0, help="the port to serve at; any, if none is told")
    chosen = parser.parse_args()
    parent = os.getppid()
    with ProviderServer(chosen.script, chosen.ledger, chosen.port) as server:
        new = chosen.port_file.with_suffix(".new")
        new.write_text(str(server.address.port))
        new.replace(chosen.port_file)
        while os.getppid() == parent:  # who started it may have been killed
            time.sleep(0.2)


if __name__ == "__main__":
    main()
