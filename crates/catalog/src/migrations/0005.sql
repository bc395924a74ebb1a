-- Version 5: what an event tells of a delivery is found by its file and time (follow.rs).

CREATE INDEX IF NOT EXISTS delivery_of ON delivery (file, at);
