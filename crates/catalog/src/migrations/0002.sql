-- Version 2: what sites hold, as set digests (digest_set.rs). Rows of the sums are each writer's own; number 0 is what was
-- there before this version.

-- When the file was taken in at its site of origin; 0: when its id says.
ALTER TABLE file ADD COLUMN origin BIGINT NOT NULL DEFAULT 0;

-- Where the replica stands in the set of its site.
ALTER TABLE replica ADD COLUMN origin BIGINT NOT NULL DEFAULT 0;
ALTER TABLE replica ADD COLUMN rule BIGINT NOT NULL DEFAULT 0;
ALTER TABLE replica ADD COLUMN day BIGINT NOT NULL DEFAULT 0;
ALTER TABLE replica ADD COLUMN file_key {key} NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS replica_set ON replica (site, origin, rule, day, file_key);

CREATE TABLE IF NOT EXISTS set_day (
  holder BIGINT NOT NULL, origin BIGINT NOT NULL, rule BIGINT NOT NULL, day BIGINT NOT NULL, log BIGINT NOT NULL,
  files BIGINT NOT NULL, hash {key} NOT NULL, PRIMARY KEY (holder, origin, rule, day, log)
){by key};

CREATE TABLE IF NOT EXISTS set_leaf (
  holder BIGINT NOT NULL, origin BIGINT NOT NULL, rule BIGINT NOT NULL, day BIGINT NOT NULL, leaf BIGINT NOT NULL,
  log BIGINT NOT NULL, files BIGINT NOT NULL, hash {key} NOT NULL, PRIMARY KEY (holder, origin, rule, day, leaf, log)
){by key};

-- Work of one rule, and the files of a transfer.
CREATE INDEX IF NOT EXISTS live_rule ON live (state, rule, turn, file);
CREATE INDEX IF NOT EXISTS live_transfer ON live (transfer, file);
CREATE INDEX IF NOT EXISTS attempt_transfer ON attempt (transfer, file);
