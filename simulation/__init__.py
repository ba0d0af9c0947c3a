"""A seeded, deterministic simulation of the real engine: many lifetimes of a fleet of workers in one second.

See ``docs/simulation.md`` for what is simulated, and ``python -m simulation --help`` for how to run it.
"""
