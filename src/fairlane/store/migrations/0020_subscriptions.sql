-- Endpoints that are sent events which no task's callback tells of: their types, with spaces.
ALTER TABLE endpoint ADD COLUMN events {text};
