"""Small real servers on loopback that stand in for the programs that Fairlane talks to."""
