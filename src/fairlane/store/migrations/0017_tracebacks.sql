-- Where a run failed: the traceback that its worker reported, by the moment of the failure.
CREATE TABLE traceback (
  seq {int} NOT NULL,
  failed_at {int} NOT NULL,
  text {text} NOT NULL,
  PRIMARY KEY (seq, failed_at)
) {by_key};
