"""Agents of other frameworks, made durable: each package here is imported only by whoever uses that framework."""
