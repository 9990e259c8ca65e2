-- The schema of dllmd's database, version 1.
--
-- A later version is a numbered file beside this one that starts from here; store/migrate.c runs
-- what is missing, each in one transaction, and never a file twice. A migration loses no row.
--
-- Times are seconds since 1970 UTC. Texts named *_json are JSON. Ids that clients see grow and are
-- never used twice (AUTOINCREMENT), so they serve as cursors.

CREATE TABLE nodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    address TEXT, -- URL of its API; NULL: this daemon
    version TEXT NOT NULL,
    draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
    cpu_slots INTEGER NOT NULL CHECK (cpu_slots >= 0),
    gpu_slots INTEGER NOT NULL CHECK (gpu_slots >= 0),
    resources_json TEXT NOT NULL CHECK (json_valid(resources_json)),
    registered_s REAL NOT NULL,
    seen_s REAL NOT NULL
) STRICT;

-- A row exists when the artifact is complete.
CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash TEXT NOT NULL UNIQUE,
    name TEXT,
    deleting INTEGER NOT NULL DEFAULT 0 CHECK (deleting IN (0, 1)),
    path TEXT NOT NULL,
    spec_json TEXT NOT NULL CHECK (json_valid(spec_json)),
    documents INTEGER NOT NULL CHECK (documents >= 0),
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    bytes INTEGER NOT NULL CHECK (bytes >= 0),
    unigram_entropy REAL, -- NULL: not a number
    stats_json TEXT CHECK (stats_json IS NULL OR json_valid(stats_json)),
    created_s REAL NOT NULL
) STRICT;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'preparing', 'starting', 'running', 'restarting',
                                         'paused', 'succeeded', 'failed', 'cancelled')),
    intent TEXT NOT NULL CHECK (intent IN ('run', 'pause', 'cancel')),
    reason TEXT,
    spec_json TEXT NOT NULL CHECK (json_valid(spec_json)),
    device TEXT NOT NULL CHECK (device IN ('cpu', 'cuda')),
    world INTEGER NOT NULL CHECK (world >= 1),
    steps INTEGER NOT NULL CHECK (steps >= 0),
    step INTEGER NOT NULL DEFAULT 0 CHECK (step >= 0),
    attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    restarts INTEGER NOT NULL DEFAULT 0 CHECK (restarts >= 0),
    dataset_id INTEGER REFERENCES datasets ON DELETE SET NULL,
    created_by TEXT,
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL,
    started_s REAL,
    finished_s REAL,
    progress_s REAL,
    not_before_s REAL,
    version INTEGER NOT NULL DEFAULT 1,
    CHECK ((finished_s IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled')))
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_name ON jobs (name, id);
CREATE INDEX jobs_by_time ON jobs (created_s);
CREATE INDEX jobs_by_dataset ON jobs (dataset_id) WHERE dataset_id IS NOT NULL;

CREATE TABLE job_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    attempt INTEGER,
    rank INTEGER,
    time_s REAL NOT NULL,
    type TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT,
    message TEXT,
    data_json TEXT CHECK (data_json IS NULL OR json_valid(data_json))
) STRICT;
CREATE INDEX job_events_by_job ON job_events (job_id, id);

CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL CHECK (step >= 0),
    deleting INTEGER NOT NULL DEFAULT 0 CHECK (deleting IN (0, 1)),
    directory TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    data_position INTEGER NOT NULL CHECK (data_position >= 0),
    run_state_json TEXT NOT NULL CHECK (json_valid(run_state_json)),
    spec_json TEXT NOT NULL CHECK (json_valid(spec_json)),
    manifest_json TEXT NOT NULL CHECK (json_valid(manifest_json)),
    created_s REAL NOT NULL,
    FOREIGN KEY (job_id, attempt) REFERENCES attempts
) STRICT;
CREATE UNIQUE INDEX checkpoints_by_step ON checkpoints (job_id, step) WHERE deleting = 0;
CREATE INDEX checkpoints_by_job ON checkpoints (job_id, id);
CREATE INDEX checkpoints_by_attempt ON checkpoints (job_id, attempt);
CREATE INDEX checkpoints_deleting ON checkpoints (id) WHERE deleting = 1;

CREATE TABLE checkpoint_shards (
    checkpoint_id INTEGER NOT NULL REFERENCES checkpoints ON DELETE CASCADE,
    rank INTEGER NOT NULL CHECK (rank >= 0),
    file TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    xxh3 TEXT NOT NULL CHECK (length(xxh3) = 32),
    PRIMARY KEY (checkpoint_id, file)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    job_id INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number INTEGER NOT NULL CHECK (number >= 1),
    state TEXT NOT NULL CHECK (state IN ('starting', 'running', 'stopping', 'ended')),
    outcome TEXT CHECK (outcome IN ('done', 'stopped', 'failed')),
    reason TEXT,
    directory TEXT,
    -- Not a foreign key: history stays true when the checkpoint is deleted.
    checkpoint_id INTEGER,
    start_step INTEGER NOT NULL CHECK (start_step >= 0),
    created_s REAL NOT NULL,
    ended_s REAL,
    lease_until_s REAL,
    PRIMARY KEY (job_id, number),
    CHECK ((outcome IS NOT NULL) = (state = 'ended') AND (ended_s IS NOT NULL) = (state = 'ended'))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX attempts_live ON attempts (job_id) WHERE state <> 'ended';

CREATE TABLE workers (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL CHECK (rank >= 0),
    node_id INTEGER NOT NULL REFERENCES nodes,
    gpu INTEGER CHECK (gpu >= 0),
    state TEXT NOT NULL CHECK (state IN ('launching', 'launched', 'running', 'ended')),
    secret_hash BLOB NOT NULL CHECK (length(secret_hash) = 32),
    pid INTEGER,
    start_time INTEGER,
    last_seq INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    device TEXT,
    threads INTEGER,
    memory_bytes INTEGER,
    exit_status TEXT CHECK (exit_status IN ('done', 'stopped', 'error', 'killed')),
    exit_kind TEXT,
    reason TEXT,
    created_s REAL NOT NULL,
    started_s REAL,
    ended_s REAL,
    PRIMARY KEY (job_id, attempt, rank),
    FOREIGN KEY (job_id, attempt) REFERENCES attempts ON DELETE CASCADE,
    CHECK ((exit_status IS NOT NULL) = (state = 'ended') AND
           (ended_s IS NOT NULL) = (state = 'ended'))
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_live ON workers (job_id, attempt, rank) WHERE state <> 'ended';
CREATE INDEX workers_by_node ON workers (node_id);

-- One row a value, by key, so a series is one contiguous range: a million values take 20 MB and six
-- seconds to insert, and one of thirteen keys is read in 20 ms. A row a step with packed values
-- would take 13 MB and two seconds, but SQL could not look inside, and two records of one step
-- would have to be merged. NULL is NaN, which SQLite lacks.
CREATE TABLE metric_keys (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE metrics (
    job_id INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    key_id INTEGER NOT NULL REFERENCES metric_keys,
    step INTEGER NOT NULL CHECK (step >= 0),
    value REAL,
    PRIMARY KEY (job_id, key_id, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL CHECK (type IN ('prepare', 'export', 'sample', 'acceptance', 'features')),
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    parameters_json TEXT NOT NULL CHECK (json_valid(parameters_json)),
    result_json TEXT CHECK (result_json IS NULL OR json_valid(result_json)),
    reason TEXT,
    job_id INTEGER REFERENCES jobs ON DELETE CASCADE,
    -- Not foreign keys: a finished task stays when what it used or made is deleted.
    checkpoint_id INTEGER,
    dataset_id INTEGER,
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    unit TEXT,
    created_by TEXT,
    created_s REAL NOT NULL,
    started_s REAL,
    finished_s REAL,
    version INTEGER NOT NULL DEFAULT 1,
    node_id INTEGER REFERENCES nodes,
    gpu INTEGER CHECK (gpu >= 0),
    pid INTEGER,
    start_time INTEGER,
    last_seq INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    secret_hash BLOB CHECK (length(secret_hash) = 32),
    directory TEXT,
    CHECK ((finished_s IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled')))
) STRICT;
CREATE INDEX tasks_by_state ON tasks (state, id);
CREATE INDEX tasks_by_job ON tasks (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX tasks_by_checkpoint ON tasks (checkpoint_id, id) WHERE checkpoint_id IS NOT NULL;
CREATE INDEX tasks_by_node ON tasks (node_id) WHERE node_id IS NOT NULL;

CREATE TABLE tokens (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('read', 'submit', 'admin', 'agent')),
    hash BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    created_s REAL NOT NULL,
    expires_s REAL,
    revoked_s REAL
) STRICT;
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE revoked_s IS NULL;

CREATE TABLE idempotency (
    principal TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    key TEXT NOT NULL,
    request_hash BLOB NOT NULL CHECK (length(request_hash) = 32),
    status INTEGER NOT NULL CHECK (status BETWEEN 100 AND 599),
    body TEXT NOT NULL,
    location TEXT,
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    PRIMARY KEY (principal, endpoint, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_expiry ON idempotency (expires_s);
