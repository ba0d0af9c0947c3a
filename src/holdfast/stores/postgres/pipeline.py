"""Round trips: any number of statements there, all of their results back.

psycopg's own pipeline sends each statement as soon as it is given, and waits for the socket each time. Here all of them
are put into libpq's buffer first, and leave in one piece: for a batch of ten statements that takes a third of the time.
All else is psycopg's: how values are dumped and loaded, how errors are made, and how a thread waits.

If a statement fails, the server passes over all that follow, and the first error is raised.

**Prepared statements** are named after their content. Where a pooler hands one session to several clients without our
knowledge, a name can therefore mean nothing but the statement that we want, whoever has prepared it. Two errors remain:
the session does not know a name, because it is another one now or because somebody has thrown its statements away; or
it knows one that we have not prepared in it, which shows that it is shared. Then nothing is prepared any more.
``StalePreparedStatements`` is raised for both, and the work can be repeated.
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
"""Something that tells what it waits for on its connection's socket, and wants to be told when it is there."""

_PLACEHOLDER = re.compile(r"%%|%(?:\((\w+)\))?s")
_FAILED_STATUSES = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)


class StalePreparedStatements(WriteConflict):
    """The session does not have the prepared statements that it was expected to have."""


class BoundStatement(NamedTuple):
    """A statement on its way, and its values."""

    statement: str
    values: Values = ()


class Result:
    """What came of a statement."""

    __slots__ = ("_result", "_transformer")

    def __init__(self, result: PGresult, transformer: AnyTransformer) -> None:
        self._result = result
        self._transformer = transformer

    def load_rows(self) -> list[Row]:
        """Those that it returned."""
        if not self._result.ntuples:
            return []
        self._transformer.set_pgresult(self._result, format=Format.BINARY)
        return self._transformer.load_rows(0, self._result.ntuples, tuple)

    @property
    def row_count(self) -> int:
        """How many rows were touched."""
        return self._result.command_tuples or 0


class Pipeline:
    """The round trips of one connection."""

    def __init__(self, connection: Connection) -> None:
        connection.prepare_threshold = None  # else psycopg drops what is prepared here with what it has prepared itself
        self._connection = connection
        self._transformer: AnyTransformer = Transformer(connection)
        self._prepared: dict[tuple[bytes, Sequence[int]], bytes] = {}
        """Names of statements that the server knows, by their text and the types of their values."""

    def run(self, statements: Sequence[BoundStatement]) -> list[Result]:
        """Carry out statements, in order, and wait for it here.

        Raises what psycopg raises, and ``StalePreparedStatements``.
        """
        return self._connection.wait(self.run_nonblocking(statements))

    def run_nonblocking(self, statements: Sequence[BoundStatement]) -> SocketGenerator[list[Result]]:
        """The same, for whoever waits in another way."""
        pgconn = self._connection.pgconn
        ready = [(_parse_statement(one.statement), one.values) for one in statements]
        dumped = [self._dump_values(query, values) for query, values in ready]
        pgconn.enter_pipeline_mode()
        new: dict[int, tuple[bytes, Sequence[int]]] = {}
        places: list[int] = []
        expected = 0
        is_pooled = self._connection.is_pooled
        for query, params, types, formats in dumped:
            if is_pooled:
                pgconn.send_query_params(query, params, types, formats, Format.BINARY)
            else:
                name = self._prepared.get((query, types))
                if name is None:
                    self._prepared[query, types] = name = _make_statement_name(query, types)
                    pgconn.send_prepare(name, query, types)
                    new[expected] = (query, types)
                    expected += 1
                pgconn.send_query_prepared(name, params, formats, Format.BINARY)
            places.append(expected)
            expected += 1
        pgconn.pipeline_sync()
        results = yield from _exchange(pgconn)
        pgconn.exit_pipeline_mode()
        failed = next((result for result in results if result.status in _FAILED_STATUSES), None)
        if failed is not None:
            kept = {new[at]: self._prepared[new[at]] for at in new if results[at].status == ExecStatus.COMMAND_OK}
            for statement in new.values():
                del self._prepared[statement]
            error = psycopg.errors.error_from_result(failed)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                self._prepared.clear()
            self._prepared.update(kept)
            if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                raise StalePreparedStatements(str(error)) from error
            if isinstance(error, psycopg.errors.DuplicatePreparedStatement):
                self._connection.treat_as_pooled()
                raise StalePreparedStatements(str(error)) from error
            raise error
        return [Result(results[at], self._transformer) for at in places]

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
    """A statement as the server wants it."""

    text: bytes
    parameter_names: Sequence[str] | None
    """Of its values, if they have any."""


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
    """Send what is in the buffer, and take all results, up to the end of the pipeline."""
    results: list[PGresult] = []
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()  # lest both sides wait for each other to read
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
