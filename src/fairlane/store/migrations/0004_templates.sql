-- Templates. What a person wrote is one JSON text; beside it stands what is looked up or counted.

CREATE TABLE template (
  seq {key},
  id {text} NOT NULL UNIQUE,
  name {text} NOT NULL UNIQUE,
  definition {text} NOT NULL,
  usage_count {int} NOT NULL,
  created_at {int} NOT NULL,
  updated_at {int} NOT NULL
) {table};
