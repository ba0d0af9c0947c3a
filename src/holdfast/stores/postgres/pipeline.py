"""Round trips: any number of statements to the server, all their results back.

psycopg's own pipeline sends each statement as soon as it gets it, and waits for the socket each time. Here all
statements go into libpq's buffer first, and leave in one piece: for a batch of ten statements that takes a third of the
time. Everything else is psycopg's: how values are dumped and loaded, how errors are made, and how a thread waits.

If a statement fails, the server skips all that follow, and the first error is raised.

**Prepared statements** are named after their content. A pooler may hand one session to several clients without this
process noticing; a name then still means the same statement, whichever client prepared it. Two errors remain. The
session does not know a name, because it is another session now or because another client has discarded its statements.
Or it knows a name that this process has not prepared in it, which shows that the session is shared; from then on
nothing is prepared. Both raise ``StalePreparedStatements``, and the work can be repeated.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format
from psycopg.waiting import Ready, Wait

from holdfast.stores.postgres.connections import Connection
from holdfast.stores.sql.database import Row, Values, WriteConflict

if TYPE_CHECKING:
    from psycopg.abc import Transformer as AnyTransformer
    from psycopg.pq.abc import PGconn, PGresult

T = TypeVar("T")
SocketGenerator = Generator[Wait, Ready | int, T]
"""A generator that yields what it waits for on its connection's socket, and is sent what is ready."""

_PLACEHOLDER = re.compile(r"%%|%(?:\((\w+)\))?s")
_FAILED_STATUSES = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)


class StalePreparedStatements(WriteConflict):
    """The session does not have the prepared statements that it was expected to have."""


class BoundStatement(NamedTuple):
    """A statement and its values."""

    statement: str
    values: Values = ()


class Result:
    """The result of a statement."""

    __slots__ = ("_result", "_transformer")

    def __init__(self, result: PGresult, transformer: AnyTransformer) -> None:
        self._result = result
        self._transformer = transformer

    def load_rows(self) -> list[Row]:
        """The rows that the statement returned."""
        if not self._result.ntuples:
            return []
        self._transformer.set_pgresult(self._result, format=Format.BINARY)
        return self._transformer.load_rows(0, self._result.ntuples, tuple)

    @property
    def row_count(self) -> int:
        """How many rows the statement returned or changed."""
        return self._result.command_tuples or 0


class Pipeline:
    """The round trips of one connection."""

    def __init__(self, connection: Connection) -> None:
        connection.prepare_threshold = None  # else psycopg drops these statements together with its own
        self._connection = connection
        self._transformer: AnyTransformer = Transformer(connection)
        self._prepared: dict[tuple[bytes, Sequence[int]], bytes] = {}
        """The names of the statements prepared on the server, by their text and the types of their values."""

    def run(self, statements: Sequence[BoundStatement]) -> list[Result]:
        """Run statements, in order, and wait for the results.

        Raises what psycopg raises, and ``StalePreparedStatements``.
        """
        return self._connection.wait(self.run_nonblocking(statements))

    def run_nonblocking(self, statements: Sequence[BoundStatement]) -> SocketGenerator[list[Result]]:
        """The same, for a caller that waits for the socket itself."""
        pgconn = self._connection.pgconn
        dumped = [self._dump_values(_parse_statement(one.statement), one.values) for one in statements]
        pgconn.enter_pipeline_mode()
        prepared_now: dict[int, tuple[bytes, Sequence[int]]] = {}
        positions: list[int] = []
        result_count = 0
        is_pooled = self._connection.is_pooled
        for query, params, types, formats in dumped:
            if is_pooled:
                pgconn.send_query_params(query, params, types, formats, Format.BINARY)
            else:
                name = self._prepared.get((query, types))
                if name is None:
                    self._prepared[query, types] = name = _make_statement_name(query, types)
                    pgconn.send_prepare(name, query, types)
                    prepared_now[result_count] = (query, types)
                    result_count += 1
                pgconn.send_query_prepared(name, params, formats, Format.BINARY)
            positions.append(result_count)
            result_count += 1
        pgconn.pipeline_sync()
        results = yield from _exchange(pgconn)
        pgconn.exit_pipeline_mode()
        failed = next((result for result in results if result.status in _FAILED_STATUSES), None)
        if failed is not None:
            error = psycopg.errors.error_from_result(failed)
            is_unknown = isinstance(error, psycopg.errors.InvalidSqlStatementName)
            names = {} if is_unknown else {**self._prepared}
            for at, statement in prepared_now.items():
                names.pop(statement, None)
                if results[at].status == ExecStatus.COMMAND_OK:
                    names[statement] = self._prepared[statement]
            self._prepared = names
            if isinstance(error, psycopg.errors.DuplicatePreparedStatement):
                self._connection.treat_as_pooled()
            elif not is_unknown:
                raise error
            raise StalePreparedStatements(str(error)) from error
        return [Result(results[at], self._transformer) for at in positions]

    def _dump_values(
        self, query: _ParsedStatement, values: Values
    ) -> tuple[bytes, Sequence[Any] | None, tuple[int, ...], Sequence[Format] | None]:
        if query.parameter_names is not None:
            assert isinstance(values, Mapping)
            values = [values[name] for name in query.parameter_names]
        if not values:
            return query.text, None, (), None
        transformer = self._transformer
        params = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))  # type: ignore[arg-type]
        return query.text, params, tuple(transformer.types or ()), transformer.formats


class _ParsedStatement(NamedTuple):
    """A statement in the form that the server takes."""

    text: bytes
    parameter_names: Sequence[str] | None
    """The names of its values, if they have names."""


def _make_statement_name(query: bytes, types: Sequence[int]) -> bytes:
    content = query + b"\0" + repr(tuple(types)).encode()
    return b"holdfast_" + blake2b(content, digest_size=16).hexdigest().encode()


@lru_cache(maxsize=1000)
def _parse_statement(statement: str) -> _ParsedStatement:
    names: dict[str, int] = {}
    numbers = count(1)

    def number(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return f"${next(numbers) if found[1] is None else names.setdefault(found[1], len(names) + 1)}"

    text = _PLACEHOLDER.sub(number, statement)
    return _ParsedStatement(text.encode(), list(names) if names else None)


def _exchange(pgconn: PGconn) -> SocketGenerator[list[PGresult]]:
    """Send the buffer, and receive all results up to the end of the pipeline."""
    results: list[PGresult] = []
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()  # otherwise both sides could wait for each other to read
    while True:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # between two statements
            continue
        if result.status == ExecStatus.PIPELINE_SYNC:
            break
        results.append(result)
    while (notify := pgconn.notifies()) is not None:
        if pgconn.notify_handler:
            pgconn.notify_handler(notify)
    return results
