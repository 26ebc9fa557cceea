"""The MCP edge: Fairlane's verbs as tools for agents, over stdio and over HTTP.

Only `server.py` and `stdio.py` import the SDK, which is an extra and slow to load; the rest works
without it.
"""
