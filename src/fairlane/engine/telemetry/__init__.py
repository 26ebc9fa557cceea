"""What a node measures about itself: metrics, history, heartbeat, process figures."""
