-- Version 4: what was seen and decided on links from one site to another (link.rs). Rows are each writer's own; of each
-- link it keeps the newest.

CREATE TABLE IF NOT EXISTS link_seen (
  log BIGINT NOT NULL, at BIGINT NOT NULL, origin BIGINT NOT NULL, destination BIGINT NOT NULL, took BIGINT NOT NULL,
  bytes BIGINT NOT NULL, sent BIGINT NOT NULL, again BIGINT NOT NULL, rtt BIGINT NOT NULL, connections BIGINT NOT NULL,
  ip BIGINT NOT NULL, PRIMARY KEY (log, at, origin, destination)
){by key};
CREATE INDEX IF NOT EXISTS link_seen_of ON link_seen (origin, destination, at);

CREATE TABLE IF NOT EXISTS decision (
  log BIGINT NOT NULL, at BIGINT NOT NULL, origin BIGINT NOT NULL, destination BIGINT NOT NULL,
  connections BIGINT NOT NULL, pacing BIGINT NOT NULL, rate BIGINT NOT NULL, lost BIGINT NOT NULL,
  binding {word} NOT NULL, why {path} NOT NULL, PRIMARY KEY (log, at, origin, destination)
){by key};
CREATE INDEX IF NOT EXISTS decision_of ON decision (origin, destination, at);
CREATE INDEX IF NOT EXISTS decision_at ON decision (at);
