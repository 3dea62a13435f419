-- The coordinator's store. `body` is the whole record (msgpack of coordinator/core/model.py); the other columns are only
-- what is searched by. Times are grid time: seconds since the epoch that never jump.
-- Who changes this file raises SCHEMA in open.py and says there how an older store gets here.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    submitted REAL NOT NULL,
    ended REAL NOT NULL,
    node TEXT NOT NULL,
    body BLOB NOT NULL,
    allocation BLOB, -- the job's newest one: both change together, so one row holds both
    boost INTEGER NOT NULL, -- whether it is one
    sum INTEGER NOT NULL, -- of the row without its allocation (sums.py)
    allocation_sum INTEGER,
    UNIQUE (user, key)
) STRICT;

-- By the time of submission, so that what is near in time is on the same few pages of it.
CREATE INDEX jobs_live ON jobs (submitted) WHERE state <> 'ended';
CREATE INDEX jobs_ended ON jobs (ended) WHERE state = 'ended';
CREATE INDEX jobs_ended_of ON jobs (user, ended) WHERE state = 'ended';
CREATE INDEX jobs_boosts ON jobs (ended, id) WHERE boost = 1 AND state = 'ended';
CREATE INDEX jobs_named ON jobs (name) WHERE name <> '';
CREATE INDEX jobs_mine ON jobs (user, submitted);

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
