"""Who may ask for what: API keys, scopes, rates and the audit log."""
