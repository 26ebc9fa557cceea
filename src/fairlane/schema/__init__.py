"""What callers send and what they get back: request and response shapes, JSON limits, SSE."""
