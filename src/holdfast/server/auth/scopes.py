"""What a key may do.

``read`` sees runs and everything about them; ``submit`` starts runs, sends to addresses and sends signals; ``operate``
changes runs of others, schedules, queues, memories and addresses, and answers questions; ``admin`` makes and revokes
keys, sets policies and deletes. ``listen:<address>`` takes the deliveries of one address, ``listen:*`` of all.
``operate`` may read as well, and ``admin`` may do everything but listen: whoever takes work must be meant to.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Scope(StrEnum):
    """What is asked of a key."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    LISTEN = "listen"
    LISTEN_TO_ALL = "listen:*"
    ADMIN = "admin"
    ANY = "any"
    """Asked by what every valid key may do, whatever its scopes; no key has it."""


_GRANTING_SCOPES = {
    Scope.READ: {Scope.READ, Scope.OPERATE, Scope.ADMIN},
    Scope.SUBMIT: {Scope.SUBMIT, Scope.ADMIN},
    Scope.OPERATE: {Scope.OPERATE, Scope.ADMIN},
    Scope.ADMIN: {Scope.ADMIN},
}


def has_scope(scopes: Collection[str], wanted: Scope, address: str | None = None) -> bool:
    """Whether a key with these scopes may do what asks for ``wanted``; to listen, on which address (``None``: any)."""
    if wanted is Scope.ANY:
        return True
    if wanted is Scope.LISTEN:
        if address is None:
            return any(scope.startswith("listen:") for scope in scopes)
        return bool({Scope.LISTEN_TO_ALL, f"listen:{address}"} & set(scopes))
    return bool(_GRANTING_SCOPES[wanted] & set(scopes))
