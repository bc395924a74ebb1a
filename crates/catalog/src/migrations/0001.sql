-- The catalog, version 1. Words in braces differ between databases (migrate.rs). Times are microseconds since 1970,
-- codes are those of the enums; 0 is "none".

CREATE TABLE IF NOT EXISTS schema_version (version {row id}, applied BIGINT NOT NULL);

-- Names of sites, rules and writers.
CREATE TABLE IF NOT EXISTS word (
  kind BIGINT NOT NULL, id BIGINT NOT NULL, name {word} NOT NULL,
  PRIMARY KEY (kind, id), UNIQUE (kind, name)
){by key};

-- Each file once. state is its end, or 0 while it is in live. The unique key serves the search by prefix, too.
CREATE TABLE IF NOT EXISTS file (
  id {row id}, site BIGINT NOT NULL, name {name} NOT NULL, version BIGINT NOT NULL, stamp BIGINT NOT NULL,
  size BIGINT NOT NULL, rule BIGINT NOT NULL, priority BIGINT NOT NULL, state BIGINT NOT NULL,
  revision BIGINT NOT NULL, tries BIGINT NOT NULL, since BIGINT NOT NULL,
  UNIQUE (name, site, version)
);
CREATE INDEX IF NOT EXISTS file_state ON file (state, id);
CREATE INDEX IF NOT EXISTS file_site ON file (site, id);

-- The live queue: what is not at its end.
CREATE TABLE IF NOT EXISTS live (
  file {row id}, site BIGINT NOT NULL, rule BIGINT NOT NULL, size BIGINT NOT NULL, priority BIGINT NOT NULL,
  transfer BIGINT NOT NULL, state BIGINT NOT NULL, revision BIGINT NOT NULL, turn BIGINT NOT NULL,
  resume BIGINT NOT NULL, reason BIGINT NOT NULL, error BIGINT NOT NULL, tries BIGINT NOT NULL,
  holder BIGINT NOT NULL, fence BIGINT NOT NULL, started BIGINT NOT NULL, bytes BIGINT NOT NULL,
  since BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS live_turn ON live (state, turn, file);

CREATE TABLE IF NOT EXISTS digest (
  file BIGINT NOT NULL, kind BIGINT NOT NULL, value {key} NOT NULL, PRIMARY KEY (file, kind)
){by key};
CREATE INDEX IF NOT EXISTS digest_value ON digest (value, kind, file);

CREATE TABLE IF NOT EXISTS replica (
  file BIGINT NOT NULL, site BIGINT NOT NULL, path {path} NOT NULL, state BIGINT NOT NULL, since BIGINT NOT NULL,
  PRIMARY KEY (file, site)
){by key};

CREATE TABLE IF NOT EXISTS attempt (
  file BIGINT NOT NULL, number BIGINT NOT NULL, transfer BIGINT NOT NULL, writer BIGINT NOT NULL,
  started BIGINT NOT NULL, ended BIGINT NOT NULL, bytes BIGINT NOT NULL, outcome BIGINT NOT NULL,
  error BIGINT NOT NULL, PRIMARY KEY (file, number)
){by key};

CREATE TABLE IF NOT EXISTS receipt (
  file BIGINT NOT NULL, receiver {key} NOT NULL, at BIGINT NOT NULL, signed_bytes {bytes} NOT NULL,
  PRIMARY KEY (file, receiver)
){by key};

CREATE TABLE IF NOT EXISTS transfer (
  id {row id}, origin BIGINT NOT NULL, destination BIGINT NOT NULL, submitted BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS session (
  id {row id}, stream BIGINT NOT NULL, rule BIGINT NOT NULL, started BIGINT NOT NULL, ended BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS delivery (
  session BIGINT NOT NULL, file BIGINT NOT NULL, receiver {key} NOT NULL, state BIGINT NOT NULL,
  error BIGINT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (session, file, receiver)
){by key};

-- One log for each writer, numbered from 1 without gaps. Nothing is ever changed or removed.
CREATE TABLE IF NOT EXISTS event (
  log BIGINT NOT NULL, number BIGINT NOT NULL, at BIGINT NOT NULL, kind BIGINT NOT NULL, subject BIGINT NOT NULL,
  revision BIGINT NOT NULL, state_from BIGINT NOT NULL, state_to BIGINT NOT NULL, error BIGINT NOT NULL,
  PRIMARY KEY (log, number)
){by key};

-- Each writer's own rows: none is written by two.
CREATE TABLE IF NOT EXISTS counter (
  log BIGINT NOT NULL, site BIGINT NOT NULL, rule BIGINT NOT NULL, state BIGINT NOT NULL, files BIGINT NOT NULL,
  bytes BIGINT NOT NULL, PRIMARY KEY (log, site, rule, state)
){by key};
