"""Copies of a whole store: moves to another address, backups and restores.

`tables` describes what there is to copy, and a `StoreSide` is one of the two stores. `move` and
`backup` are what operators ask for.
"""
