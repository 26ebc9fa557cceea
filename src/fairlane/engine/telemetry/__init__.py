"""A node's measurements of itself: metrics, history, heartbeat, process figures."""
