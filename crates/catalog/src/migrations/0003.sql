-- Version 3: the session that an attempt was part of, as receipts name it. Empty: none, or before this version.

ALTER TABLE live ADD COLUMN session {word} NOT NULL DEFAULT '';
ALTER TABLE attempt ADD COLUMN session {word} NOT NULL DEFAULT '';
