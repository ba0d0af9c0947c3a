"""Runtimes and clients of several namespaces in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Client, Runtime, memory, step, workflow
from holdfast.errors import RunNotFound, UsageError

pytestmark = pytest.mark.asyncio


async def test_what_a_step_starts_and_remembers_is_in_the_namespace_of_its_run(tmp_path: Path):
    @workflow(id="errand-{name}")
    async def errand(name: str) -> str:
        return name

    @step
    async def send_out(name: str) -> str:
        await memory.put("errands", "last", name)
        return await errand(name)  # of a step, so it is no child: it is started like any run

    @workflow(id="master-{name}")
    async def master(name: str) -> str:
        return await send_out(name)

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Runtime(url, namespace="acme") as acme, Runtime(url, namespace="bolt") as bolt:
        assert (acme.namespace, bolt.namespace) == ("acme", "bolt")
        handle = await acme.start(master, "tea")
        assert await handle.result() == "tea"
        assert (await acme.store_provider.read("errand-tea")).id == "errand-tea"
        with pytest.raises(RunNotFound, match=r"runs\.db\?namespace=bolt"):
            await bolt.store_provider.read("errand-tea")
        assert await master("tar") == "tar", "outside of steps, the runtime that was opened last counts"
    for namespace, name in {"acme": "tea", "bolt": "tar"}.items():
        async with Client(url, namespace=namespace) as client:
            assert {run.id for run in await client.list()} == {f"master-{name}", f"errand-{name}"}
            assert await client.memory.get("errands", "last") == name
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["runs.acme.db", "runs.bolt.db"]


async def test_a_namespace_is_said_by_the_argument_the_url_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "usual")
    assert Runtime(url, workflows=[]).namespace == "usual"
    assert Runtime(f"{url}?namespace=inside", workflows=[]).namespace == "inside"
    assert Runtime(url, namespace="given", workflows=[]).namespace == "given"
    assert Runtime(url, namespace="default", workflows=[]).namespace == "default"
    assert Client(url).url == f"{url}?namespace=usual"
    for make in (Runtime, Client):
        with pytest.raises(UsageError, match=r"to be 'given', but the URL .* says 'inside'"):
            make(f"{url}?namespace=inside", namespace="given")
