"""Scopes: what a key may do.

``read`` sees runs and everything about them; ``submit`` starts runs, sends to addresses, and sends signals; ``operate``
changes other callers' runs, schedules, queues, memories, and addresses, and answers approvals; ``admin`` makes and
revokes keys, sets policies, and deletes. ``listen:<address>`` takes the deliveries of one address, ``listen:*`` those
of all. ``operate`` includes ``read``. ``admin`` includes everything but ``listen``: a key takes work only if that is
its purpose.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Scope(StrEnum):
    """A scope that an endpoint requires."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    LISTEN = "listen"
    LISTEN_TO_ALL = "listen:*"
    ADMIN = "admin"
    ANY = "any"
    """Every valid key may use the endpoint. No key has this scope."""


_GRANTING_SCOPES = {
    Scope.READ: {Scope.READ, Scope.OPERATE, Scope.ADMIN},
    Scope.SUBMIT: {Scope.SUBMIT, Scope.ADMIN},
    Scope.OPERATE: {Scope.OPERATE, Scope.ADMIN},
    Scope.ADMIN: {Scope.ADMIN},
}


def has_scope(scopes: Collection[str], wanted: Scope, address: str | None = None) -> bool:
    """Whether a key with these scopes has ``wanted``; ``Scope.LISTEN`` is for one address (``None``: for any)."""
    if wanted is Scope.ANY:
        return True
    if wanted is Scope.LISTEN:
        if address is None:
            return any(scope.startswith("listen:") for scope in scopes)
        return bool({Scope.LISTEN_TO_ALL, f"listen:{address}"} & set(scopes))
    return bool(_GRANTING_SCOPES[wanted] & set(scopes))
