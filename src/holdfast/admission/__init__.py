"""When work may begin, and when it is tried again: queue limits, rates, schedules, budgets, retries, as arithmetic.

Pure: the time and what is running are handed in, and nothing is remembered.
"""
