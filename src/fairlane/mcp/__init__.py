"""Serve Fairlane's verbs over MCP, as tools for agents, on stdio and over HTTP.

Only `server.py` and `stdio.py` import the SDK, which is an extra and slow to load; the rest works
without it.
"""
