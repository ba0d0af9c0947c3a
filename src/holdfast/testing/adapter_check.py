"""``check_adapter``: what an adapter for a framework must do, checked with a model and tools of the check's own.

The author of an adapter writes one function: a small agent in the framework, with the adapter, whose model is a
``ScriptedChat``. The check runs it as a program in a ``Runner``, and outside of programs, and raises ``AdapterError``
when a promise is broken:

- Outside of a run, the agent works, and nothing is recorded.
- In a program, each model call and each tool call is one recorded step, with usage and cost, and it is made in this
  step. The output is the same.
- The conversation can be read from the journal.
- After a crash at any point, no recorded model call or tool call is made again, and the output is the same.
- A ``once`` tool whose outcome is unknown is not executed again, and the model is told so.
- A tool that fails has the same consequences as without the adapter.
- A program that sends something else when it runs again is stopped, with a readable difference.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn

from holdfast.authoring.program import program
from holdfast.authoring.registry import definitions
from holdfast.authoring.workflow import Workflow
from holdfast.core.execution import get_current_execution
from holdfast.engine.step_context import find_step_executor
from holdfast.errors import NonDeterminismError
from holdfast.reports.conversation_reader import read_conversation
from holdfast.reports.recorded_reply import MODEL_CALL_STEP
from holdfast.testing.crash_everywhere import CrashReport
from holdfast.testing.results import RunResult
from holdfast.testing.runner import Runner

INPUT_TOKENS, OUTPUT_TOKENS = 100, 10
"""What each answer of the model has used."""
UNKNOWN_CITY = "Atlantis"
"""A city for which the tool ``look_up`` fails."""


class AdapterError(AssertionError):
    """An adapter breaks a promise."""


class ScriptedToolCall(NamedTuple):
    """A tool call in the model's answer."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ScriptedAnswer:
    """An answer of the model. It has used ``input_tokens`` and ``output_tokens``."""

    text: str
    tool_calls: Sequence[ScriptedToolCall] = ()
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS


@dataclass
class ScriptedChat:
    """The model. It calls ``look_up`` twice at once, then ``charge``, and then returns what the tools have returned."""

    cities: Sequence[str] = ("Oslo", "Rome")
    requests: Counter[bool] = field(default_factory=Counter[bool])
    """How many requests were made in a recorded step, and outside of one."""
    tool_results: Sequence[str] = ()
    """What was sent with the last request."""

    def answer(self, tool_results: Sequence[str]) -> ScriptedAnswer:
        """The answer to a request that contains these results of tools, in the order of the conversation."""
        self.requests[_is_in_step()] += 1
        self.tool_results = list(tool_results)
        look_ups = len(self.cities)
        if not tool_results:
            calls = [
                ScriptedToolCall(f"call_{number}", "look_up", {"city": city}) for number, city in enumerate(self.cities)
            ]
            return ScriptedAnswer("I look them up.", calls)
        if len(tool_results) == look_ups:
            return ScriptedAnswer("I pay.", [ScriptedToolCall("call_pay", "charge", {"amount": 5})])
        return ScriptedAnswer("Found: " + "; ".join(map(str, tool_results)))


@dataclass
class ScriptedTools:
    """The tools: plain functions, of which ``charge`` must have the effect ``once``."""

    executions: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    """By name, how often they were executed in a recorded step, and outside of one."""

    def look_up(self, city: str) -> str:
        """Look up a city."""
        self.executions["look_up", _is_in_step()] += 1
        if city == UNKNOWN_CITY:
            raise LookupError(f"there is no city {city}")
        return f"{city} is a city"

    def charge(self, amount: int) -> str:
        """Charge a card."""
        self.executions["charge", _is_in_step()] += 1
        return f"charged {amount}"

    def count(self, name: str) -> int:
        """How often a tool was executed."""
        return self.executions[name, True] + self.executions[name, False]


AdapterAgent = Callable[[ScriptedChat, ScriptedTools, str], Awaitable[str] | str]
"""An agent with the adapter: with this model and these tools, it returns the text of the last answer to this task."""

_numbers = itertools.count(1)


async def check_adapter(agent: AdapterAgent) -> CrashReport:
    """Check what an adapter must do, with an agent of its framework: see the module. Returns what crashes it survived.

    Args:
        agent: an async or a plain function. It creates its agent with the model and the tools that it gets, runs it
            with the task, and returns the final text.
    """
    check = _AdapterCheck(agent)
    expected = await check.check_outside()
    await check.check_recording(expected)
    await check.check_unknown_outcome()
    report = await check.check_crashes(expected)
    await check.check_conversation(expected)
    await check.check_failing_tool()
    await check.check_changed_task()
    return report


class _AdapterCheck:
    """The checks of one agent."""

    def __init__(self, agent: AdapterAgent) -> None:
        self._agent = agent
        self._chat = ScriptedChat()
        self._tools = ScriptedTools()
        self._task = "Look up two cities."

    def _reset(self) -> None:
        self._chat = ScriptedChat(self._chat.cities)
        self._tools = ScriptedTools()

    def _define_program(self) -> Workflow[[], str]:
        """A program that runs the agent."""
        name = f"adapter check {next(_numbers)}"

        async def run_async() -> str:
            output = self._agent(self._chat, self._tools, self._task)
            return await output if inspect.isawaitable(output) else output

        def run_plain() -> str:
            output = self._agent(self._chat, self._tools, self._task)
            assert isinstance(output, str)
            return output

        run: Callable[[], Any] = run_async if inspect.iscoroutinefunction(self._agent) else run_plain
        defined = program(name=name)(run)
        del definitions[name]  # known only while it runs
        return defined

    async def _run_outside(self) -> str:
        run = partial(self._agent, self._chat, self._tools, self._task)
        # As in a program: code that is not async may run an event loop of its own.
        output = run() if inspect.iscoroutinefunction(self._agent) else await asyncio.to_thread(run)
        return await output if inspect.isawaitable(output) else output

    async def check_outside(self) -> str:
        """The agent works outside of programs. Returns its output."""
        output = await self._run_outside()
        if self._chat.requests.total() != 3 or self._tools.count("look_up") != 2 or self._tools.count("charge") != 1:
            _fail(
                "outside of a program, the agent must make 3 model calls, call look_up twice, and charge once; it made "
                f"{self._chat.requests.total()} model calls, {self._tools.count('look_up')} and "
                f"{self._tools.count('charge')} calls of the tools"
            )
        for found in ("Oslo is a city", "Rome is a city", "charged 5"):
            if found not in output:
                _fail(
                    f"the agent must return the text of the last answer, with {found!r} in it, and returned {output!r}"
                )
        return output

    async def check_recording(self, expected: str) -> None:
        """In a program, all calls are recorded, with their usage."""
        self._reset()
        with _Definition(self._define_program()) as flow:
            result = await Runner().run(flow)
        _check_completed(result)
        if result.output != expected:
            _fail(f"in a program, the agent returned {result.output!r} in place of {expected!r}")
        if unrecorded := self._chat.requests[False]:
            _fail(f"{unrecorded} of 3 requests to the model were made outside of a recorded step")
        names = Counter(step.name for step in result.steps)
        for name, count in ((MODEL_CALL_STEP, 3), ("look_up", 2), ("charge", 1)):
            if names[name] != count:
                _fail(f"the run must have {count} recorded {name!r} steps, and has {names[name]} (of {dict(names)})")
        if outside := [name for name, is_recorded in self._tools.executions if not is_recorded]:
            _fail(f"the tools {outside} were executed outside of a recorded step")
        used = result.usage
        if (used.calls, used.input_tokens, used.output_tokens) != (3, 3 * INPUT_TOKENS, 3 * OUTPUT_TOKENS):
            _fail(
                f"the run must have used 3 model calls with {3 * INPUT_TOKENS} input and {3 * OUTPUT_TOKENS} output "
                f"tokens, and reports {used}"
            )

    async def check_conversation(self, expected: str) -> None:
        """People can read what was said."""
        self._reset()
        with _Definition(self._define_program()) as flow:
            runner = Runner()
            result = await runner.run(flow)
        store = runner._world.store  # pyright: ignore[reportPrivateUsage]
        messages = await read_conversation(store, result.run_id)
        texts = [message.text for message in messages if message.role == "user"]
        if not any(self._task in text for text in texts):
            _fail(f"the conversation must have a message of the user with the task, and has {texts}")
        answers = [message for message in messages if message.role == "model"]
        if len(answers) != 3 or expected not in answers[-1].text:
            _fail(f"the conversation must have the 3 answers of the model, and has {[one.text for one in answers]}")
        called = [name for answer in answers for name, _ in answer.tool_calls]
        if called != ["look_up", "look_up", "charge"]:
            _fail(f"ModelAnswer.tool_calls must have the calls in the answer: the conversation has {called}")
        found = [message.text for message in messages if message.role == "tool"]
        if len(found) != 3 or not any("Rome is a city" in text for text in found):
            _fail(f"the conversation must have the 3 results of tools (see record_tool_call's call_id): it has {found}")

    async def check_crashes(self, expected: str) -> CrashReport:
        """Nothing recorded is done again after a crash at any point."""
        with _Definition(self._define_program()) as flow:
            runner = Runner(max_pairs=10)
            runner.before_each(self._reset)

            @runner.after_each
            def check_output(result: RunResult) -> None:
                if result.output != expected and not _is_told_unknown(self._chat):
                    _fail(f"after a crash, the agent returned {result.output!r} in place of {expected!r}")
                if self._tools.count("charge") > 1:
                    _fail("the tool charge has the effect 'once', and was executed again after a crash")

            return await runner.crash_everywhere(flow)

    async def check_unknown_outcome(self) -> None:
        """The model is told that the outcome of a ``once`` tool is unknown."""
        self._reset()
        with _Definition(self._define_program()) as flow:
            runner = Runner()
            runner.simulate_crash_during("charge")
            result = await runner.run(flow)
            result = await runner.resume(result.run_id)
            if self._tools.count("charge") != 1:
                _fail("the tool charge has the effect 'once', and was executed again after a crash")
            _check_completed(result)
            if not _is_told_unknown(self._chat):
                _fail(
                    "the model must be told that the outcome of charge is unknown: its result must be "
                    f"describe_failure(error, name). It was sent {self._chat.tool_results}"
                )

    async def check_failing_tool(self) -> None:
        """A tool that fails has the same consequences in a program as outside."""
        self._chat.cities = ("Oslo", UNKNOWN_CITY)
        self._reset()
        outside: str | type[BaseException]
        try:
            outside = await self._run_outside()
        except Exception as error:
            outside = type(error)
        self._reset()
        with _Definition(self._define_program()) as flow:
            result = await Runner().run(flow)
        inside = result.output if result.error is None else type(result.error)
        if inside != outside:
            _fail(f"with a failing tool, the agent ends with {inside!r} in a program, and with {outside!r} outside")
        self._chat.cities = ScriptedChat.cities

    async def check_changed_task(self) -> None:
        """A changed request stops the run, with a readable difference."""
        self._reset()
        with _Definition(self._define_program()) as flow:
            runner = Runner()
            runner.simulate_crash_after(MODEL_CALL_STEP)
            result = await runner.run(flow)
            before, self._task = self._task, "Look up nothing at all."
            result = await runner.resume(result.run_id)
        if not isinstance(result.error, NonDeterminismError):
            _fail(
                f"after a crash, the agent sent another request, because its task had changed, but the run is "
                f"{result.status}: what is sent to the model must be in ModelInput"
            )
        if before not in str(result.error) or self._task not in str(result.error):
            _fail(f"the difference between two requests must show both texts, and is:\n{result.error}")
        self._task = before


class _Definition:
    """The program is defined in this block."""

    def __init__(self, flow: Workflow[[], str]) -> None:
        self._flow = flow

    def __enter__(self) -> Workflow[[], str]:
        definitions[self._flow.name] = self._flow.definition
        return self._flow

    def __exit__(self, *_: object) -> None:
        definitions.pop(self._flow.name, None)


def _check_completed(result: RunResult) -> None:
    if result.error is not None:
        raise AdapterError(f"the run of the agent failed: {result.error}") from result.error
    if result.status != "completed":
        _fail(f"the run of the agent is {result.status}")


def _is_told_unknown(chat: ScriptedChat) -> bool:
    return any("may or may not have happened" in str(text) for text in chat.tool_results)


def _is_in_step() -> bool:
    return find_step_executor() is not None and get_current_execution() is None


def _fail(message: str) -> NoReturn:
    raise AdapterError(message)
