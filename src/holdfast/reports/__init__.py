"""A run's story: all that is known of it, as data that every reader shares.

The command line, the server and the dashboard tell the same of a run, so they read it from here. A room under the
client: it reads a store, and needs none of the code that executes runs.

    types          the story as data, under the names that programs know          wiring       as JSON, both ways
    reading        from a store, page by page                                     recorded     recorded bytes as values
    entries        the records of its journal                                     replies      recorded model calls
    telling        what it did, in a sentence or two                              retrying     what a retry would do
    advising       what to do now                                                 spending     tokens, money, budgets
    conversations  what was said in an agent's run                                wording      numbers, times, commands
    families       the tree of runs that a run is in
"""
