"""The pure core: records, states, the deterministic loop, and replay.

Nothing in this package does I/O, reads a clock, or starts a thread, so all of it can be tested by feeding it values.
"""
