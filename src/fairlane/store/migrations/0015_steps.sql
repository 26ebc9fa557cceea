-- Steps of the clock: which moments of a task are ends of spans, and how far the wall clock was ahead
-- of the monotonic one at the last commit. Spans move when the wall clock is set; moments that a
-- caller has named stay, and so do those of tasks from before, of which nobody knows.
ALTER TABLE task ADD COLUMN delay_ms {int};
ALTER TABLE task ADD COLUMN deadline_ms {int};
ALTER TABLE scheduler ADD COLUMN clock_boot {text};
ALTER TABLE scheduler ADD COLUMN clock_ahead {int};
