"""What a ``temporal://`` URL says, and what nobody gets to see of it."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.stores.temporal.connection import connect
from holdfast.stores.temporal.targets import Target, parse_target
from holdfast.stores.urls import (
    create_store,
    find_secrets,
    is_temporal,
    redact_url,
    resolve_store_url,
    split_namespace,
    with_namespace,
)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("temporal://host", Target("host:7233")),
        ("temporal://host/", Target("host:7233")),
        ("temporal://host:7999/acme", Target("host:7999", "acme")),
        ("temporal://[::1]:7233/acme.a2dd6", Target("[::1]:7233", "acme.a2dd6")),
        ("temporal://host?namespace=acme", Target("host:7233", "acme")),
        ("temporal://host/acme?namespace=acme&tls=true", Target("host:7233", "acme", tls=True)),
        ("temporal://host/acme?api_key=k", Target("host:7233", "acme", tls=True, api_key="k")),
        ("temporal://host?tls_ca=/ca.pem", Target("host:7233", tls=True, tls_ca="/ca.pem")),
        (
            "temporal://host?memory=sqlite%3A%2F%2F%2Fm.db&payloads=/shared",
            Target("host:7233", memory_url="sqlite:///m.db", payload_location="/shared"),
        ),
        (
            "temporal://host?plugins=app:traced,app:billed",
            Target("host:7233", plugin_paths=("app:traced", "app:billed")),
        ),
    ],
)
def test_a_url_says_where_and_how(url: str, target: Target):
    assert parse_target(url, {}) == target
    assert is_temporal(url)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("temporal://", "names no Temporal server"),
        ("temporal://host:port/x", "names no Temporal server"),
        ("temporal://host:99999", "names no Temporal server"),
        ("temporal://me:sesame@host", "names a user, which Temporal has not"),
        ("temporal://host?tsl=true", "an option 'tsl', which is none of those that there are: tls, tls_ca"),
        ("temporal://host?tls=perhaps", "it is true or false"),
        ("temporal://host?tls_cert=/c.pem", "a tls_cert, and no tls_key"),
        ("temporal://host?tls=false&api_key=sesame", "for encrypted connections only"),
        ("temporal://host?api_key=***", "is hidden"),
        ("temporal://host/one?namespace=two", "'one' in its path, and namespace='two'"),
        ("temporal://host/a b", "cannot be the name of a Temporal namespace"),
        ("temporal://host?tls=true&tls=false", "says tls= twice"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_secrets(url: str, hint: str):
    with pytest.raises(UsageError) as raised:
        parse_target(url, {})
    assert hint in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_secrets_may_come_from_the_environment_and_the_url_comes_first():
    around = {
        "HOLDFAST_TEMPORAL_API_KEY": "ours",
        "TEMPORAL_API_KEY": "theirs",
        "HOLDFAST_TEMPORAL_TLS_CERT": "/cert.pem",
        "HOLDFAST_TEMPORAL_TLS_KEY": "/key.pem",
    }
    found = parse_target("temporal://host", around)
    assert (found.api_key, found.tls, found.tls_cert, found.tls_key) == ("ours", True, "/cert.pem", "/key.pem")
    assert parse_target("temporal://host?api_key=mine", around).api_key == "mine"
    del around["HOLDFAST_TEMPORAL_API_KEY"]
    assert parse_target("temporal://host", around).api_key == "theirs"
    assert parse_target("temporal://localhost?tls=false", around) == Target("localhost:7233")


def test_nobody_gets_to_see_a_key_or_a_password():
    url = "temporal://host/acme?api_key=sesame&memory=postgresql%3A%2F%2Fme%3Aopen%40h%2Fd&payloads=/p"
    target = parse_target(url, {})
    assert target.memory_url == "postgresql://me:open@h/d"
    for seen in (repr(target), target.url, redact_url(url), str(create_store(url).url)):
        assert "sesame" not in seen
        assert "open@" not in seen
    assert redact_url(url) == "temporal://host/acme?api_key=***&memory=postgresql://me:***@h/d&payloads=/p"
    assert find_secrets(url) == ["sesame", "postgresql://me:open@h/d"]
    assert "sesame" not in redact_url("temporal://host?apikey=sesame&token=sesame"), "what is not known is hidden"


@pytest.mark.parametrize(
    ("argument", "url", "environment", "used"),
    [
        (None, "temporal://host", "", "temporal://host"),
        (None, "temporal://host?tls=true", "acme", "temporal://host/acme?tls=true"),
        (None, "temporal://host/acme", "acme", "temporal://host/acme"),
        ("Acme-1", "temporal://host", "", "temporal://host/Acme-1"),
        ("acme", "temporal://host/acme", "other", "temporal://host/acme"),
        ("acme", "temporal://host?namespace=acme", "", "temporal://host/acme"),
    ],
)
def test_the_namespace_is_one_of_temporals(
    argument: str | None, url: str, environment: str, used: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_NAMESPACE", environment)
    assert resolve_store_url(url, argument) == used
    plain, namespace = split_namespace(used)
    assert parse_target(with_namespace(plain, namespace or "default"), {}) == parse_target(used, {})


def test_namespaces_that_contradict_each_other_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="is to be 'two', but the URL temporal://host/one says 'one'"):
        resolve_store_url("temporal://host/one", "two")
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "two")
    with pytest.raises(UsageError, match="HOLDFAST_NAMESPACE is 'two', but the URL temporal://host/one says 'one'"):
        resolve_store_url("temporal://host/one")


def test_without_the_package_a_temporal_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith(("temporalio", "holdfast.stores.temporal.store"))]:
        monkeypatch.delitem(sys.modules, name)
    found = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "temporalio":
            raise ModuleNotFoundError("No module named 'temporalio'", name="temporalio")
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"""pip install "holdfast-agents\[temporal\]\"""") as raised:
        create_store("temporal://host/acme?api_key=sesame")
    assert "sesame" not in str(raised.value)


def test_a_store_that_keeps_payloads_needs_a_package_that_offers_it(tmp_path: Path):
    from holdfast.stores.temporal.payload_storage import FolderStorage, open_storage

    assert isinstance(open_storage(str(tmp_path)), FolderStorage)
    with pytest.raises(UsageError, match="no package that is installed offers a storage for s3://"):
        open_storage("s3://bucket/runs")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("plugins", "hint"),
    [
        ("nowhere:plugin", "plugins=nowhere:plugin: cannot be imported .No module named 'nowhere'."),
        ("sys:plugin", "plugins=sys:plugin: cannot be imported"),
        ("sys:path", "plugins=sys:path is 'list', not a plugin of Temporal's SDK"),
    ],
)
async def test_a_plugin_that_cannot_be_used_is_refused_before_anything_is_connected(plugins: str, hint: str):
    with pytest.raises(UsageError, match=hint):
        await connect(parse_target(f"temporal://127.0.0.1:1?plugins={plugins}", {}))
