-- What ran in each hour, by capability and agent: counts, times, and histograms as JSON. Written at
-- most once a second, in commits that happen anyway. `hour` counts hours since the epoch.
CREATE TABLE handler_hour (
  hour {int} NOT NULL,
  route {text} NOT NULL,
  agent {text} NOT NULL,
  starts {int} NOT NULL,
  done {int} NOT NULL,
  failed {int} NOT NULL,
  parked {int} NOT NULL,
  retried {int} NOT NULL,
  cancelled {int} NOT NULL,
  runs {int} NOT NULL,
  waited_ms {int} NOT NULL,
  ran_ms {int} NOT NULL,
  waits {text} NOT NULL,
  durations {text} NOT NULL,
  PRIMARY KEY (hour, route, agent)
) {hot_by_key};
