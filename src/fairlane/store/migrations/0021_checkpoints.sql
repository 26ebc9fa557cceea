-- Steps that runs have recorded. `steps` is how many a task has, NULL for nearly every task: leasing
-- looks for them only where there are some.
ALTER TABLE task ADD COLUMN steps {int};
CREATE TABLE checkpoint (
  seq {int} NOT NULL,
  number {int} NOT NULL,
  name {text} NOT NULL,
  value {text} NOT NULL,
  at {int} NOT NULL,
  PRIMARY KEY (seq, number)
) {hot_by_key};
