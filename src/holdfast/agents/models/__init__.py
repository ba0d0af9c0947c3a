"""Model calls: models, requests, recorded replies, and failures.

``model_resolution`` turns names such as ``openai:gpt-4o`` into models of the library that talks to providers
(pydantic-ai). ``model_call`` makes one call as a recorded step: it reserves what the call may use, calls the model
(``request``), and records the ``reply``. ``errors`` decides which failures are retried. ``messages`` is the recorded
form of messages (field by field in ``message_layouts``), and ``prices`` computes costs. ``context_limit`` detects that
a conversation is too long for its model, and ``summaries`` makes the message that replaces the older ones.
"""
