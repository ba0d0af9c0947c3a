"""Makes clients of the ``openai`` package durable: ``client = durable(OpenAI())``."""

from holdfast.integrations.http.durable_client import make_durable as durable

__all__ = ["durable"]
