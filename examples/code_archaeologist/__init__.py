"""Four agents renew a legacy Python file.

    cd examples
    python -m code_archaeologist --pace 2     # renews ./sales.py, which it lays down first
    python -m code_archaeologist my_file.py   # or a file of your own, with a real model

The *foreman* has no tools of its own, only sub-agents: the *archaeologist* reads the file and reports what is wrong,
the *modernizer* rewrites it on disk, and the *documenter* writes a page about it. Each task that the foreman hands out
is a run of its own, with a journal of its own.

Kill it half-way (Ctrl-C, or kill -9 from another terminal) and run the same command again: agents that had finished are
not asked again, and the one that was at work goes on after its last recorded call. At the end, the renewed file is
compiled, and run beside the old one on the same data.

``agents`` and ``tools`` are what one would write for oneself; ``legacy`` is the patient, and ``script`` stands in for
the models when there is no key.
"""
