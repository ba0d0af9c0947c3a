"""The journal engine: it claims runs, replays them, carries out their steps and commits what happened.

``engine.JournalEngine`` is the whole; each duty has a file: ``writer`` (group commit), ``driver`` (one run in memory),
``steps`` (one step's attempts), ``pulse`` (the lease's heartbeat).
"""
