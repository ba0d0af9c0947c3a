"""Lists of runs: the keys of a page (see ``run_lists``), and counts.

On PostgreSQL, each statement may use one index, whatever its other conditions are. The order must come from that index,
so ``ORDER BY`` names all its columns, and none of them equals a single value: that would let the planner leave the
column out and choose another index. Conditions that are checked row by row are written so that no index can serve them
(``key + 0``), not even a partial one.

``{filters}`` stands for conditions from ``FILTERS``. A page has keys from ``:lowest`` up to, but not including,
``:below``.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.stores.sql.templates import Catalog, Group, Query

_TAGGED = "SELECT 1 FROM @run_tags t WHERE t.tag = :tag AND t.run = runs.key"
_PAGE = "below:i lowest:i max_rows:i"


class _Narrowing(NamedTuple):
    """A condition that leaves few runs, or runs that are adjacent in an index."""

    values: str
    sqlite_index: str
    column: str
    postgres_source: str = ""
    """The source that has the index and the key; without one, the runs are so few that they are sorted."""

    @property
    def condition(self) -> str:
        if len(self.values.split()) == 2:
            return f"{self.column} >= :first AND {self.column} < :last"
        return f"{self.column} = :value"


_NARROWINGS = {
    "owner": _Narrowing("value:i", "runs_claimed", "owner", "(SELECT * FROM @runs WHERE owner IS NOT NULL) runs"),
    "parent": _Narrowing("value:t", "runs_children", "parent", "(SELECT * FROM @runs WHERE parent <> '') runs"),
    "id_prefix": _Narrowing("first:t last:t", "sqlite_autoindex_runs_1", "id"),
    "created": _Narrowing("first:f last:f", "runs_created", "created_at"),
}


def _page(by: _Narrowing) -> Query:
    values = f"{by.values} {_PAGE}"
    not_empty = " AND runs.parent <> ''" if by.column == "parent" else ""
    sqlite = (
        f"SELECT key FROM @runs[{by.sqlite_index}] WHERE {by.condition}{not_empty} AND key < :below "
        "AND key >= :lowest{filters} ORDER BY key DESC LIMIT :max_rows"
    )
    if not by.postgres_source:
        return Query(
            values,
            sqlite=sqlite,
            postgres=f"SELECT key FROM @runs WHERE {by.condition} AND key + 0 < :below AND key + 0 >= :lowest"
            "{filters} ORDER BY key + 0 DESC LIMIT :max_rows",
        )
    return Query(values, sqlite=sqlite, postgres=_indexed_page(by.postgres_source, f"runs.{by.column}", "runs.key"))


def _indexed_page(source: str, column: str, key: str) -> str:
    return (
        f"SELECT runs.key FROM (SELECT :value AS v, :below AS k, :lowest AS f) q CROSS JOIN {source} "
        f"WHERE ({column}, {key}) < (q.v, q.k) AND ({column}, {key}) >= (q.v, q.f){{filters}} "
        f"ORDER BY {column} DESC, {key} DESC LIMIT :max_rows"
    )


def _count(by: _Narrowing) -> Query:
    values = f"{by.values} max_rows:i"
    not_empty = " AND runs.parent <> ''" if by.column == "parent" else ""
    sqlite = (
        f"SELECT count(*) FROM (SELECT 1 FROM @runs[{by.sqlite_index}] WHERE {by.condition}{not_empty} "
        "LIMIT :max_rows) c"
    )
    if by.postgres_source:
        postgres = _indexed_count(by.postgres_source, f"runs.{by.column}", "runs.key")
    else:
        postgres = (
            f"SELECT count(*) FROM (SELECT 1 FROM @runs WHERE {by.condition} ORDER BY {by.column} LIMIT :max_rows) c"
        )
    return Query(values, sqlite=sqlite, postgres=postgres)


def _indexed_count(source: str, column: str, key: str) -> str:
    return (
        f"SELECT count(*) FROM (SELECT 1 FROM (SELECT :value AS v) q CROSS JOIN {source} "
        f"WHERE {column} BETWEEN q.v AND q.v ORDER BY {column}, {key} LIMIT :max_rows) c"
    )


_PAGE_BY_TAG = Query(
    f"value:t {_PAGE}",
    sqlite="SELECT run AS key FROM @run_tags CROSS JOIN @runs ON key = run WHERE tag = :value AND run < :below "
    "AND run >= :lowest{filters} ORDER BY run DESC LIMIT :max_rows",
    postgres=_indexed_page(
        "@run_tags CROSS JOIN LATERAL (SELECT * FROM @runs WHERE key = run_tags.run OFFSET 0) runs",
        "run_tags.tag",
        "run_tags.run",
    ),
)
_COUNT_BY_TAG = Query(
    "value:t max_rows:i",
    sqlite="SELECT count(*) FROM (SELECT 1 FROM @run_tags WHERE tag = :value LIMIT :max_rows) c",
    postgres=_indexed_count("@run_tags", "run_tags.tag", "run_tags.run"),
)
_SQLITE_WORKFLOWS = (
    "WITH RECURSIVE w (name) AS (SELECT min(workflow) FROM @runs UNION ALL "
    "SELECT (SELECT min(workflow) FROM @runs WHERE workflow > w.name) FROM w WHERE w.name IS NOT NULL) "
    "SELECT name FROM w WHERE name IS NOT NULL"
)
_POSTGRES_WORKFLOWS = (
    "WITH RECURSIVE w (name) AS ((SELECT workflow FROM @runs ORDER BY workflow, state, key LIMIT 1) UNION ALL "
    "SELECT (SELECT workflow FROM @runs WHERE workflow > w.name ORDER BY workflow, state, key LIMIT 1) "
    "FROM w WHERE w.name IS NOT NULL) SELECT name FROM w WHERE name IS NOT NULL"
)


class ListStatements(Catalog):
    """Statements for lists and counts of runs."""

    LIST_BY_KEY = Query(
        _PAGE,
        sqlite="SELECT key FROM @runs NOT INDEXED WHERE key < :below AND key >= :lowest{filters} ORDER BY key DESC "
        "LIMIT :max_rows",
        postgres="SELECT key FROM @runs WHERE key < :below AND key >= :lowest{filters} ORDER BY key DESC "
        "LIMIT :max_rows",
    )
    LIST_BY_WORKFLOW_AND_STATE = Query(
        f"workflow:t state:t {_PAGE}",
        sqlite="SELECT key FROM @runs[runs_listed] WHERE workflow = :workflow AND state = :state AND key < :below "
        "AND key >= :lowest{filters} ORDER BY key DESC LIMIT :max_rows",
        postgres="SELECT key FROM (SELECT :workflow AS w, :state AS s, :below AS k, :lowest AS f) q CROSS JOIN @runs "
        "WHERE (workflow, state, key) < (q.w, q.s, q.k) AND (workflow, state, key) >= (q.w, q.s, q.f){filters} "
        "ORDER BY workflow DESC, state DESC, key DESC LIMIT :max_rows",
    )
    LIST_BY_STATE = Query(
        f"state:t {_PAGE}",
        sqlite="SELECT key FROM @runs[runs_in_state] WHERE state || '.' = :state || '.' AND key < :below "
        "AND key >= :lowest{filters} ORDER BY key DESC LIMIT :max_rows",
        postgres="SELECT key FROM (SELECT :state || '.' AS s, :below AS k, :lowest AS f) q CROSS JOIN @runs "
        "WHERE (state || '.', key) < (q.s, q.k) AND (state || '.', key) >= (q.s, q.f){filters} "
        "ORDER BY state || '.' DESC, key DESC LIMIT :max_rows",
    )
    LIST_BY_CONDITION = Group({**{name: _page(by) for name, by in _NARROWINGS.items()}, "tag": _PAGE_BY_TAG})
    COUNT_BY_CONDITION = Group({**{name: _count(by) for name, by in _NARROWINGS.items()}, "tag": _COUNT_BY_TAG})
    FILTERS = Group(
        {
            "states": Query("states:t[]", " AND runs.state || '' IN :states"),
            "workflow": Query("workflow:t", " AND runs.workflow || '' = :workflow"),
            "owner": Query("owner:i", " AND coalesce(runs.owner, -1) = :owner"),
            "parent": Query("parent:t", " AND nullif(runs.parent || '', '') = :parent"),
            "tag": Query(
                "tag:t",
                sqlite=f" AND EXISTS ({_TAGGED})",
                postgres=f" AND EXISTS ({_TAGGED} OFFSET 0)",
            ),
            "id_prefix": Query("first:t last:t", " AND runs.id || '' >= :first AND runs.id || '' < :last"),
            "created": Query("first:f last:f", " AND runs.created_at + 0 >= :first AND runs.created_at + 0 < :last"),
        }
    )
    NEWEST_CREATED = Query(
        "first:f last:f",
        "SELECT max(key + 0) FROM @runs[runs_created] WHERE created_at >= :first AND created_at < :last",
    )
    HAS_CREATED_BELOW = Query(
        "first:f last:f key:i",
        "SELECT 1 FROM @runs[runs_created] WHERE created_at >= :first AND created_at < :last AND key + 0 < :key "
        "ORDER BY created_at, key LIMIT 1",
    )

    # Counts

    KNOWN_WORKFLOWS = Query("", sqlite=_SQLITE_WORKFLOWS, postgres=_POSTGRES_WORKFLOWS)
    COUNT_RUNS = Query("", "SELECT workflow, state, count(*) FROM @runs GROUP BY workflow, state")
    COUNT_RUNS_UP_TO = Query(
        "states:t[] max_count:i",
        sqlite="SELECT w.name, s.value, (SELECT count(*) FROM (SELECT 1 FROM @runs[runs_listed] "
        f"WHERE workflow = w.name AND state = s.value LIMIT :max_count)) FROM ({_SQLITE_WORKFLOWS}) w "
        "CROSS JOIN json_each(:states) s",
        postgres="SELECT w.name, s.state, c.count FROM (SELECT :states AS states, :max_count AS max_count OFFSET 0) q "
        f"CROSS JOIN ({_POSTGRES_WORKFLOWS}) w CROSS JOIN LATERAL unnest(q.states) s (state) CROSS JOIN LATERAL "
        "(SELECT count(*) FROM (SELECT 1 FROM @runs WHERE workflow = w.name AND state = s.state "
        "ORDER BY workflow, state, key LIMIT q.max_count) f) c",
    )
    COUNT_UNFINISHED = Query(
        "workflows:t[]",
        sqlite="SELECT workflow, version, count(*) FROM json_each(:workflows) w "
        "CROSS JOIN (VALUES ('pending'), ('running'), ('waiting')) s "
        "CROSS JOIN @runs[runs_listed] ON workflow = w.value AND state = s.column1 GROUP BY workflow, version",
        postgres="SELECT w.name, r.version, count(*) FROM unnest(:workflows) w (name) "
        "CROSS JOIN (VALUES ('pending'), ('running'), ('waiting')) s (state) CROSS JOIN LATERAL "
        "(SELECT version FROM @runs WHERE workflow = w.name AND state = s.state ORDER BY workflow, state, key) r "
        "GROUP BY w.name, r.version",
    )
