"""The results of crews, as the results of runs.

A result has instances of the tasks' output models. They are recorded as data, and made again with the models of the
crew that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from crewai.crew import Crew
from crewai.crews.crew_output import CrewOutput
from crewai.tasks.task_output import TaskOutput
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from holdfast.codec import ValueCodec
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UnreadableRecord, UnrecordableValue


class CrewOutputCodec(ValueCodec):
    """Results of a crew, as JSON; or lists of them."""

    __slots__ = ("_crew",)

    def __init__(self, crew: Crew) -> None:
        self.annotation = Any
        self._crew = crew

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the result read from them."""
        try:
            data = to_json(_map(value, _dump_output))
        except Exception as error:
            raise UnrecordableValue(f"{capitalize_first(subject)} cannot be recorded: {error}") from error
        return data, self.decode(data, subject)

    def decode(self, data: bytes, subject: str) -> object:
        """The recorded result."""
        try:
            return _map(from_json(data), self._load_output)
        except Exception as error:
            raise UnreadableRecord(
                f"{capitalize_first(subject)} does not fit the output models of this crew's tasks: {error}"
            ) from error

    def _load_output(self, data: Any) -> Any:
        if not isinstance(data, dict) or "tasks_output" not in data:
            return cast(Any, data)
        found = cast("dict[str, Any]", data)
        models = [_get_output_model(task) for task in self._crew.tasks]
        tasks: Sequence[Any] = found["tasks_output"]
        outputs = [_load_task(one, _find(models, index)) for index, one in enumerate(tasks)]
        output = CrewOutput.model_validate({**found, "pydantic": None, "tasks_output": outputs})
        if found.get("pydantic") is not None and outputs:
            output.pydantic = outputs[-1].pydantic
        return output


def _dump_output(value: Any) -> Any:
    if not isinstance(value, CrewOutput):
        return value
    data = value.model_dump(mode="json", exclude={"pydantic", "tasks_output"})
    data["pydantic"] = _dump_model(value.pydantic)
    data["tasks_output"] = [
        {
            **task.model_dump(mode="json", exclude={"pydantic"}, fallback=_name_type),
            "pydantic": _dump_model(task.pydantic),
        }
        for task in value.tasks_output
    ]
    return data


def _dump_model(value: BaseModel | None) -> Any:
    return None if value is None else value.model_dump(mode="json")


def _name_type(value: Any) -> str:
    return type(value).__qualname__


def _load_task(data: dict[str, Any], model: type[BaseModel] | None) -> TaskOutput:
    output = TaskOutput.model_validate({**data, "pydantic": None})
    if data["pydantic"] is not None and model is not None:
        output.pydantic = model.model_validate(data["pydantic"])
    return output


def _get_output_model(task: Any) -> type[BaseModel] | None:
    for model in (task.output_pydantic, task.response_model):
        if isinstance(model, type) and issubclass(model, BaseModel):
            return model
    return None


def _find(models: Sequence[type[BaseModel] | None], index: int) -> type[BaseModel] | None:
    return models[index] if index < len(models) else None


def _map(value: object, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [convert(item) for item in cast("list[Any]", value)]
    return convert(value)
