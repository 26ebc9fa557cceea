"""Implement each operation with one function: typed request in, engine commands, typed response
out.

HTTP, MCP, the embedded API and the commands with `--store` call these functions. A service checks
what the caller may see and change; the scope is checked before it is called.
"""
