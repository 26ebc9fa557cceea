"""The verbs: batch functions that change state inside the one write transaction."""
