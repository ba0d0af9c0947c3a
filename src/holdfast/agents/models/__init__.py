"""Model calls: which model, what is sent, what is recorded of the answer, and what happens when there is none.

``model_resolution`` turns names such as ``openai:gpt-4o`` into models of the library that speaks to providers
(pydantic-ai). ``model_call`` makes one call as a recorded step: it reserves what the call may use, asks the model
(``request``), and records the ``reply``. ``errors`` says which failures are repeated and which are not, in one place.
``messages`` is the form in which messages are recorded (field by field in ``message_layouts``), and ``prices`` what
they cost. ``context_limit`` tells when a conversation becomes too long for its model, and ``summaries`` is the message
that then takes the place of others.
"""
