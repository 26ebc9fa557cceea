"""One function per operation: a typed request in, engine commands, a typed response out.

HTTP, MCP, the embedded API and the commands with `--store` call these functions. A service checks
what the caller may see and change; what is allowed at all (scopes) is checked before it is called.
"""
