"""Credentials are removed from texts, and nothing else is."""

from __future__ import annotations

import pytest

from holdfast.codec.redaction import redact_secrets


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: sk-proj-abcDEF1234567890.", "Incorrect API key provided: [key]"),
        ("key sk-te**********st is wrong", "key [key] is wrong"),
        ("sent Authorization: Bearer abc.def.ghi to it", "sent Authorization: Bearer [key] to it"),
        ("Authorization: Bearer 5up3r is wrong", "Authorization: Bearer [key] is wrong"),
        ("Bearer abcdefghijklmnopqrst", "Bearer [key]"),
        ("headers {'x-api-key': 'sk-ant-api03-xyz1234567'}", "headers {'x-api-key': '[key]'}"),
        ("headers {'x-api-key': 'hunter'}", "headers {'x-api-key': '[key]'}"),
        ("OpenAIProvider(api_key='hunter2') failed", "OpenAIProvider(api_key='[key]') failed"),
        ("GET https://x.example/v1?key=AIzaSyA1234567890abcdef&alt=sse", "GET https://x.example/v1?key=[key]&alt=sse"),
        ("no route to https://ada:s3cret@db.example/x", "no route to https://ada:[key]@db.example/x"),
        ("postgresql+psycopg://ada:p%40ss:word@db:5432/app", "postgresql+psycopg://ada:[key]@db:5432/app"),
        ("redis://:hunter2@cache:6379/0 is away", "redis://:[key]@cache:6379/0 is away"),
        ("AIzaSyA1234567890abcdef is no key", "[key] is no key"),
        ("AKIAIOSFODNN7EXAMPLE", "[key]"),
        ("gsk_abcdefgh12345678", "[key]"),
        ("hf_abcdefghijklMNOPQRSTuvwxyzABCDEFGH is wrong", "[key] is wrong"),
    ],
)
def test_keys_are_taken_out(text: str, clean: str):
    assert redact_secrets(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        # What a user reads who has set no key, or a wrong one.
        "Set the `OPENAI_API_KEY` environment variable or pass it via `OpenAIProvider(api_key=...)` to use the OpenAI "
        "provider.",
        "Set the `OPENAI_API_KEY` environment variable or pass it via `OpenAIProvider(api_key=...)`to use the OpenAI "
        "provider.",
        "Set the `XAI_API_KEY` environment variable or pass it via `XaiProvider(api_key=...)`.",
        "Set the `HF_API_KEY` or `HF_TOKEN` variable.",
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank username).",
        "The api_key client option must be set either by passing api_key to the client or by setting the "
        "OPENAI_API_KEY environment variable",
        "api_key=None is not allowed; write api_key=<your key>, or api_key='your-key-here'",
        "send a Bearer token",
        "GET http://localhost:8080/users/ada@example.com failed, mail ada@example.com",
        "https://ada@github.com/x and http://[::1]:80/@x and git@github.com:x/y",
        "the risk-averse task-force asked for a basket",
        "use max_tokens and the api key",
        "hf-inference and fw-gateway are not known",
    ],
)
def test_words_about_keys_are_left_as_they_are(text: str):
    assert redact_secrets(text) == text
