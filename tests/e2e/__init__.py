"""Real processes, real signals, real databases."""
