-- What needs attention is found without reading all jobs and accounts.
CREATE INDEX job_failing ON job (consecutive_errors, seq) WHERE consecutive_errors > 0;
CREATE INDEX account_closed ON account (closed_until) WHERE closed_until > 0;
