"""Commands about the server: ``serve``, API keys, and the audit log."""
