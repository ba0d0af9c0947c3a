"""Connects clients and workers to a Temporal server: both must encode payloads in the same way.

**Encryption** makes everything that a run records unreadable to Temporal and its Web UI: arguments, results, errors,
signals, approvals. The names of workflows, steps and signals, ids, tags, and times stay readable.

**Warnings.** The SDK prints the warnings of its core amid the program's output. This module forwards them to Python's
logging, unless the program has already set the SDK's default runtime.
"""

from __future__ import annotations

import asyncio
import logging
import pkgutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, Plugin
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
)
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import TLSConfig

from holdfast.codec import AesEncryption, Encryption
from holdfast.errors import UsageError
from holdfast.stores.temporal.errors import to_connect_error, translate_errors
from holdfast.stores.temporal.history import ENCRYPTED_ENCODING
from holdfast.stores.temporal.payload_storage import open_storage, to_external_storage
from holdfast.stores.temporal.targets import Target

_ENCODING_KEY = "encoding"
_CONNECT_TIMEOUT = timedelta(seconds=10)


class EncryptionCodec(PayloadCodec):
    """Encrypts whole payloads, including their metadata."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt payloads."""
        return [
            Payload(
                metadata={_ENCODING_KEY: ENCRYPTED_ENCODING},
                data=self._encryption.encrypt(payload.SerializeToString(deterministic=True)),
            )
            for payload in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt payloads. Payloads that are not encrypted stay as they are."""
        return [
            Payload.FromString(self._encryption.decrypt(payload.data))
            if payload.metadata.get(_ENCODING_KEY) == ENCRYPTED_ENCODING
            else payload
            for payload in payloads
        ]


def make_data_converter(target: Target, encryption: Encryption | None = None) -> DataConverter:
    """The SDK's data converter for this server."""
    location = target.payload_location
    return DataConverter(
        payload_codec=None if encryption is None else EncryptionCodec(encryption),
        failure_converter_class=(
            # Messages of exceptions may contain values, so they are encrypted as well.
            DefaultFailureConverter if encryption is None else DefaultFailureConverterWithEncodedAttributes
        ),
        external_storage=to_external_storage(open_storage(location)) if location else None,
    )


async def connect(target: Target, *, encryption: Encryption | None = None, identity: str | None = None) -> Client:
    """An SDK client for this namespace, after checking that the namespace exists.

    Payloads are encrypted by ``encryption``, or else with the keys in the environment, if there are any. ``identity``
    is the client's name in Temporal. Raises ``StoreUnavailable`` when the server cannot be reached, and ``StoreError``
    when it refuses access, or has no such namespace.
    """
    tls = await asyncio.to_thread(_make_tls_config, target)
    plugins = await asyncio.to_thread(_load_plugins, target)
    _forward_sdk_logs()
    try:
        client = await Client.connect(
            target.address,
            namespace=target.namespace,
            api_key=target.api_key or None,
            tls=tls,
            data_converter=make_data_converter(target, encryption or AesEncryption.from_environment()),
            plugins=plugins,
            identity=identity,
            connect_timeout=_CONNECT_TIMEOUT,
        )
    except RuntimeError as error:
        raise to_connect_error(error, target) from error
    with translate_errors(target):
        request = DescribeNamespaceRequest(namespace=target.namespace)
        await client.workflow_service.describe_namespace(request, retry=False, timeout=_CONNECT_TIMEOUT)
    return client


@cache
def _forward_sdk_logs() -> None:
    warnings = LoggingConfig(LoggingConfig.default.filter, LogForwardingConfig(logging.getLogger("temporalio")))
    with suppress(RuntimeError):  # the program has set a runtime
        Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=warnings)))


def _make_tls_config(target: Target) -> TLSConfig | bool:
    if not target.tls:
        return False
    return TLSConfig(
        server_root_ca_cert=_read_file(target.tls_ca, "tls_ca"),
        domain=target.server_name or None,
        client_cert=_read_file(target.tls_cert, "tls_cert"),
        client_private_key=_read_file(target.tls_key, "tls_key"),
    )


def _load_plugins(target: Target) -> list[Plugin]:
    plugins: list[Plugin] = []
    for path in target.plugin_paths:
        try:
            found = pkgutil.resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(
                f"plugins={path}: cannot be imported ({error}); it must look like `module:name`, with a module that is "
                f"installed or in a folder of PYTHONPATH"
            ) from error
        if not isinstance(found, Plugin):
            raise UsageError(
                f"plugins={path} is {type(found).__name__!r}, not a plugin of Temporal's SDK, such as a "
                f"temporalio.plugin.SimplePlugin"
            )
        plugins.append(found)
    return plugins


def _read_file(path: str, option: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"{option}={path}: the file cannot be read ({error.strerror})") from None
