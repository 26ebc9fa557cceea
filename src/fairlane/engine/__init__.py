"""The verbs of Fairlane and the one writer that runs them."""
