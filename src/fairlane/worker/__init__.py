"""Runs leased tasks: the loop, and what it can run."""
