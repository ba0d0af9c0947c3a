from __future__ import annotations

import ast

import pytest
from worker_project import Project


def load_each(project: Project, *targets: str) -> list[str]:
    """What ``load_workflows`` returns for each target, or its error, as text; all in one process."""
    done = project.python(
        f"""
        import sys
        sys.path = [entry for entry in sys.path if entry]  # as for an installed command: the folder is not there yet
        from holdfast.errors import UsageError
        from holdfast.worker.workflow_loader import load_workflows
        answers = []
        for target in {targets!r}:
            try:
                answers.append(repr(load_workflows(target)))
            except UsageError as error:
                answers.append(f"UsageError: {{error}}")
        print(answers)
        """
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout)


def load_workflows(project: Project, target: str) -> str:
    [answer] = load_each(project, target)
    return answer


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("app", ("etl", "report", "stuck")),
        ("app.py", ("etl", "report", "stuck")),
        ("./app.py:etl", ("etl",)),
        ("app:both", ("etl", "report")),
    ],
)
def test_a_target_names_all_workflows_or_the_chosen_ones(project: Project, target: str, names: tuple[str, ...]):
    assert load_workflows(project, target) == repr(names)


def test_an_agent_is_served_with_its_sub_agents(project: Project):
    project.write(
        "crew.py",
        """
        from holdfast import Agent
        digger = Agent("openai:gpt-4o", name="digger")
        writer = Agent("openai:gpt-4o", name="writer", subagents=[digger])
        lead = Agent("openai:gpt-4o", name="lead", tools=[writer])
        alone = Agent("openai:gpt-4o", name="alone")
        pair = [alone, writer]
        """,
    )
    assert load_each(project, "crew:lead", "crew:digger", "crew:pair", "crew") == [
        "('lead', 'writer', 'digger')",
        "('digger',)",
        "('alone', 'writer', 'digger')",
        "('digger', 'writer', 'lead', 'alone')",
    ]


def test_a_file_inside_a_package_is_imported_as_part_of_it(project: Project):
    project.write("shop/__init__.py", "")
    project.write("shop/jobs/__init__.py", "")
    project.write("shop/jobs/nightly.py", "from ..base import cleanup")
    project.write("shop/base.py", "from holdfast import workflow\n@workflow\nasync def cleanup() -> None: ...\n")
    assert load_workflows(project, "shop/jobs/nightly.py") == "('cleanup',)"
    assert load_workflows(project, "shop.jobs.nightly:cleanup") == "('cleanup',)"


def test_a_target_that_cannot_be_served_is_explained(project: Project):
    expected = {
        "apq": "no module is named 'apq': did you mean 'app'?",
        "shop.jobs": "no module is named 'shop.jobs' (there is no module 'shop')",
        "missing/app.py": "there is no file",
        f"{'a' * 300}.py": "cannot be read: File name too long",
        "app:etk": "module 'app' has no 'etk': did you mean app:etl?",
        "app:zzzz": "module 'app' has no 'zzzz': Workflows and agents in 'app': etl, report, stuck.",
        "app:number": "'app:number' is an object of type `int`, neither a workflow nor an agent. "
        "Workflows and agents in 'app': etl, report",
        "app:touch": "'app:touch' is a step (`touch`), neither a workflow nor an agent.",
        "app:mixed": "'app:mixed' contains a step (`touch`), neither a workflow nor an agent.",
        "app:nothing": "'app:nothing' is an empty list",
        "app:": "'app:' names no workflows",
        "my app": "'my app' is neither a module's name nor a Python file",
    }
    for answer, says in zip(load_each(project, *expected), expected.values(), strict=True):
        assert answer.startswith("UsageError: ")
        assert says in answer


def test_a_module_that_fails_on_import_shows_the_end_of_its_traceback(project: Project):
    project.write("broken.py", "def prepare():\n    return undefined\n\nprepare()\n")
    answer = load_workflows(project, "broken")
    assert answer.startswith("UsageError: importing 'broken' failed:")
    assert "line 2, in prepare" in answer
    assert "return undefined" in answer
    assert answer.endswith("NameError: name 'undefined' is not defined")
    assert "importlib" not in answer


def test_a_missing_dependency_is_a_failed_import_and_not_a_missing_target(project: Project):
    project.write("needy.py", "import a_package_that_is_not_there\n")
    answer = load_workflows(project, "needy.py")
    assert "importing 'needy' failed:" in answer
    assert "No module named 'a_package_that_is_not_there'" in answer


def test_a_script_that_exits_when_it_is_imported_is_explained(project: Project):
    project.write("script.py", "import sys\nsys.exit(3)\n")
    assert "SystemExit: 3: the module ends the process when it is imported" in load_workflows(project, "script")


def test_a_module_without_workflows_is_an_error(project: Project):
    project.write("empty.py", "x = 1\n")
    assert "there is no workflow in 'empty': put `@workflow` on an async function" in load_workflows(project, "empty")


def test_a_file_whose_name_belongs_to_another_module_is_an_error(project: Project):
    project.write("difflib.py", "x = 1\n")
    assert "`import difflib` finds" in load_workflows(project, "difflib.py")
