"""When work may begin: limits of queues, rates, schedules and budgets, as arithmetic.

Pure: the time and what is running are handed in, and nothing is remembered.
"""
