"""Long scenarios on real processes under faults: `make chaos`. A short form of each runs in CI."""
