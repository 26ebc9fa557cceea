"""The tables, one module per noun: small functions that run one statement and return typed rows.

Only these modules, the transaction with its counters, and the drivers name statements; a test
enforces that. A function takes the connection it runs on. One that belongs to a write transaction
takes that, so that it can mark it as changed. Nothing is decided here.
"""
