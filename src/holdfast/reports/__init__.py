"""Run reports: everything known about a run, as data that every reader shares.

The CLI, the server, and the dashboard read reports from here, so they show the same. A report is read from a store and
needs none of the code that executes runs.

    types            the report as data, under the names that programs know       serialization    as JSON, both ways
    report_reader    from a store, page by page                                   recorded_values  bytes as values
    journal_entries  the records of its journal                                   model_replies    recorded model calls
    summary          what it did, in a sentence or two                            retry_preview    what a retry would do
    advice           what to do now                                               run_usage        tokens, money,
    budgets conversations    what was said in an agent's run                              formatting       numbers,
    times, commands run_tree         the tree of runs that a run is in                            run_info         a run
    in a list events, tail     what happens in one run, and in all of them                  usage_report     usage by
    day
"""
