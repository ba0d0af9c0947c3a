"""``holdfast encryption-key``."""

from __future__ import annotations

import click

from holdfast.cli.shared.options import command
from holdfast.codec import AesEncryption


@command("holdfast encryption-key > key", "export HOLDFAST_ENCRYPTION_KEYS=$(cat key)", name="encryption-key")
def encryption_key() -> None:
    """Create a key to encrypt what is recorded, and print it.

    Put it into HOLDFAST_ENCRYPTION_KEYS wherever runs are started, executed, or read. To rotate a key, put the
    new one before the old one, separated by a comma: the first one encrypts, all of them decrypt. Store it like a
    password: it is shown once, and values that were encrypted with a lost key are lost.
    """
    click.echo(AesEncryption.new_key())
