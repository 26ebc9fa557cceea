"""Real little servers on loopback that stand in for what Fairlane talks to."""
