"""Where webhooks may be sent to: nowhere near, and only to what was looked at."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from webhook_receiver import Reply, receiving

from holdfast.errors import UsageError
from holdfast.server.webhooks import target_policy
from holdfast.server.webhooks.http_client import NoResponse, WebhookHttpClient
from holdfast.server.webhooks.target_policy import TargetPolicy, is_public

pytestmark = pytest.mark.asyncio

PUBLIC = "93.184.215.14"


class Names:
    """A resolver: what each name leads to, the next time and the times after that."""

    def __init__(self, **leads_to: Sequence[Sequence[str]]) -> None:
        self.leads_to = {name.replace("_", "."): list(answers) for name, answers in leads_to.items()}
        self.resolved_hosts: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.resolved_hosts.append(host)
        answers = self.leads_to.get(host)
        if answers is None:
            raise OSError("no such host")
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def test_addresses_that_are_not_public():
    not_public = """
        0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16 169.254.169.254
        172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1
        203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
        :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:93.184.215.14 64:ff9b::7f00:1 64:ff9b::5db8:d70e 64:ff9b:1::1 100::1
        2001::1 2001:0:53aa:64c:0:7eff:80ff:fffe 2001:db8::1 2002:7f00:1::1 2002:5db8:d70e::1 3fff::1 5f00::1
        fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 2606:2800::1%eth0 fec0::1 ff02::1 ::ffff:0:127.0.0.1
    """.split()  # noqa: SIM905
    assert [one for one in not_public if is_public(one)] == []
    assert [one for one in ("nonsense", "", "127.1", "1.2.3") if is_public(one)] == []
    public = f"{PUBLIC} 8.8.8.8 172.32.0.1 100.128.0.1 192.0.1.1 2606:2800:21f::1 2a00:1450::1 2400:cb00::1".split()
    assert all(map(is_public, public))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://hooks.test/", "must be https"),
        ("ftp://hooks.test/", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("gopher://hooks.test/", "must begin with https://"),
        ("hooks.test/x", "must begin with https://"),
        ("https:///x", "must begin with https://"),
        ("https://me:secret@hooks.test/", "no user name"),
        ("https://me@hooks.test/", "no user name"),
        ("https://hooks.test/#x", "no fragment"),
        ("https://hooks.test:0/", "no port 0"),
        ("https://hooks.test:70000/", "no port 70000"),
        ("https://hooks.test/a b", "without blanks"),
        ("https://hooks.test\\@127.0.0.1/", "backslashes"),
        ("https://hooks.test/\r\nHost: x", "printable"),
        ("https://hooks.test/" + "x" * 2000, "at most 2000"),
        ("https://2130706433/", "no address as it is usually written"),
        ("https://0x7f.1/", "no address as it is usually written"),
        ("https://0x7f000001/", "no address as it is usually written"),
        ("https://127.1/", "no address as it is usually written"),
        ("https://127.0.0.0x1/", "no address as it is usually written"),
        ("https://0177.0.0.1/", "cannot be read"),
        ("https://017700000001/", "no address as it is usually written"),
        ("https://hooks.test.1/", "no address as it is usually written"),
        ("https://%6c%6f.test/", "no name of a host"),
        ("https://a..test/", "no name of a host"),
        ("https://１２７.0.0.1/", "cannot be read"),
        ("https://127。0。0。1/", "not public"),
        ("https://127.0.0.1/", "not public"),
        ("https://127.0.0.1./", "not public"),
        ("https://[::1]/", "not public"),
        ("https://[::ffff:7f00:1]/", "not public"),
        ("https://[64:ff9b::7f00:1]/", "not public"),
        ("https://[fe80::1%25eth0]/", "must not name a link|not public|cannot be read|no name"),
        ("https://169.254.169.254/latest/meta-data/", "not public"),
        ("https://inside.test/", "not public"),
        ("https://INSIDE.test./", "not public"),
        ("https://both.test/", "not public"),
        ("https://bücher.test/", "not public"),
        ("https://unknown.test/", "'unknown.test' cannot be found"),
    ],
)
async def test_targets_that_are_refused(url: str, why: str):
    names = Names(
        hooks_test=[[PUBLIC]],
        inside_test=[["10.1.2.3"]],
        both_test=[[PUBLIC, "::1"]],
        **{"xn--bcher-kva_test": [["::1"]]},
    )
    with pytest.raises(UsageError, match=why) as refused:
        await TargetPolicy(resolver=names).validate_target(url)
    assert "secret" not in str(refused.value)
    assert "10.1.2.3" not in str(refused.value)  # what a name leads to in here is nobody's business


async def test_targets_that_are_allowed():
    names = Names(hooks_test=[[PUBLIC, "2606:2800::1"]], inside_test=[["10.1.2.3"]], localhost=[["127.0.0.1"]])
    for url, host, header in (
        ("https://hooks.test/x?y=1", "hooks.test", "hooks.test"),
        ("https://HOOKS.test.:8443/", "hooks.test", "hooks.test:8443"),
        (f"https://{PUBLIC}/", PUBLIC, PUBLIC),
        ("https://[2606:2800::1]:444/", "2606:2800::1", "[2606:2800::1]:444"),
    ):
        target = await TargetPolicy(resolver=names).validate_target(url)
        assert (target.host, target.host_header, target.is_allowed) == (host, header, False)
    allowing = TargetPolicy(["Inside.test", "localhost:8080", "::1", "[::2]:80", "bücher.test"], names)
    for url in ("http://inside.test:99/", "http://localhost:8080/", "http://[::1]:5/", "http://[::2]/"):
        assert (await allowing.validate_target(url)).is_allowed, url
    assert allowing.parse_target("http://xn--bcher-kva.test/").is_allowed
    for url in ("http://localhost:8081/", "http://[::2]:81/", "http://x.inside.test/", "http://inside.test.evil.test/"):
        with pytest.raises(UsageError):
            await allowing.validate_target(url)
    for nonsense in ("", "host:", ":80", "host:http"):
        with pytest.raises(UsageError, match="name a host"):
            TargetPolicy([nonsense])


def count(size: int) -> None:
    """There is room for everything."""


async def post(poster: WebhookHttpClient, url: str, **more: Any) -> Any:
    return await poster.post(
        url, {"webhook-id": "1"}, b"{}", **({"timeout_s": 5, "max_bytes": 1000, "count_bytes": count} | more)
    )


async def test_a_name_that_leads_elsewhere_later_is_refused_then_and_on_the_way():
    async with receiving() as receiver:
        names = Names(rebinds_test=[[PUBLIC], ["127.0.0.1"]], local_test=[["127.0.0.1"]])
        await TargetPolicy(resolver=names).validate_target("https://rebinds.test/")
        with pytest.raises(NoResponse, match="not public"):
            await post(WebhookHttpClient(TargetPolicy(resolver=names)), f"https://rebinds.test:{receiver.port}/")
        # The receiver is found although no system resolver knows the name, by one lookup for each request.
        poster = WebhookHttpClient(TargetPolicy(["local.test"], names))
        names.resolved_hosts.clear()
        receiver.replies = [Reply(307, b"", {"location": "/again"}), Reply(200, b"1")]
        assert (await post(poster, f"http://local.test:{receiver.port}/")).body == b"1"
        assert names.resolved_hosts == ["local.test"] * 2
        assert [got.headers["host"] for got in receiver.got] == [f"local.test:{receiver.port}"] * 2


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiving() as receiver:
        assert (await post(WebhookHttpClient(TargetPolicy(["127.0.0.1"])), receiver.url)).status == 204


async def test_the_next_address_is_tried_when_one_takes_no_connection():
    async with receiving() as receiver:
        names = Names(two_test=[["127.0.0.9", "127.0.0.1"]], none_test=[["127.0.0.9"]])
        poster = WebhookHttpClient(TargetPolicy(["two.test", "none.test"], names))
        assert (await post(poster, f"http://two.test:{receiver.port}/")).status == 204
        with pytest.raises(NoResponse, match="cannot be connected to"):
            await post(poster, f"http://none.test:{receiver.port}/")


async def test_answers_without_end_are_not_read_to_the_end():
    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if path != b"/head" else b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"x" * 100_000 if path == b"/huge" else b"x")
                await writer.drain()
                if path != b"/huge":
                    await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(drips, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    poster = WebhookHttpClient(TargetPolicy(["127.0.0.1"]))
    try:
        answer = await post(poster, f"http://127.0.0.1:{port}/huge", max_bytes=150_000)
        assert (len(answer.body), answer.is_complete) == (150_000, False)
        for path in ("slow", "head"):
            with pytest.raises(NoResponse, match=r"no answer within 0\.3 s"):
                await post(poster, f"http://127.0.0.1:{port}/{path}", timeout_s=0.3)
    finally:
        server.close()


def tls_for(name: str, folder: Path) -> ssl.SSLContext:
    """The TLS of a receiver with a certificate of that name; whose authority is told is in the folder."""
    authority = trustme.CA()
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_uses_the_host_name_and_accepts_only_its_certificate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    context = tls_for("hooks.test", tmp_path)
    asked_for: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    names = Names(hooks_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])
    allowing = TargetPolicy(["hooks.test", "other.test"], names)
    async with receiving(tls=context) as receiver:
        with pytest.raises(NoResponse, match="CERTIFICATE_VERIFY_FAILED"):  # nobody has said to believe it
            await post(WebhookHttpClient(allowing), f"https://hooks.test:{receiver.port}/")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        poster = WebhookHttpClient(allowing)
        assert (await post(poster, f"https://hooks.test:{receiver.port}/")).status == 204
        with pytest.raises(NoResponse, match=r"CERTIFICATE_VERIFY_FAILED.*other\.test"):
            await post(poster, f"https://other.test:{receiver.port}/")
        assert asked_for == ["hooks.test", "hooks.test", "other.test"]
        assert [got.headers["host"] for got in receiver.got] == [f"hooks.test:{receiver.port}"]


async def test_a_redirect_is_looked_up_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(target_policy, "is_public", lambda address: address == "127.0.0.1")  # so that it can be reached
    context = tls_for("hooks.test", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with receiving(tls=context) as receiver:
        poster = WebhookHttpClient(TargetPolicy(resolver=Names(hooks_test=[["127.0.0.1"], ["10.1.2.3"]])))
        receiver.replies = [Reply(307, b"", {"location": "/again"}), Reply(200, b"1")]
        with pytest.raises(NoResponse, match="not public"):
            await post(poster, f"https://hooks.test:{receiver.port}/")
        assert len(receiver.got) == 1
