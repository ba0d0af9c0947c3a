from holdfast.services.journal_files import Journal as Journal
from holdfast.services.journal_files import export_run as export_run
from holdfast.testing.adapter_check import (
    AdapterError as AdapterError,
)
from holdfast.testing.adapter_check import (
    ScriptedAnswer as ScriptedAnswer,
)
from holdfast.testing.adapter_check import (
    ScriptedChat as ScriptedChat,
)
from holdfast.testing.adapter_check import (
    ScriptedToolCall as ScriptedToolCall,
)
from holdfast.testing.adapter_check import (
    ScriptedTools as ScriptedTools,
)
from holdfast.testing.adapter_check import (
    check_adapter as check_adapter,
)
from holdfast.testing.crash_everywhere import CrashReport as CrashReport
from holdfast.testing.journal_replay import (
    JournalMismatch as JournalMismatch,
)
from holdfast.testing.journal_replay import (
    ReplayResult as ReplayResult,
)
from holdfast.testing.journal_replay import (
    replay as replay,
)
from holdfast.testing.journal_replay import (
    replay_journal as replay_journal,
)
from holdfast.testing.mocks import Mock as Mock
from holdfast.testing.results import (
    Children as Children,
)
from holdfast.testing.results import (
    RunResult as RunResult,
)
from holdfast.testing.results import (
    StepResult as StepResult,
)
from holdfast.testing.results import (
    Steps as Steps,
)
from holdfast.testing.runner import Runner as Runner
from holdfast.testing.scripted_model import ScriptedModel as ScriptedModel
from holdfast.testing.scripted_model import answer as answer
from holdfast.testing.scripted_model import call as call
from holdfast.testing.violations import CrashSafetyError as CrashSafetyError
from holdfast.testing.violations import CrashSafetyWarning as CrashSafetyWarning
from holdfast.testing.virtual_clock import VirtualClock as VirtualClock
