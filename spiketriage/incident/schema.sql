-- The record of one incident. Rows are only ever added; a newer row supersedes an older one by `number`.
-- In every table of results: `number` counts its rows from 1, `command` is the journal number of the command that
-- added the row (0: a command that keeps no journal row), `digest` is the SHA-256 of the row before and this row.
-- DuckDB ranks NaN above every number, so a nonfinite value is NULL in its column and spelled in `nonfinite`,
-- as in {loss=NaN, grad_norm=Infinity}. A NULL that `nonfinite` does not name is a value that nobody measured.
-- `generations` has no such number: its `nonfinite` lists the tensors that hold NaN or an infinity.
-- A journal row seals the last row of every table of results and of `meta` (`heads`); `meta.seal` is the digest of all
-- heads, the journal's included, as the last command left them: so the last row of any table is missed too.

CREATE TABLE meta (schema VARCHAR NOT NULL, created_at VARCHAR NOT NULL, run VARCHAR NOT NULL, seal VARCHAR NOT NULL);

CREATE TABLE journal (
    number BIGINT NOT NULL, "at" VARCHAR NOT NULL, who VARCHAR NOT NULL, host VARCHAR NOT NULL, argv VARCHAR NOT NULL,
    version VARCHAR NOT NULL, outcome VARCHAR NOT NULL, exit_code BIGINT NOT NULL, duration_s DOUBLE NOT NULL,
    trusted VARCHAR NOT NULL,
    previous VARCHAR NOT NULL, digest VARCHAR NOT NULL,
    heads MAP(VARCHAR, VARCHAR) NOT NULL
);

CREATE TABLE facts (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    key VARCHAR NOT NULL, value VARCHAR NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE anchors (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    onset BIGINT, suspect BIGINT, reason VARCHAR NOT NULL, known_good VARCHAR, older_good VARCHAR,
    refused MAP(VARCHAR, VARCHAR) NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE freezes (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    is_whole BOOLEAN NOT NULL, gaps VARCHAR[] NOT NULL,
    telemetry_problems VARCHAR[] NOT NULL, telemetry_notes VARCHAR[] NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE spikes (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    onset BIGINT, suspect BIGINT,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE generations (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    name VARCHAR NOT NULL, step BIGINT, layout VARCHAR NOT NULL, complete BOOLEAN NOT NULL, world_size BIGINT,
    nonfinite VARCHAR[] NOT NULL, problems VARCHAR[] NOT NULL, odd VARCHAR[] NOT NULL,
    interrupted VARCHAR NOT NULL, notes VARCHAR[] NOT NULL,
    stated_steps MAP(VARCHAR, BIGINT) NOT NULL, file_digests MAP(VARCHAR, VARCHAR) NOT NULL,
    digest VARCHAR NOT NULL
);

CREATE TABLE artifacts (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    path VARCHAR NOT NULL, kind VARCHAR NOT NULL, size_bytes BIGINT NOT NULL, mtime_ns BIGINT NOT NULL,
    digest_measured VARCHAR NOT NULL, expected VARCHAR NOT NULL, kept VARCHAR NOT NULL, note VARCHAR NOT NULL,
    source_digest VARCHAR NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE findings (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    name VARCHAR NOT NULL, outcome VARCHAR NOT NULL, summary VARCHAR NOT NULL, source VARCHAR NOT NULL,
    where_step BIGINT, where_stage VARCHAR, where_key VARCHAR, where_rank BIGINT, where_path VARCHAR,
    where_field VARCHAR,
    expected VARCHAR NOT NULL, seen VARCHAR NOT NULL, magnitude DOUBLE, judged BOOLEAN NOT NULL,
    role VARCHAR NOT NULL, dates_onset BOOLEAN NOT NULL,
    trials VARCHAR[] NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE trials (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    key VARCHAR NOT NULL, kind VARCHAR NOT NULL, purpose VARCHAR NOT NULL, factors MAP(VARCHAR, VARCHAR) NOT NULL,
    first_step BIGINT NOT NULL, last_step BIGINT NOT NULL, repeat BIGINT NOT NULL, state VARCHAR NOT NULL,
    num_steps_executed BIGINT NOT NULL, wall_s DOUBLE, summary VARCHAR NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE steps (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    attempt BIGINT NOT NULL, step BIGINT NOT NULL, loss DOUBLE, grad_norm DOUBLE, update_norm DOUBLE, lr DOUBLE,
    alarm VARCHAR NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE verdicts (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    kind VARCHAR NOT NULL, cause VARCHAR, cause_class VARCHAR, candidates VARCHAR[] NOT NULL,
    beside VARCHAR[] NOT NULL,
    explanation VARCHAR NOT NULL,
    where_step BIGINT, where_stage VARCHAR, where_key VARCHAR, where_rank BIGINT, where_path VARCHAR,
    where_field VARCHAR,
    causes STRUCT(
        name VARCHAR, cause_class VARCHAR, status VARCHAR, supporting VARCHAR[], contradicting VARCHAR[],
        untested VARCHAR[], unexplained VARCHAR[]
    )[] NOT NULL,
    not_tested VARCHAR[] NOT NULL, repair VARCHAR NOT NULL, next_experiment VARCHAR, steps_executed BIGINT NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

-- What the experiments start from, and which of them are possible: `bisect` reads these instead of the evidence.
CREATE TABLE setting (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    basis VARCHAR NOT NULL, suspect BIGINT NOT NULL, alarmed BOOLEAN NOT NULL, spiked BOOLEAN NOT NULL,
    unreplayable VARCHAR NOT NULL, replay_steps BIGINT NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

CREATE TABLE experiments (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    name VARCHAR NOT NULL, possible BOOLEAN NOT NULL, num_steps BIGINT NOT NULL, why VARCHAR NOT NULL,
    trials VARCHAR[] NOT NULL, trial_steps BIGINT[] NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);

-- What commands wrote into this folder. A folder that is `begun` and not `written` was left by a command that was killed.
CREATE TABLE files (
    number BIGINT NOT NULL, command BIGINT NOT NULL,
    path VARCHAR NOT NULL, state VARCHAR NOT NULL, sha256 VARCHAR NOT NULL,
    nonfinite MAP(VARCHAR, VARCHAR) NOT NULL, digest VARCHAR NOT NULL
);
