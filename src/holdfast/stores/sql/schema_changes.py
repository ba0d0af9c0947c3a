"""What has changed in the tables since ``tables.BASELINE``, as text that ``schema.render`` translates."""

DAILY_RUNS = r"""
CREATE TABLE @daily_runs (               -- see stores.daily_usage
    day       int NOT NULL,              -- days since 1970-01-01, in UTC
    workflow  text NOT NULL,
    run_count int NOT NULL[sqlite: ,
    PRIMARY KEY (day, workflow)]
)[sqlite:  STRICT, WITHOUT ROWID]
[postgres:  WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)];
[postgres: CREATE INDEX daily_runs_day ON @daily_runs (day, workflow);]
[sqlite:
CREATE TRIGGER runs_counted AFTER INSERT ON @runs BEGIN
    INSERT INTO daily_runs (day, workflow, run_count)
    VALUES (CAST(NEW.created_at / 86400 AS INTEGER), NEW.workflow, 1)
    ON CONFLICT (day, workflow) DO UPDATE SET run_count = run_count + 1;
END;
CREATE TRIGGER runs_uncounted AFTER DELETE ON @runs BEGIN
    UPDATE daily_runs SET run_count = run_count - 1
    WHERE day = CAST(OLD.created_at / 86400 AS INTEGER) AND workflow = OLD.workflow;
END;
]
[postgres:
-- With the rights of the owner of the tables: other users may have been granted rights before this table existed.
CREATE FUNCTION @count_daily_runs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    change record;
    free_row tid;
BEGIN
    FOR change IN SELECT floor(created_at / 86400)::bigint AS day, workflow,
            CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END AS run_count FROM changed GROUP BY 1, 2
    LOOP
        SELECT ctid INTO free_row FROM @daily_runs WHERE day = change.day AND workflow = change.workflow
            LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE @daily_runs SET run_count = run_count + change.run_count WHERE ctid = free_row;
        ELSE
            INSERT INTO @daily_runs VALUES (change.day, change.workflow, change.run_count);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER runs_counted AFTER INSERT ON @runs REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION @count_daily_runs();
CREATE TRIGGER runs_uncounted AFTER DELETE ON @runs REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION @count_daily_runs();
]
"""
COUNT_EARLIER_RUNS = """
INSERT INTO @daily_runs (day, workflow, run_count)
SELECT day, workflow, sum(run_count) FROM (
    SELECT [sqlite: CAST(created_at / 86400 AS INTEGER)][postgres: floor(created_at / 86400)::bigint] AS day, workflow,
        count(*) AS run_count FROM @runs GROUP BY 1, 2
    UNION ALL SELECT day, workflow, -run_count FROM @daily_runs
) c GROUP BY day, workflow HAVING sum(run_count) <> 0;
"""
"""The runs from before the triggers. It adds what is missing, in one snapshot, so a repeat of it adds nothing."""

TRACE_PARENTS = """
ALTER TABLE @runs ADD COLUMN trace_parent [sqlite: TEXT][postgres: text COLLATE "C"] NOT NULL DEFAULT '';
"""
"""See ``NewRun.trace_parent``."""

COMPACT_RECORDS = r"""[postgres:
-- A step takes 41 bytes less: the widest columns come first, so that nothing is padded, and none is wider than its
-- values. A table with rows is not rewritten, and one with granted rights would lose them: they keep their columns.
DO $$
DECLARE
    is_new boolean := relacl IS NULL FROM pg_catalog.pg_class WHERE oid = '@records'::regclass;
BEGIN
    IF is_new AND NOT EXISTS (SELECT 1 FROM @records) THEN
        LOCK TABLE @records IN ACCESS EXCLUSIVE MODE;
        is_new := NOT EXISTS (SELECT 1 FROM @records);
    ELSE
        is_new := false;
    END IF;
    IF is_new THEN
        DROP TABLE @records;
        CREATE TABLE @records (
            run        int NOT NULL,
            at         float NOT NULL,
            started_at float NOT NULL,
            seq        integer NOT NULL,
            position   integer NOT NULL,
            worker     integer NOT NULL,
            epoch      integer NOT NULL,
            attempts   integer NOT NULL,
            kind       small NOT NULL,
            ok         small NOT NULL,
            payload    bytes,
            name       text NOT NULL,
            preview    text NOT NULL,
            PRIMARY KEY (run, seq)
        ) WITH (toast_tuple_target = 8160);
        ALTER TABLE @records ALTER payload SET STORAGE EXTERNAL;
        CREATE INDEX records_large_payload ON @records (payload) WHERE octet_length(payload) = 33;
    END IF;
END $$;
]
"""
