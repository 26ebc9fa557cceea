"""The real engine on SQLite in memory, under faults, with a seed. `python -m tests.simulation`."""
