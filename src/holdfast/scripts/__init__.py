"""Runs an ordinary Python program as a durable run: ``holdfast run``.

``script`` finds and executes the program in the main thread, as ``python`` would. ``script_run`` is its run: it is
opened in a thread of its own when the program makes its first recorded call, so that a program that makes none costs
nothing. ``supervisor`` starts the program again when it dies.
"""
