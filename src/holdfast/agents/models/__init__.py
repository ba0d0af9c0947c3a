"""Model calls: which model, what is sent, what is recorded of the answer, and what happens when there is none.

``choosing`` turns names such as ``openai:gpt-4o`` into models of the library that speaks to providers (pydantic-ai).
``calls`` makes one call as a recorded step: it reserves what the call may use, asks the model (``request``), and
records the ``reply``. ``faults`` says which failures are repeated and which are not, in one place. ``messages`` is the
form in which messages are recorded (field by field in ``forms``), and ``prices`` what they cost. ``context`` tells when
a conversation becomes too long for its model, and ``summaries`` is the message that then takes the place of others.
"""
