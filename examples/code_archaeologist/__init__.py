"""Four agents modernize a legacy Python file.

    cd examples
    python -m code_archaeologist --pace 2     # modernizes ./sales.py, which it creates first
    python -m code_archaeologist my_file.py   # or a file of your own, with a real model

The *foreman* has no tools of its own, only sub-agents: the *archaeologist* reads the file and reports its problems, the
*modernizer* rewrites it on disk, and the *documenter* writes a page about it. Each task that the foreman assigns is a
run with its own journal.

Kill it midway (Ctrl-C, or kill -9 from another terminal) and run the same command again: agents that had finished are
not called again, and the one in progress continues after its last recorded call. At the end, the new file is compiled
and run next to the old one on the same data.

``agents`` and ``tools`` are what you would write yourself; ``legacy`` is the file to modernize, and ``script`` replaces
the models when there is no key.
"""
