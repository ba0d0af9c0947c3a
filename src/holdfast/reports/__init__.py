"""Run reports: everything known about a run, as data that every reader shares.

The CLI, the server, and the dashboard read reports from here, so they show the same. A report is read from a store and
needs none of the code that executes runs::

    types            the report as data, under the names that programs know
    report_reader    a report from a store, page by page
    journal_entries  the records of its journal
    recorded_values  recorded bytes as values
    model_replies    recorded model calls
    worker_deaths    the deaths of its workers
    summary          what the run did, in a sentence or two
    advice           what to do now
    retry_preview    what a retry would do
    run_usage        tokens, money, and budgets, as text
    budgets          what a run may use, and the budgets above it
    conversations    the conversation of an agent's run
    run_tree         the tree of runs that a run belongs to
    run_info         a run in a list
    events, tail     what happens in one run, and in all of them
    usage_report     usage by day
    formatting       numbers, times, and commands
"""
