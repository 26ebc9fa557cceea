"""The pure core: functions take values and the time, and return values."""
