"""Reads on their own connections: lists, single tasks, plans, and why a task waits."""
