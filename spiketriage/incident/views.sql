-- What a colleague queries. Each latest_* view holds the newest row of every key, in the order in which the keys
-- first appeared (`first_number`). No command of ours reads a view: somebody may have put another in its place.

CREATE VIEW latest_facts AS
SELECT *, min(number) OVER (PARTITION BY key) AS first_number FROM facts
QUALIFY row_number() OVER (PARTITION BY key ORDER BY number DESC) = 1 ORDER BY first_number;

CREATE VIEW latest_anchors AS
SELECT *, number AS first_number FROM anchors QUALIFY row_number() OVER (ORDER BY number DESC) = 1;

-- How the last freeze ended, and where it saw the spike; `latest_anchors` may have been moved by a check since.
CREATE VIEW latest_freezes AS
SELECT *, number AS first_number FROM freezes QUALIFY row_number() OVER (ORDER BY number DESC) = 1;

CREATE VIEW latest_spikes AS
SELECT *, number AS first_number FROM spikes QUALIFY row_number() OVER (ORDER BY number DESC) = 1;

CREATE VIEW latest_generations AS
SELECT *, min(number) OVER (PARTITION BY name) AS first_number FROM generations
QUALIFY row_number() OVER (PARTITION BY name ORDER BY number DESC) = 1 ORDER BY step NULLS FIRST, name;

CREATE VIEW latest_artifacts AS
SELECT *, min(number) OVER (PARTITION BY path) AS first_number FROM artifacts
QUALIFY row_number() OVER (PARTITION BY path ORDER BY number DESC) = 1 ORDER BY first_number;

CREATE VIEW latest_findings AS
SELECT *, min(number) OVER (PARTITION BY name) AS first_number FROM findings
QUALIFY row_number() OVER (PARTITION BY name ORDER BY number DESC) = 1 ORDER BY first_number;

CREATE VIEW latest_trials AS
SELECT *, min(number) OVER (PARTITION BY key) AS first_number FROM trials
QUALIFY row_number() OVER (PARTITION BY key ORDER BY number DESC) = 1 ORDER BY first_number;

CREATE VIEW latest_steps AS
SELECT *, min(number) OVER (PARTITION BY attempt, step) AS first_number FROM steps
QUALIFY row_number() OVER (PARTITION BY attempt, step ORDER BY number DESC) = 1 ORDER BY attempt, step;

CREATE VIEW latest_verdicts AS
SELECT *, number AS first_number FROM verdicts QUALIFY row_number() OVER (ORDER BY number DESC) = 1;

CREATE VIEW latest_setting AS
SELECT *, number AS first_number FROM setting QUALIFY row_number() OVER (ORDER BY number DESC) = 1;

CREATE VIEW latest_experiments AS
SELECT *, min(number) OVER (PARTITION BY name) AS first_number FROM experiments
QUALIFY row_number() OVER (PARTITION BY name ORDER BY number DESC) = 1 ORDER BY first_number;

CREATE VIEW latest_files AS
SELECT *, min(number) OVER (PARTITION BY path) AS first_number FROM files
QUALIFY row_number() OVER (PARTITION BY path ORDER BY number DESC) = 1 ORDER BY first_number;

-- One row a command: when, what, how it ended, and how many results it added.
CREATE VIEW timeline AS
SELECT number, "at" AS started_at, who, argv, outcome, exit_code, duration_s, trusted,
    (SELECT count(*) FROM findings f WHERE f.command = j.number) AS num_findings,
    (SELECT count(*) FROM trials t WHERE t.command = j.number) AS num_trials,
    (SELECT count(*) FROM artifacts a WHERE a.command = j.number) AS num_artifacts,
    (SELECT max_by(v.kind, v.number) FROM verdicts v WHERE v.command = j.number) AS verdict
FROM journal j ORDER BY number;

-- One row a purpose: how many trials, how many of them ended, and what they cost.
CREATE VIEW trial_summary AS
SELECT purpose, kind, count(*) AS num_trials, count(*) FILTER (state = 'done') AS num_done,
    count(*) FILTER (state = 'failed') AS num_failed, sum(num_steps_executed) AS num_steps_executed,
    sum(wall_s) AS wall_s
FROM latest_trials GROUP BY purpose, kind ORDER BY min(first_number);
