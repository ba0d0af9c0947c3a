"""Everything that Holdfast raises, in one tree.

    HoldfastError
    ├── DefinitionError              a workflow or step is declared incorrectly (raised when it is defined)
    ├── UsageError                   an API is called in a way that cannot work; the message says how to call it
    │   ├── DepsMissing              an agent's tools need ``deps``, and this process has none
    │   └── BoundArgumentMissing     a run needs objects that only the process that called the agent has
    ├── InputError                   arguments that do not match the workflow, or its id template
    ├── UnknownWorkflow              no worker ever announced a workflow of that name
    ├── UnknownSchedule              there is no schedule of that name
    ├── UnknownQueue                 there is no queue of that name with limits
    ├── WorkflowDisabled             the workflow is disabled: no run of it starts or continues
    ├── CodecError
    │   ├── UnrecordableValue        a value that cannot be recorded without loss
    │   │   └── ValueTooLarge        a value above the size limit (64 MiB by default)
    │   └── UnreadableRecord         recorded bytes that cannot be decoded
    │       └── UndecryptableValue   they are encrypted, and cannot be decrypted here: ``.key_id`` is the key needed
    │           └── ValueErased      they were erased
    ├── RunError                     about one run: ``.run_id``
    │   ├── RunNotFound
    │   ├── RunConflict              the id is taken by a run with other inputs
    │   ├── RunEnded                 the run has ended: it takes no more signals and cannot be cancelled or paused
    │   ├── RunErased                what the run recorded was erased: it cannot be retried, settled, forked, or joined
    │   ├── RetryRefused             the run cannot be retried, or not without ``run_again=True``
    │   ├── SettleRefused            the step cannot be settled
    │   ├── DeliveryLost             a listener no longer holds the run: ``.reason``
    │   └── RunUnsuccessful          the run ended without a result: ``.state``, ``.error``
    │       ├── RunFailed
    │       ├── RunCancelled
    │       └── RunDead
    ├── RunTimedOut                  (also TimeoutError) the run passed its own timeout
    ├── HistoryFull                  the run reached Temporal's limit of a history, and cannot continue in a new one
    ├── CompensationFailed           a step could not be undone: ``.step``, ``.compensation``
    ├── ReplayError                  the run stops in ``failed``, its journal untouched; fix the code, then retry
    │   ├── NonDeterminismError      the code no longer does what the journal says it did
    │   ├── ForbiddenInWorkflow      workflow code did what only a step may do
    │   ├── WorkflowStuck            workflow code waits for something that nothing recorded can wake
    │   └── WorkflowNeverYields      workflow code keeps the loop busy forever
    ├── ModelError                   about a model call: ``.model``, ``.status`` (of HTTP, if there was a response)
    │   ├── ModelRequestRejected     the provider rejects it for good: the same call would fail again
    │   └── ModelUnavailable         it failed until the retries were used up
    ├── BudgetExceeded               a model call was not made, because it would have exceeded a budget
    ├── ContextFull                  a model call was not made: the conversation must be summarized first
    ├── TurnLimitReached             an agent has used all its turns, and has no answer yet
    ├── InvalidOutput                a model's answers did not match the output_type until the retries were used up
    ├── ApprovalError                about a question that a run asks people: ``.approval_id``
    │   ├── UnknownApproval
    │   ├── ApprovalClosed           it was answered before, or its run no longer waits for the answer
    │   ├── ApprovalRequired         a tool was not called: a person must approve the call first
    │   ├── ApprovalDenied           a person said no
    │   └── ApprovalTimedOut         (also TimeoutError) there was no answer in time
    ├── McpError                     about an MCP server: ``.server``
    │   └── McpUnavailable           it could not be started or reached, or the connection to it broke
    ├── InvalidToolArguments         a model called a tool with arguments that do not match its parameters
    ├── UnknownTool                  a model called a tool that its agent does not have
    ├── WebhookVerificationFailed    a request that claims to be a webhook, but cannot be verified
    ├── PathRefused                  a model named a path outside of its folder, or not of a regular file
    ├── StepError                    about one step: ``.step``
    │   ├── StepFailed               replaces an exception that cannot be rebuilt
    │   ├── StepTimedOut             (also TimeoutError)
    │   └── StepOutcomeUnknown       a ``once`` step was in flight when its worker died
    ├── ServerError                  a Holdfast server refuses a request, or its response is invalid: ``.status``
    │   ├── Unauthenticated          the API key is missing, unknown, revoked, or expired
    │   ├── NotAllowed               the key may not do that: ``.scope`` is the scope that it needs
    │   ├── TooManyRequests          the key was used too often, and waiting did not help
    │   └── PolicyLimitReached       the policy of an agent or workflow allows no more of it today
    └── StoreError
        ├── StoreNotFound            there is no database file at this path, and the call creates none
        ├── StoreUnavailable         may pass: the engine keeps its runs and tries again
        │   ├── StoreLocked
        │   ├── StoreFull
        │   └── ServerUnavailable    a Holdfast server could not be reached in spite of retries
        ├── StoreReadOnly
        ├── StoreSchemaError         this Holdfast cannot use the database's schema
        │   └── SchemaTooNew         a newer Holdfast has migrated it: this process has to be replaced
        └── StoreCorrupt

``ModelRetry`` is not one of Holdfast's errors: a tool raises it to tell the model what to do differently.

Three more are ``BaseException``s, because a broad ``except Exception`` in user code must not stop them:
``FenceLost`` (another worker holds the run now), ``RunParked`` (the run leaves memory), and ``DeliveryParked`` (a
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
    """The tools of an agent need ``deps``, and the process that executes its run has none."""


class BoundArgumentMissing(UsageError):
    """An agent's run was started with objects that cannot be recorded, and this process does not have them."""


class InputError(HoldfastError):
    """Arguments do not match their workflow, or an answer does not match the approval.

    ``violations`` lists what is wrong and where, if a schema found it: ``{"path": "value.days", "message": "..."}``.
    """

    def __init__(self, message: str, violations: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.violations = tuple(dict(violation) for violation in violations)


class UnknownWorkflow(HoldfastError):
    """No worker ever announced a workflow of this name to the store."""


class UnknownSchedule(HoldfastError):
    """There is no schedule of this name in the store."""


class UnknownQueue(HoldfastError):
    """There is no queue of this name with limits in the store."""


class WorkflowDisabled(HoldfastError):
    """The workflow is disabled: its runs do not continue, and no new ones start."""


class CodecError(HoldfastError):
    """A value and its recorded bytes do not agree."""


class UnrecordableValue(CodecError):
    """A value cannot be recorded and read back without loss."""


class ValueTooLarge(UnrecordableValue):
    """A value is larger than the limit."""


class UnreadableRecord(CodecError):
    """Recorded bytes cannot be decoded to a value of the declared type."""


class UndecryptableValue(UnreadableRecord):
    """A recorded value is encrypted, and cannot be decrypted here. ``key_id`` is the key that it needs, if known."""

    def __init__(self, message: str, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


class ValueErased(UndecryptableValue):
    """A recorded value was erased (``holdfast erase``), so nothing can read it any more."""


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
    """The run cannot be retried: it has not failed, it was compensated, or a ``once`` step would run again.

    In the last case, ``needs_run_again`` is true: ``run_again=True`` allows the step to run again.
    """

    def __init__(self, message: str, run_id: str = "", *, needs_run_again: bool = False) -> None:
        super().__init__(message, run_id)
        self.needs_run_again = needs_run_again


class RunErased(RunError):
    """What the run recorded was erased (``holdfast erase``): it cannot be retried, settled, forked, or joined."""


class SettleRefused(RunError):
    """A step cannot be settled: its outcome is known, it did not end the run, or the run continues."""


class DeliveryLost(RunError):
    """A listener no longer holds this run, and must stop working on it.

    ``reason`` is ``cancelled``, ``expired`` (its deadline has passed), ``ended``, ``paused``, ``disabled``,
    ``parked``, ``taken-over`` (another listener may have it), or ``unknown`` (the server knows no such delivery).
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
    """The run was cancelled."""


class RunDead(RunUnsuccessful):
    """The run's worker died repeatedly while it held nothing else. The run waits until a person retries it."""


class RunTimedOut(HoldfastError, TimeoutError):
    """The run took longer than its workflow's ``timeout``."""


class HistoryFull(HoldfastError):
    """The run is near Temporal's limit for the history of one execution, and cannot continue in a new one."""


class CompensationFailed(HoldfastError):
    """The run failed or was cancelled, and one of its steps could not be undone.

    ``step`` is that step, and ``compensation`` is its compensation. Steps before it have not been undone either.
    """

    def __init__(self, message: str, step: str = "", compensation: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.compensation = compensation


class ReplayError(HoldfastError):
    """The run cannot continue with this code. Its journal is untouched, and it can be retried."""


class NonDeterminismError(ReplayError):
    """The code no longer issues the commands that the journal has outcomes for."""


class ForbiddenInWorkflow(ReplayError):
    """Workflow code called something that only a step may do."""


class WorkflowStuck(ReplayError):
    """Workflow code waits for something that no record can ever wake."""


class WorkflowNeverYields(ReplayError):
    """Workflow code keeps running without ever waiting for anything."""


class ModelError(HoldfastError):
    """A model call has failed. ``refusal`` has the model's own words, if the model itself refused to answer."""

    def __init__(self, message: str, model: str = "", status: int | None = None, refusal: str = "") -> None:
        super().__init__(message)
        self.model = model
        self.status = status
        self.refusal = refusal


class ModelRequestRejected(ModelError):
    """The provider rejects the call (wrong key, no quota, bad request), or the model refuses. A retry cannot help."""


class ModelUnavailable(ModelError):
    """The provider could not be reached, or was overloaded, until the retries were used up."""


class BudgetExceeded(HoldfastError):
    """A model call was not made: it would have exceeded a budget. ``run_id`` is the run that has the budget."""

    def __init__(self, message: str, run_id: str = "", limit: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.limit = limit


class ContextFull(HoldfastError):
    """A model call was not made, or was rejected: the conversation is too long for the model.

    ``context_window`` is the model's limit in tokens, if known.
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
    """There is no approval with this id."""


class ApprovalClosed(ApprovalError):
    """The approval was answered before, or its run no longer waits for the answer."""


class ApprovalRequired(ApprovalError):
    """A tool was not called: a person must approve the call first.

    ``arguments`` is the JSON text of the call's arguments; ``reason`` is the tool's reason, if it gives one; ``policy``
    is the agent's policy: who is asked, and for how long.
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
    """There was no answer in time."""


class TurnLimitReached(HoldfastError):
    """An agent has used up its ``max_turns`` without an answer."""


class InvalidOutput(HoldfastError):
    """A model's answers did not match the agent's ``output_type`` until its ``Output.retries`` were used up."""


class McpError(HoldfastError):
    """An MCP server refuses a request, or its response violates the protocol."""

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
        """Whether the request may have reached the server."""
        self.retry_after_s = retry_after_s
        """Seconds that the server asks to wait."""


class InvalidToolArguments(HoldfastError):
    """A model called a tool with invalid arguments. The message tells the model what is wrong with which."""


class UnknownTool(HoldfastError):
    """A model called a tool that its agent does not have. The message tells the model which tools there are."""


class WebhookVerificationFailed(HoldfastError):
    """A request was not signed with the webhook's secret, or its timestamp is too old."""


class PathRefused(HoldfastError):
    """A path under a folder was not opened. The message is for the model, and never reveals where the folder is."""


class ModelRetry(Exception):
    """Raised by a tool: the model gets this message, and may call the tool again with other arguments."""


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

    Check the outside world before you act on it: the step is not run again automatically.
    """


class ServerError(HoldfastError):
    """A Holdfast server refuses a request, or its response is invalid. ``status`` is that of HTTP."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unauthenticated(ServerError):
    """The API key is missing or not valid."""


class NotAllowed(ServerError):
    """The API key may not do that. ``scope`` is the scope that it needs, if the server says so."""

    def __init__(self, message: str, status: int | None = None, *, scope: str = "") -> None:
        super().__init__(message, status)
        self.scope = scope


class TooManyRequests(ServerError):
    """The API key exceeds the server's rate limit."""


class PolicyLimitReached(ServerError):
    """The policy of an agent or a workflow allows no more of it today, in runs or in money."""


class StoreError(HoldfastError):
    """A problem with the database."""


class StoreNotFound(StoreError):
    """There is no database at the path of the URL, and the call would not create one."""


class StoreUnavailable(StoreError):
    """The database cannot be written at the moment; the same call may work later."""


class StoreLocked(StoreUnavailable):
    """Another process kept the database locked for too long."""


class StoreFull(StoreUnavailable):
    """There is no space left on the device. Runs continue by themselves once there is."""


class ServerUnavailable(StoreUnavailable):
    """A Holdfast server could not be reached, or did not respond, until the client's retries were used up."""


class StoreReadOnly(StoreError):
    """This process cannot write to the database, or to its folder."""


class StoreSchemaError(StoreError):
    """This version of Holdfast does not know the database's schema."""


class SchemaTooNew(StoreSchemaError):
    """A newer Holdfast has migrated the database, and this version can no longer write to it.

    It does not pass: a worker stops when it finds out, and an open store refuses every call.
    """


class StoreCorrupt(StoreError):
    """The file is not a healthy Holdfast database."""


class FenceLost(BaseException):
    """Another worker holds this run now. This worker must stop working on it."""


class RunParked(BaseException):
    """Thrown into workflow code when its run leaves memory: let it pass, and issue no more commands."""


class DeliveryParked(BaseException):
    """Thrown into a listener's code when its run waits for a person, a signal, or a time: let it pass.

    The delivery has ended. When the wait ends, the run is delivered again.
    """
