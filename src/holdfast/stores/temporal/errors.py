"""Errors of a Temporal server, as errors of Holdfast that say what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from temporalio.service import RPCError, RPCStatusCode

from holdfast.errors import StoreError, StoreFull, StoreUnavailable, ValueTooLarge
from holdfast.stores.temporal.targets import Target

_TLS_PHRASES = ("InvalidContentType", "InvalidCertificate", "UnknownIssuer", "NotValidForName", "CertificateRequired",
              "HandshakeFailure", "BadCertificate", "UnknownCA", "certificate", "TLS", "tls")  # fmt: skip
_AUTH_STATUSES = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)


@contextmanager
def translate_errors(target: Target) -> Generator[None]:
    """Raise the SDK's errors as errors of the store."""
    try:
        yield
    except RPCError as error:
        raise to_store_error(error, target) from error


@contextmanager
def suppress_not_found() -> Generator[None]:
    """Continue after the block if Temporal does not have the workflow, or it has ended."""
    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def to_store_error(error: RPCError, target: Target) -> StoreError | ValueTooLarge:
    """The error of the store for an error of Temporal."""
    where, message = target.url, error.message
    if error.status is RPCStatusCode.NOT_FOUND and message.startswith("Namespace"):
        return StoreError(
            f"{where}: there is no namespace {target.namespace!r} on this server. Name another one in the URL "
            f"(temporal://{target.address}/NAMESPACE), or create it: `temporal operator namespace create --address "
            f"{target.address} --namespace {target.namespace}`"
        )
    if error.status in _AUTH_STATUSES:
        return StoreError(
            f"{where} refuses us ({message}). Check the API key (HOLDFAST_TEMPORAL_API_KEY), or the certificate "
            f"(HOLDFAST_TEMPORAL_TLS_CERT and …_TLS_KEY), and what it permits in namespace {target.namespace!r}"
        )
    if error.status is RPCStatusCode.INVALID_ARGUMENT and (
        "Blob" in message or ("size" in message and "limit" in message)
    ):
        return ValueTooLarge(
            f"{where} refuses a value that is larger than Temporal takes ({message}). Keep large values elsewhere: "
            f"`?payloads=/a/shared/folder` in the URL, for workers and clients alike"
        )
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return StoreError(f"{where} refuses what was asked ({message})")
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        if "size" in message:
            return StoreFull(
                f"{where}: something has reached its limit ({message}). Give large values a place of their own "
                f"(`?payloads=`), or let the run start child runs for parts of its work"
            )
        return StoreUnavailable(f"{where} is asked more than it takes at the moment ({message}): try again")
    if error.status is RPCStatusCode.UNIMPLEMENTED:
        return StoreError(f"{where} does not know what it was asked ({message}): use Temporal Server 1.24 or newer")
    return StoreUnavailable(
        f"{where} cannot be used at the moment ({message or error.status.name}). Check that the server runs, and that "
        f"this process can reach it; what was under way may be asked for again"
    )


def to_connect_error(error: RuntimeError, target: Target) -> StoreError:
    """The error for a failed attempt to connect."""
    message = str(error).removeprefix("Failed client connect: ").removeprefix("Server connection error: ")
    if any(word in message for word in ("Unauthenticated", "PermissionDenied")):
        return StoreError(
            f"{target.url} refuses us ({message[:300]}). Check the API key (HOLDFAST_TEMPORAL_API_KEY), or the "
            f"certificate (HOLDFAST_TEMPORAL_TLS_CERT and …_TLS_KEY)"
        )
    if target.tls and any(word in message for word in _TLS_PHRASES):
        return StoreError(
            f"{target.url}: no encrypted connection came about ({message[:300]}). Check that the server speaks TLS "
            f"there (else say tls=false), that its certificate is for this host (else server_name=), and whom it is "
            f"signed by (tls_ca=)"
        )
    hint = "" if target.tls else " If the server wants TLS, say tls=true."
    return StoreUnavailable(
        f"{target.url} cannot be reached ({message[:300]}). Check that a Temporal server runs at {target.address} "
        f"(`temporal server start-dev` starts one to try), and that this process can reach it.{hint}"
    )
