-- The coordinator's store. `body` is the whole record (msgpack of coordinator/core/model.py; of a job's change: rows.py);
-- the other columns are only what is searched by. Times are grid time: seconds since the epoch that never jump.
-- Who changes this file raises SCHEMA in open.py and says there how an older store gets here.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- Jobs as they were submitted. A row is written once and stays as it is: what becomes of the job is in `changes` while it
-- lives, and in `ended` after that.
CREATE TABLE jobs (
    n INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    submitted REAL NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT;

-- Members of a group have their id for a key, and are known by that of their group.
CREATE UNIQUE INDEX jobs_keys ON jobs (user, key) WHERE key <> id;
CREATE INDEX jobs_named ON jobs (name) WHERE name <> '';
CREATE INDEX jobs_mine ON jobs (user, submitted);

-- The jobs that have not ended.
CREATE TABLE live (
    n INTEGER PRIMARY KEY
) STRICT;

-- What has changed of live jobs since their submission, with their newest allocation: few rows on few pages.
CREATE TABLE changes (
    n INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    node TEXT NOT NULL,
    body BLOB NOT NULL,
    allocation BLOB,
    sum INTEGER NOT NULL,
    allocation_sum INTEGER
) STRICT;

-- What has changed of ended jobs since their submission: written once.
CREATE TABLE ended (
    n INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    ended REAL NOT NULL,
    boost INTEGER NOT NULL, -- whether it is one
    failed INTEGER NOT NULL, -- whether it has ended, not with exit code 0, and was not cancelled
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT;

CREATE INDEX ended_at ON ended (ended);
CREATE INDEX ended_of ON ended (user, ended);
CREATE INDEX ended_boosts ON ended (ended) WHERE boost = 1;
CREATE INDEX ended_failed ON ended (ended) WHERE failed = 1;

CREATE TRIGGER jobs_begin AFTER INSERT ON jobs BEGIN
    INSERT INTO live (n) VALUES (new.n);
END;

CREATE TRIGGER jobs_end AFTER INSERT ON ended BEGIN
    DELETE FROM live WHERE n = new.n;
    DELETE FROM changes WHERE n = new.n;
END;

CREATE TRIGGER ended_removed AFTER DELETE ON ended BEGIN
    DELETE FROM jobs WHERE n = old.n;
END;

-- For people, and for checks: each job with what has become of it.
CREATE VIEW whole AS
    SELECT jobs.n, id, key, jobs.user, name, submitted, jobs.body,
        CASE WHEN ended.n IS NOT NULL THEN 'ended' ELSE coalesce(changes.state, 'waiting') END AS state,
        coalesce(ended.body, changes.body) AS change,
        coalesce(changes.node, '') AS node,
        coalesce(ended.ended, 0.0) AS ended,
        changes.allocation
    FROM jobs LEFT JOIN changes ON changes.n = jobs.n LEFT JOIN ended ON ended.n = jobs.n;

-- Allocations that came to nothing, while their jobs went on.
CREATE TABLE past_allocations (
    id TEXT PRIMARY KEY,
    node TEXT NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Many jobs of one submission. Its members are the jobs `<id>_<index>`.
CREATE TABLE groups (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    user TEXT NOT NULL,
    submitted REAL NOT NULL,
    ended REAL NOT NULL, -- when the last member had; 0: not yet
    body BLOB NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (user, key)
) STRICT;

CREATE INDEX groups_live ON groups (submitted) WHERE ended = 0;
CREATE INDEX groups_ended ON groups (ended) WHERE ended > 0;

-- What a removed job leaves goes with it.
CREATE TRIGGER jobs_removed AFTER DELETE ON jobs BEGIN
    DELETE FROM live WHERE n = old.n;
    DELETE FROM changes WHERE n = old.n;
    DELETE FROM ended WHERE n = old.n;
    DELETE FROM past_allocations WHERE id >= old.id || '.' AND id < old.id || '/';
END;

-- A group goes with the last of its members.
CREATE TRIGGER members_removed AFTER DELETE ON jobs WHEN instr(old.id, '_') > 0 BEGIN
    DELETE FROM groups WHERE id = substr(old.id, 1, instr(old.id, '_') - 1) AND ended > 0 AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.id > groups.id || '_' AND jobs.id < groups.id || '_~'
    );
END;

CREATE TABLE nodes (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    seen REAL NOT NULL, -- when its agent was last known to be connected
    sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the operator has ordered for nodes. It outlasts their agents, and is removed by nobody but the operator.
CREATE TABLE node_orders (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What users held, for their shares: a decayed average, as it was at that time. What they hold follows from the jobs.
CREATE TABLE shares (
    user TEXT PRIMARY KEY,
    past REAL NOT NULL,
    at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- What users have lent each other: a decayed average, as it was at that time. What is lent now follows from the jobs.
CREATE TABLE loans (
    lender TEXT NOT NULL,
    borrower TEXT NOT NULL,
    past REAL NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (lender, borrower)
) STRICT, WITHOUT ROWID;

-- The rights that operators have granted, by whom they are for (`user/ann`, `group/lab`, `default/`).
CREATE TABLE rights (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What pools with quotas of hours have spent of a day, by ended attempts: thousandths times milliseconds.
CREATE TABLE spent (
    pool TEXT PRIMARY KEY,
    day INTEGER NOT NULL,
    cpu INTEGER NOT NULL,
    gpu INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages that came too late or from nowhere: nothing was changed by them. The oldest go.
CREATE TABLE audit (
    at REAL NOT NULL,
    node TEXT NOT NULL,
    what TEXT NOT NULL
) STRICT;

-- Preemptions (protocol/messages/operator.py). `jobs` are the ids of all concerned, each between spaces. The oldest go.
CREATE TABLE receipts (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    node TEXT NOT NULL,
    jobs TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX receipts_at ON receipts (at);
