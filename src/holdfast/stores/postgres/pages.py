"""The statements that find the keys of a page of runs (see ``stores.sql.listing``).

Each has one index that it may use, whatever else is asked for. The order must come from that index, so all its columns
are named in ``ORDER BY``, and none of them is bound to a single value: that would let the planner leave it out, and
choose another index. What is only to be checked row by row is written so that no index can serve it (``key + 0``), not
even one whose condition it implies.
"""

from __future__ import annotations

from typing import Final

_KNOWN_WORKFLOWS = (
    "WITH RECURSIVE w (name) AS ((SELECT workflow FROM {s}.runs ORDER BY workflow, state, key LIMIT 1) UNION ALL "
    "SELECT (SELECT workflow FROM {s}.runs WHERE workflow > w.name ORDER BY workflow, state, key LIMIT 1) "
    "FROM w WHERE w.name IS NOT NULL) SELECT name FROM w WHERE name IS NOT NULL"
)

LISTS: Final[dict[str, str]] = {
    "LIST_BY_KEY": "SELECT key FROM {s}.runs WHERE key < %s AND key >= %s{filters} ORDER BY key DESC LIMIT %s",
    "LIST_STRETCH": (
        "SELECT key FROM (SELECT %s::text AS w, %s::text AS s, %s::bigint AS k, %s::bigint AS f) q CROSS JOIN {s}.runs "
        "WHERE (workflow, state, key) < (q.w, q.s, q.k) AND (workflow, state, key) >= (q.w, q.s, q.f){filters} "
        "ORDER BY workflow DESC, state DESC, key DESC LIMIT %s"
    ),
    "LIST_STATE": (
        "SELECT key FROM (SELECT %s::text || '.' AS s, %s::bigint AS k, %s::bigint AS f) q CROSS JOIN {s}.runs "
        "WHERE (state || '.', key) < (q.s, q.k) AND (state || '.', key) >= (q.s, q.f){filters} "
        "ORDER BY state || '.' DESC, key DESC LIMIT %s"
    ),
    "NEWEST_CREATED": "SELECT max(key + 0) FROM {s}.runs WHERE created_at >= %s AND created_at < %s",
    "KNOWN_WORKFLOWS": _KNOWN_WORKFLOWS,
    "CREATED_BELOW": (
        "SELECT 1 FROM {s}.runs WHERE created_at >= %s AND created_at < %s AND key + 0 < %s "
        "ORDER BY created_at, key LIMIT 1"
    ),
    "COUNT_SOME": (
        f"SELECT w.name, s.state, c.count FROM (SELECT %s::text[] AS states, %s::bigint AS most OFFSET 0) q "
        f"CROSS JOIN ({_KNOWN_WORKFLOWS}) w CROSS JOIN LATERAL unnest(q.states) s (state) CROSS JOIN LATERAL "
        "(SELECT count(*) FROM (SELECT 1 FROM {s}.runs WHERE workflow = w.name AND state = s.state "
        "ORDER BY workflow, state, key LIMIT q.most) f) c"
    ),
    "COUNT_RUNS": "SELECT workflow, state, count(*) FROM {s}.runs GROUP BY workflow, state",
    "COUNT_UNFINISHED": (
        "SELECT w.name, r.version, count(*) FROM unnest(%s::text[]) w (name) "
        "CROSS JOIN (VALUES ('pending'), ('running'), ('waiting')) s (state) CROSS JOIN LATERAL "
        "(SELECT version FROM {s}.runs WHERE workflow = w.name AND state = s.state ORDER BY workflow, state, key) r "
        "GROUP BY w.name, r.version"
    ),
}


def _page(given: str, source: str, column: str, key: str) -> str:
    """A page of the runs that share a value of ``column``, from an index of that and of the key."""
    return (
        f"SELECT runs.key FROM (SELECT %s::{given} AS v, %s::bigint AS k, %s::bigint AS f) q CROSS JOIN {source} "
        f"WHERE ({column}, {key}) < (q.v, q.k) AND ({column}, {key}) >= (q.v, q.f){{filters}} "
        f"ORDER BY {column} DESC, {key} DESC LIMIT %s"
    )


def _few(condition: str) -> str:
    """A page of so few runs that all of them may be read and sorted."""
    return (
        f"SELECT key FROM {{s}}.runs WHERE {condition} AND key + 0 < %s AND key + 0 >= %s{{filters}} "
        f"ORDER BY key + 0 DESC LIMIT %s"
    )


def _count(given: str, source: str, column: str, key: str) -> str:
    return (
        f"SELECT count(*) FROM (SELECT 1 FROM (SELECT %s::{given} AS v) q CROSS JOIN {source} "
        f"WHERE {column} BETWEEN q.v AND q.v ORDER BY {column}, {key} LIMIT %s) c"
    )


def _count_between(column: str) -> str:
    return (
        f"SELECT count(*) FROM (SELECT 1 FROM {{s}}.runs WHERE {column} >= %s AND {column} < %s "
        f"ORDER BY {column} LIMIT %s) c"
    )


_HELD = ("bigint", "(SELECT * FROM {s}.runs WHERE owner IS NOT NULL) runs", "runs.owner", "runs.key")
_CHILDREN = ("text", "(SELECT * FROM {s}.runs WHERE parent <> '') runs", "runs.parent", "runs.key")
_TAGGED = ("text", "{s}.run_tags", "run_tags.tag", "run_tags.run")
_TAGGED_RUNS = (
    "text",
    "{s}.run_tags CROSS JOIN LATERAL (SELECT * FROM {s}.runs WHERE key = run_tags.run OFFSET 0) runs",
    "run_tags.tag",
    "run_tags.run",
)
LIST_BY: Final[dict[str, str]] = {
    "owner": _page(*_HELD),
    "parent": _page(*_CHILDREN),
    "tag": _page(*_TAGGED_RUNS),
    "id_prefix": _few("id >= %s AND id < %s"),
    "created": _few("created_at >= %s AND created_at < %s"),
}
HOW_MANY: Final[dict[str, str]] = {
    "owner": _count(*_HELD),
    "parent": _count(*_CHILDREN),
    "tag": _count(*_TAGGED),
    "id_prefix": _count_between("id"),
    "created": _count_between("created_at"),
}
FILTERS: Final[dict[str, str]] = {
    "states": " AND runs.state || '' = ANY(%s::text[])",
    "workflow": " AND runs.workflow || '' = %s",
    "owner": " AND coalesce(runs.owner, -1) = %s",
    "parent": " AND nullif(runs.parent || '', '') = %s",
    "tag": " AND EXISTS (SELECT 1 FROM {s}.run_tags t WHERE t.tag = %s AND t.run = runs.key OFFSET 0)",
    "id_prefix": " AND runs.id || '' >= %s AND runs.id || '' < %s",
    "created": " AND runs.created_at + 0 >= %s AND runs.created_at + 0 < %s",
}

CONTAINING = (
    " AND (runs.id {test} OR runs.workflow {test} "
    "OR (runs.tags <> '[]' AND EXISTS (SELECT 1 FROM {s}.run_tags t WHERE t.run = runs.key AND t.tag {test} OFFSET 0)) "
    "OR (runs.error IS NOT NULL AND {s}.error_words(runs.error) {test}))"
)
