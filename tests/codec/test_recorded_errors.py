"""Exceptions as data: replay raises what was raised live."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from holdfast.codec import decode_error, encode_error, read_error_info
from holdfast.errors import ApprovalRequired, RunFailed, StepFailed, StepTimedOut, UnreadableRecord


class Declined(Exception):
    """Needs two arguments, and keeps state of its own."""

    inits = 0

    def __init__(self, code: int, detail: str) -> None:
        Declined.inits += 1
        super().__init__(f"declined: {detail}")
        self.code = code
        self.detail = detail
        self.at = (1, 2)
        self.response = object()


class Outer:
    class Inner(ValueError): ...


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Needy(Exception):
    def __str__(self) -> str:
        return self.connection.name  # type: ignore[attr-defined]


class FileTrouble(OSError):
    def __init__(self, path: str, hint: str) -> None:
        super().__init__(2, "gone", path)
        self.hint = hint


def raised(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise exc from None if cause is None else raised(cause)
    except BaseException as caught:
        return caught


def rebuilt(exc: BaseException) -> Exception:
    return decode_error(encode_error(raised(exc)), ())


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no", 3),
        KeyError("missing"),
        FileNotFoundError(2, "No such file", "/tmp/x"),
        OSError(28, "No space left"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ModuleNotFoundError("No module named 'x'", name="x"),
        TimeoutError(),
        StopAsyncIteration(1),
        Outer.Inner("deep"),
        StepTimedOut("too slow", step="extract"),
        RunFailed("it failed", "run-1", state="failed", error="x"),
        json.JSONDecodeError("bad", "doc", 2),
        FileTrouble("/tmp/y", "look"),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_an_exception_is_rebuilt_with_its_type_message_and_state(exc: Exception):
    again = rebuilt(exc)
    assert type(again) is type(exc)
    assert str(again) == str(exc)
    assert again.args == exc.args
    assert vars(again) == vars(exc)
    for name in ("errno", "filename", "reason", "name", "value"):
        assert getattr(again, name, None) == getattr(exc, name, None)


def test_an_exceptions_own_init_is_not_called_again():
    exc = Declined(402, "no funds")
    before = Declined.inits
    again = rebuilt(exc)
    assert Declined.inits == before
    assert isinstance(again, Declined)
    assert (again.code, again.detail, again.at) == (402, "no funds", (1, 2))


def test_what_could_not_be_recorded_of_an_exception_is_noted_on_it():
    again = rebuilt(Declined(402, "no funds"))
    assert not hasattr(again, "response")
    assert any("response" in note for note in again.__notes__)
    assert rebuilt(again).__notes__ == again.__notes__


def test_notes_are_recorded():
    exc = ValueError("x")
    exc.add_note("look here")
    assert rebuilt(exc).__notes__ == ["look here"]


def test_the_message_replaces_arguments_that_do_not_survive():
    again = rebuilt(ValueError(object))
    assert type(again) is ValueError
    assert again.args == ("<class 'object'>",)


class Local(Exception): ...


def local_exception() -> Exception:
    class Hidden(Exception): ...

    return Hidden("x")


def validation_error() -> Exception:
    class Model(BaseModel):
        a: int

    with pytest.raises(ValidationError) as error:
        Model.model_validate({"a": "x"})
    return error.value


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (local_exception(), "Hidden: x"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (asyncio.CancelledError(), "CancelledError: "),
        (ExceptionGroup("both", [ValueError(1)]), "both (1 sub-exception)"),
        (validation_error(), "ValidationError: 1 validation error"),
        (Mute("x"), "Mute: <its message could not be made: RuntimeError>"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_an_exception_that_cannot_be_rebuilt_is_recorded_as_step_failed(exc: BaseException, message: str):
    data = encode_error(raised(exc))
    again = decode_error(data, ())
    assert type(again) is StepFailed
    assert message in str(again)
    assert again.step == ""
    assert read_error_info(data).type == "holdfast.errors.StepFailed"


def test_an_exception_whose_message_needs_what_was_lost_is_recorded_as_step_failed():
    exc = Needy()
    exc.connection = types.SimpleNamespace(name="db")  # type: ignore[attr-defined]
    again = rebuilt(exc)
    assert type(again) is StepFailed
    assert str(again) == "Needy: db"


def test_deeply_nested_arguments_do_not_stop_the_record():
    value: list[Any] = []
    for _ in range(190):
        value = [value]
    assert isinstance(rebuilt(ValueError(value)), (ValueError, StepFailed))


def test_a_class_that_has_moved_is_found_in_the_workflows_module():
    module = types.ModuleType("yesterday")
    exec("class Oops(Exception): ...", module.__dict__)
    sys.modules["yesterday"] = module
    try:
        data = encode_error(module.Oops("x"))
    finally:
        del sys.modules["yesterday"]

    class Oops(Exception): ...

    again = decode_error(data, [{"unrelated": 1}, {"Oops": Oops}])
    assert type(again) is Oops
    assert again.args == ("x",)
    with pytest.raises(UnreadableRecord, match=r"`yesterday\.Oops`.*Import it in the module that defines the workflow"):
        decode_error(data, [{"Oops": "not a class"}, {"Oops": int}, {"Oops": KeyboardInterrupt}])
    assert read_error_info(data).message == "x"


def test_reading_an_error_imports_nothing_and_calls_no_module_getattr():
    lazy = types.ModuleType("lazy_module")
    asked: list[str] = []
    lazy.__getattr__ = asked.append  # type: ignore[method-assign]
    sys.modules["lazy_module"] = lazy
    record = {"type": "lazy_module.Oops", "qualname": "Oops", "message": "x", "args": ["x"], "attributes": {}}
    absent = {**record, "type": "antigravity.Oops"}
    try:
        for one in (record, absent):
            with pytest.raises(UnreadableRecord):
                decode_error(json.dumps(one).encode(), ())
    finally:
        del sys.modules["lazy_module"]
    assert asked == []
    assert "antigravity" not in sys.modules


def test_a_record_cannot_name_a_function_to_call():
    record = {"type": "os.system", "qualname": "system", "message": "x", "args": ["true"], "attributes": {}}
    with pytest.raises(UnreadableRecord):
        decode_error(json.dumps(record).encode(), ())


def test_people_can_read_the_end_of_the_traceback():
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 10_000)

    try:
        deep(50)
    except ValueError as error:
        info = read_error_info(encode_error(error))
    assert info.type == "builtins.ValueError"
    assert len(info.traceback.encode()) <= 4096
    assert "Traceback" in read_error_info(encode_error(raised(ValueError("short")))).traceback


def test_the_cause_is_recorded_as_text():
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except ValueError as error:
        data = encode_error(error)
    assert json.loads(data)["cause"] == "KeyError: 'a'"


def test_text_that_is_not_unicode_does_not_stop_the_record():
    info = read_error_info(encode_error(ValueError("file \udcff")))
    assert info.message == "file \\udcff"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"x"])
def test_bytes_that_are_not_an_error_are_unreadable(data: bytes):
    with pytest.raises(UnreadableRecord):
        read_error_info(data)


class Ends(Exception):
    def __str__(self) -> str:
        raise self.args[0]("from a message")


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt, GeneratorExit, RuntimeError])
def test_an_exception_whose_message_raises_is_recorded_all_the_same(how: type[BaseException]):
    error = rebuilt(Ends(how))
    assert isinstance(error, StepFailed)
    assert str(error) == f"Ends: <its message could not be made: {how.__name__}>"
    told = read_error_info(encode_error(raised(RuntimeError("outer"), Ends(how))))
    assert told.message == "outer"


def test_a_long_message_loses_its_middle_and_says_so():
    text = "a" * 50_000 + "b" * 50_000
    error = rebuilt(ValueError(text))
    assert str(error) == f"{'a' * 24_576}… [67,232 of 100,000 characters cut] …{'b' * 8_192}"
    assert error.args == (str(error),)
    assert str(rebuilt(ValueError("c" * 32_768))) == "c" * 32_768


def test_large_attributes_are_left_out_by_name():
    error = ValueError("too much")
    error.body, error.status, error.rows = "x" * 200_000, 503, list(range(100_000))  # type: ignore[attr-defined]
    again = rebuilt(error)
    assert vars(again).keys() == {"status", "__notes__"}
    assert "without body, rows: they could not be recorded" in again.__notes__[0]


def test_large_attributes_of_holdfasts_own_errors_are_recorded():
    required = ApprovalRequired("ask first", tool="write", arguments="x" * 1_000_000)
    again = rebuilt(required)
    assert isinstance(again, ApprovalRequired)
    assert again.arguments == required.arguments


def test_a_long_message_leaves_room_for_the_lines_of_code():
    told = read_error_info(encode_error(raised(RuntimeError("outer"), ValueError("x" * 100_000))))
    assert "characters cut" in told.traceback
    assert told.traceback.count("in raised") == 2
