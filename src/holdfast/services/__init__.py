"""Operations over a store that the client and the server share.

Starting and changing runs, approvals, schedules, queues, and so on: each is a function of a store, or of a
``StoreProvider``, which is a way to one. Nothing here knows who asks.
"""
