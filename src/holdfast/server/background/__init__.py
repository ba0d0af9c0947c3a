"""Tasks that run next to the requests."""
