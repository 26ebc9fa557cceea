-- The session and the batch whose budgets a task uses, NULL if they are its own: a task that a run
-- submitted uses those of the run.
ALTER TABLE task ADD COLUMN budget {text};
