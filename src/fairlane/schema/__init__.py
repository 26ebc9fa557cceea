"""Every operation with its typed request and response; the limits of JSON; server-sent events."""
