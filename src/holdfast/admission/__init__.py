"""When work may start, and when it is retried: queue limits, rates, schedules, budgets, and retries, as pure functions.

The time and the running work are arguments, and nothing here has state.
"""
