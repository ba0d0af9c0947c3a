"""The journal engine: it claims runs, replays them, carries out their steps and commits what happened.

``engine.JournalEngine`` is the whole; each duty has a file: ``writer`` (group commit), ``driver`` (one run in memory),
``steps`` (one step's attempts), ``transacting`` (those that are committed with their outcome), ``threads`` (where plain
steps run), ``idle`` (parking), ``pulse`` (the heartbeat) and ``quiet`` (replay is silent).
"""
