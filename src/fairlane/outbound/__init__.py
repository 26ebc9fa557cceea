"""Outgoing requests: one guard for every address, and webhook delivery."""
