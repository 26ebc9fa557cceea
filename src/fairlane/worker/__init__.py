"""Run leased tasks: the loop and its executors."""
