"""The Claude Agent SDK: sessions that any process can resume, and tools whose calls do not repeat.

The SDK drives an executable of its own, which calls the model and most tools. Holdfast does not see these calls. It
records what the SDK hands out: ``session_store`` has the transcripts of sessions, ``turn`` the messages of whole turns,
and ``tool_calls`` the calls of tools that run in the program's own process.
"""

try:
    from holdfast.integrations.claude_agent.session_store import HoldfastSessionStore
    from holdfast.integrations.claude_agent.turn import query
except ModuleNotFoundError as error:
    error.add_note("pip install 'holdfast-agents[claude-agent]' installs what this integration needs.")
    raise

__all__ = ["HoldfastSessionStore", "query"]
