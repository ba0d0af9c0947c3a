"""Makes clients of the ``anthropic`` package durable: ``client = durable(Anthropic())``."""

from holdfast.integrations.http.durable_client import make_durable as durable

__all__ = ["durable"]
