"""The line that a scenario prints: what was seen, one figure after another."""

from __future__ import annotations


def row(**figures: object) -> str:
    return " | ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
