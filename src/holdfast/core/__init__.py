"""The pure heart: records, states, the deterministic loop, and replay.

Nothing in this room does I/O, reads a clock or starts a thread, so all of it can be tested by feeding it values.
"""
