-- Sessions whose runs were interrupted and have not ended yet.

ALTER TABLE session ADD COLUMN interrupted {int} NOT NULL DEFAULT 0;
