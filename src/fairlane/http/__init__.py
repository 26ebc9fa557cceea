"""The HTTP edge: routes, the JSON they speak, and nothing that decides."""
