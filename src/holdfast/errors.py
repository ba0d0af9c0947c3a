"""Everything that Holdfast raises, in one tree.

    HoldfastError
    ├── DefinitionError              a workflow or step is declared wrongly (raised when it is defined)
    ├── UsageError                   an API is called in a way that cannot work, with the way that does
    │   ├── DepsMissing              an agent's tools need ``deps``, and this process was given none
    │   └── BoundArgumentMissing     a run needs objects that only the process that called the agent has
    ├── InputError                   arguments that do not fit the workflow, or its id template
    ├── UnknownWorkflow              no worker ever announced a workflow of that name
    ├── UnknownSchedule              there is no schedule of that name
    ├── UnknownQueue                 there is no queue of that name that has limits
    ├── WorkflowDisabled             the workflow is disabled: no run of it starts or continues
    ├── CodecError
    │   ├── UnrecordableValue        a value that would not survive being recorded
    │   │   └── ValueTooLarge        a value above the limit of what is recorded (64 MiB by default)
    │   └── UnreadableRecord         recorded bytes that cannot be turned back into a value
    │       └── UndecryptableValue   they are encrypted, and cannot be decrypted here: ``.key_id`` is the key needed
    ├── RunError                     about one run: ``.run_id``
    │   ├── RunNotFound
    │   ├── RunConflict              the id is taken by a run with other inputs
    │   ├── RunEnded                 the run has ended: it takes no more signals and cannot be cancelled or paused
    │   ├── RetryRefused             the run cannot be retried, or not without being told more
    │   ├── SettleRefused            nothing there is to be settled, or not in this run
    │   ├── DeliveryLost             a listener does not hold the run any more: ``.reason``
    │   └── RunUnsuccessful          the run ended without a result: ``.state``, ``.error``
    │       ├── RunFailed
    │       ├── RunCancelled
    │       └── RunDead
    ├── RunTimedOut                  (also TimeoutError) the run passed its own time-out
    ├── HistoryFull                  Temporal limits how long a run's history gets, and it cannot go on in a new one
    ├── CompensationFailed           a step could not be undone: ``.step``, ``.compensation``
    ├── ReplayError                  the run stops in ``failed``, its journal untouched; fix the code, then retry
    │   ├── NonDeterminismError      the code no longer does what the journal says it did
    │   ├── ForbiddenInWorkflow      workflow code did what only a step may do
    │   ├── WorkflowStuck            workflow code waits for something that nothing recorded can wake
    │   └── WorkflowNeverYields      workflow code keeps the loop busy for ever
    ├── ModelError                   about a model call: ``.model``, ``.status`` (of HTTP, if it got that far)
    │   ├── ModelRequestRejected     the provider refuses it for good: the same call would fail again
    │   └── ModelUnavailable         it failed until the retries were used up
    ├── BudgetExceeded               a model call was not made, because it would have passed a budget
    ├── ContextFull                  a model call was not made: what was said must be summarised first
    ├── TurnLimitReached             an agent has made its last turn, and has no answer yet
    ├── InvalidOutput                a model's answers did not fit the output_type until the retries were used up
    ├── ApprovalError                about a question that a run asks people: ``.approval_id``
    │   ├── UnknownApproval
    │   ├── ApprovalClosed           it was answered before, or nobody waits for the answer any more
    │   ├── ApprovalRequired         a tool was not called: a person must approve of the call first
    │   ├── ApprovalDenied           a person said no
    │   └── ApprovalTimedOut         (also TimeoutError) nobody answered in time
    ├── McpError                     about an MCP server: ``.server``
    │   └── McpUnavailable           it could not be started or reached, or the connection to it broke
    ├── InvalidToolArguments         a model called a tool with arguments that do not fit its parameters
    ├── UnknownTool                  a model called a tool that its agent does not have
    ├── WebhookVerificationFailed    a request that claims to be a webhook, but cannot be verified
    ├── PathRefused                  a model named a path that leads out of its folder, or to no plain file
    ├── StepError                    about one step: ``.step``
    │   ├── StepFailed               stands in for an exception that cannot be rebuilt
    │   ├── StepTimedOut             (also TimeoutError)
    │   └── StepOutcomeUnknown       a ``once`` step was in flight when its worker died
    ├── ServerError                  a Holdfast server refuses, or answers what makes no sense: ``.status`` (of HTTP)
    │   ├── Unauthenticated          the API key is missing, not known, revoked, or has expired
    │   ├── NotAllowed               the key may not do that: ``.scope`` is what it lacks
    │   ├── TooManyRequests          the key was used too often, and waiting did not help
    │   └── PolicyLimitReached       the policy of an agent or workflow allows no more of it today
    └── StoreError
        ├── StoreNotFound            there is no database file at this path, and the call creates none
        ├── StoreUnavailable         may pass: the engine keeps its place and tries again
        │   ├── StoreLocked
        │   ├── StoreFull
        │   └── ServerUnavailable    a Holdfast server could not be reached, however often it was tried
        ├── StoreReadOnly
        ├── StoreSchemaError         the database's schema is not one that this Holdfast can use
        │   └── SchemaTooNew         a newer Holdfast has migrated it: this process has to be replaced
        └── StoreCorrupt

``ModelRetry`` is no error of Holdfast's: tools raise it to tell the model what to do otherwise.

Three more are ``BaseException``s, because a broad ``except Exception`` in user code must not stop them:
``FenceLost`` (another worker holds the run now), ``RunParked`` (the run leaves memory) and ``DeliveryParked`` (a
listener's run waits, and will be delivered again).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class HoldfastError(Exception):
    """The base of every error that Holdfast raises."""


class DefinitionError(HoldfastError):
    """A workflow or step is declared in a way that cannot work."""


class UsageError(HoldfastError):
    """An API is called where or how it cannot work."""


class DepsMissing(UsageError):
    """The tools of an agent need ``deps``, and the process that executes its run was given none."""


class BoundArgumentMissing(UsageError):
    """An agent's run was started with objects that cannot be recorded, and this process does not have them."""


class InputError(HoldfastError):
    """Arguments do not fit the workflow they are meant for, or an answer the question.

    ``violations`` lists what is wrong and where, if a schema found it: ``{"path": "value.days", "message": "..."}``.
    """

    def __init__(self, message: str, violations: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(dict(one) for one in violations)


class UnknownWorkflow(HoldfastError):
    """No worker ever announced a workflow of this name to the store."""


class UnknownSchedule(HoldfastError):
    """There is no schedule of this name in the store."""


class UnknownQueue(HoldfastError):
    """There is no queue of this name in the store that has limits."""


class WorkflowDisabled(HoldfastError):
    """The workflow is disabled: its runs do not continue, and no new ones start."""


class CodecError(HoldfastError):
    """A value and its recorded bytes do not agree."""


class UnrecordableValue(CodecError):
    """A value would not survive being recorded and read back."""


class ValueTooLarge(UnrecordableValue):
    """A value is larger than what may be recorded."""


class UnreadableRecord(CodecError):
    """Recorded bytes cannot be turned back into a value of the declared type."""


class UndecryptableValue(UnreadableRecord):
    """A recorded value is sealed, and cannot be opened here. ``key_id`` is the key that is needed, if that is known."""

    def __init__(self, message: str, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


class RunError(HoldfastError):
    """An error about one run."""

    def __init__(self, message: str, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFound(RunError):
    """There is no run with this id in the store."""


class RunConflict(RunError):
    """The id belongs to a run that was started with other inputs, or of another workflow."""


class RunEnded(RunError):
    """The run has ended: it takes no more signals, and there is nothing left to cancel or pause."""


class RetryRefused(RunError):
    """The run cannot be retried: it has not failed, what it did was undone, or a ``once`` step would run again.

    In the last case, ``needs_run_again``: it can, if ``run_again=True`` says that the step may.
    """

    def __init__(self, message: str, run_id: str = "", *, needs_run_again: bool = False) -> None:
        super().__init__(message, run_id)
        self.needs_run_again = needs_run_again


class SettleRefused(RunError):
    """A step cannot be settled: its outcome is known, it is not what ended the run, or the run goes on."""


class DeliveryLost(RunError):
    """A listener does not hold this run any more: whatever it still does for it must stop.

    ``reason`` is ``cancelled``, ``expired`` (its deadline has passed), ``ended``, ``paused``, ``disabled``,
    ``parked``, ``taken-over`` (another listener may have it) or ``unknown`` (the server knows no such delivery).
    """

    def __init__(self, message: str, run_id: str, *, reason: str = "") -> None:
        super().__init__(message, run_id)
        self.reason = reason


class RunUnsuccessful(RunError):
    """The run ended without a result."""

    def __init__(self, message: str, run_id: str = "", *, state: str = "", error: str = "") -> None:
        super().__init__(message, run_id)
        self.state = state
        self.error = error


class RunFailed(RunUnsuccessful):
    """The workflow raised; its exception is the ``__cause__`` where it can be rebuilt."""


class RunCancelled(RunUnsuccessful):
    """Somebody cancelled the run."""


class RunDead(RunUnsuccessful):
    """The run's worker died too often while it held nothing else. The run waits until a person retries it."""


class RunTimedOut(HoldfastError, TimeoutError):
    """The run took longer than its workflow's ``timeout``."""


class HistoryFull(HoldfastError):
    """The run has come near Temporal's limit for the history of one execution, and cannot go on in a new one."""


class CompensationFailed(HoldfastError):
    """The run failed or was cancelled, and one of its steps could not be undone.

    ``step`` is that step, ``compensation`` what should have undone it. Steps before it have not been undone either.
    """

    def __init__(self, message: str, step: str = "", compensation: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.compensation = compensation


class ReplayError(HoldfastError):
    """The run cannot go on with this code; its journal is untouched and it can be retried."""


class NonDeterminismError(ReplayError):
    """The code no longer issues the commands that the journal has outcomes for."""


class ForbiddenInWorkflow(ReplayError):
    """Workflow code called something that only a step may do."""


class WorkflowStuck(ReplayError):
    """Workflow code waits for something that no record can ever wake."""


class WorkflowNeverYields(ReplayError):
    """Workflow code keeps running without ever waiting for anything."""


class ModelError(HoldfastError):
    """A model call has failed."""

    def __init__(self, message: str, model: str = "", status: int | None = None, refusal: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.status = status
        self.refusal = refusal
        """The words in which the model itself refuses to answer, if that is what happened."""


class ModelRequestRejected(ModelError):
    """The provider refuses the call (a wrong key, no quota, a bad request), or the model refuses to answer: repeating
    it would not help."""


class ModelUnavailable(ModelError):
    """The provider could not be reached, or was overloaded, until the retries were used up."""


class BudgetExceeded(HoldfastError):
    """A model call was not made: it would have passed a budget. ``run_id`` is the run that has the budget."""

    def __init__(self, message: str, run_id: str = "", limit: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.limit = limit


class ContextFull(HoldfastError):
    """A model call was not made, or was refused: the conversation is too long for the model.

    ``context_window`` is how many tokens that takes, as far as it could be told.
    """

    def __init__(self, message: str, context_window: int = 0) -> None:
        super().__init__(message)
        self.context_window = context_window


class ApprovalError(HoldfastError):
    """An error about a question that a run asks people."""

    def __init__(self, message: str, approval_id: str = "") -> None:
        super().__init__(message)
        self.approval_id = approval_id


class UnknownApproval(ApprovalError):
    """There is no question of this id."""


class ApprovalClosed(ApprovalError):
    """The question was answered before, or nobody waits for the answer any more."""


class ApprovalRequired(ApprovalError):
    """A tool was not called: a person must approve of the call first.

    ``arguments`` is the JSON text of what the tool would have got; ``reason`` is the tool's own, if it gives one;
    ``policy`` is the agent's: who is asked, and how long.
    """

    def __init__(
        self,
        message: str,
        approval_id: str = "",
        *,
        question: str = "",
        tool: str = "",
        arguments: str = "",
        reason: str = "",
        policy: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message, approval_id)
        self.policy = policy or {}
        self.question = question
        self.tool = tool
        self.arguments = arguments
        self.reason = reason


class ApprovalDenied(ApprovalError):
    """A person said no."""

    def __init__(self, message: str, approval_id: str = "", by: str = "", reason: str = "") -> None:
        super().__init__(message, approval_id)
        self.by = by
        self.reason = reason


class ApprovalTimedOut(ApprovalError, TimeoutError):
    """Nobody answered in time."""


class TurnLimitReached(HoldfastError):
    """An agent has used up its ``max_turns`` without an answer."""


class InvalidOutput(HoldfastError):
    """A model's answers did not fit the agent's ``output_type`` until its ``Output.retries`` were used up."""


class McpError(HoldfastError):
    """An MCP server refuses to be asked, or does not answer as the protocol says."""

    def __init__(self, message: str, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class McpUnavailable(McpError):
    """An MCP server could not be started or reached, or the connection to it broke, until the retries were used up."""

    def __init__(
        self, message: str, server: str = "", *, is_sent: bool = True, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, server)
        self.is_sent = is_sent
        """Whether what was asked may have reached the server."""
        self.retry_after_s = retry_after_s
        """How many seconds the server asks to wait."""


class InvalidToolArguments(HoldfastError):
    """A model called a tool with arguments that do not fit. The message is for the model: what was wrong with which."""


class UnknownTool(HoldfastError):
    """A model called a tool that its agent does not have. The message is for the model: which tools there are."""


class WebhookVerificationFailed(HoldfastError):
    """A request was not signed with the webhook's secret, or is too old to be believed."""


class PathRefused(HoldfastError):
    """A path under a folder was not opened. The message is for the model, and never tells where the folder is."""


class ModelRetry(Exception):
    """Raised by a tool: the model is told this message, and may call the tool again with other arguments."""


class StepError(HoldfastError):
    """An error about one step."""

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class StepFailed(StepError):
    """A step failed with an exception that cannot be rebuilt from its record."""


class StepTimedOut(StepError, TimeoutError):
    """An attempt of a step took longer than its ``timeout``."""


class StepOutcomeUnknown(StepError):
    """A ``once`` step was in flight when its worker died: it may or may not have happened.

    Check the outside world before you act on it; nobody will run the step again for you.
    """


class ServerError(HoldfastError):
    """A Holdfast server refuses what it is asked for, or does not answer as one does."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unauthenticated(ServerError):
    """The server does not know the API key, or was given none."""


class NotAllowed(ServerError):
    """The API key may not do that. ``scope`` is what it lacks, if the server says so."""

    def __init__(self, message: str, status: int | None = None, *, scope: str = "") -> None:
        super().__init__(message, status)
        self.scope = scope


class TooManyRequests(ServerError):
    """The server is asked more often with this key than it allows."""


class PolicyLimitReached(ServerError):
    """The policy of an agent or a workflow allows no more of it today, in runs or in money."""


class StoreError(HoldfastError):
    """The database cannot do what is asked of it."""


class StoreNotFound(StoreError):
    """There is no database at the path of the URL, and the call would not create one."""


class StoreUnavailable(StoreError):
    """The database cannot be written at the moment; the same call may work later."""


class StoreLocked(StoreUnavailable):
    """Another process kept the database locked for too long."""


class StoreFull(StoreUnavailable):
    """There is no room left on the device; runs go on by themselves once there is."""


class ServerUnavailable(StoreUnavailable):
    """A Holdfast server could not be reached, or did not answer, until the patience of the client was over."""


class StoreReadOnly(StoreError):
    """The database, or the folder it lies in, is not writable for this process."""


class StoreSchemaError(StoreError):
    """The database's schema is not one that this version of Holdfast knows."""


class SchemaTooNew(StoreSchemaError):
    """A newer Holdfast has migrated the database, and what this version writes does not fit it any more.

    It does not pass: a worker stops when it finds out, and everything that is asked of an open store is refused.
    """


class StoreCorrupt(StoreError):
    """The file is not a healthy Holdfast database."""


class FenceLost(BaseException):
    """Another worker holds this run now; whatever this one still does for it must stop."""


class RunParked(BaseException):
    """Thrown into workflow code whose run leaves memory: let it pass, and issue no more commands."""


class DeliveryParked(BaseException):
    """Thrown into a listener's code whose run waits for a person, a signal or a time: let it pass.

    The delivery is over. When what it waits for is there, the run is delivered again.
    """
