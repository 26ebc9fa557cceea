"""The executors, one file per kind of task; their contract is in `base`."""
