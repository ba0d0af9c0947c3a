from holdfast.integrations.claude_agent.session_store import HoldfastSessionStore

__all__ = ["HoldfastSessionStore"]
