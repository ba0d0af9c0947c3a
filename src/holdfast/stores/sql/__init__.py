"""What all SQL stores share: transactions that are decided in Python over rows that one round trip has read.

The same code implements the contract on every database. A database adds a connection (``database``), a dialect for the
statements, its own statements, and its way to notice that a worker is dead. One commit, top to bottom::

    store                     SqlStore: the contract; which connection does what
    batch                     one commit, one transaction: prefetch, carry out the operations, write
      claimed_run_operations  operations on a held run
      client_operations       operations from outside
      start_operations        creating, finding, and forking runs
      queue_placement         the position of a new run in its queue
      approval_operations     approvals, live events, and memories
      transaction             what the operations of a transaction share: fences, writes, links, ends
      usage_accounts          usage and budgets of runs
    step_transactions         the outcome of a step's transaction
    claims                    which runs are due, and claiming them
      limited_queues          queues with limits
      suspects                isolated runs
      ready_states            whether a run may be claimed, and how
    queue_settings            limits from code and from people
    workers delivery_expiry schedules server_data memories   other tables
    queries run_lists run_updates journal_pages              reading
    retention archives        deleting runs, and importing them
    rows payloads blobs       values to rows and back
    database_access           how all of these use the database
    database templates statements                            what a database needs
    tables schema_changes schema                             its tables, and how it gets them
"""
