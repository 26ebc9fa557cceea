"""The scheduler inside your own program: `Fairlane`, task handles, `schedule`, listeners."""
