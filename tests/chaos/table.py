"""The line of figures that a scenario prints."""

from __future__ import annotations


def row(**figures: object) -> str:
    return " | ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
