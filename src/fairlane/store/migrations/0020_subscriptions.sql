-- Endpoints that are sent events which no task's callback tells of: their types, with spaces.
ALTER TABLE endpoint ADD COLUMN events {text};
CREATE INDEX endpoint_events ON endpoint (events) WHERE events IS NOT NULL AND disabled_at IS NULL;
