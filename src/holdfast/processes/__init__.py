"""Processes that run until they are stopped: several under a supervisor, and probes that say how they are."""
