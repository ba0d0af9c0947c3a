from __future__ import annotations

from pathlib import Path

import pytest
from worker_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write(
        "app.py",
        """
        import os
        import time
        from holdfast import step, workflow

        @step
        def touch(name: str) -> str:
            open(name, "w").close()
            return name

        @workflow
        async def etl(name: str) -> str:
            return await touch(name)

        @workflow(queue="nightly")
        async def report(name: str) -> str:
            return await touch(name)

        @step
        def hang() -> None:
            open("hanging", "w").close()
            time.sleep(600)

        @workflow(id="stuck")
        async def stuck() -> None:
            await hang()

        both = [etl, report]
        nothing = []
        mixed = [etl, touch]
        number = 3
        """,
    )
    return project
