"""What leaves the process: one guard for every address, and the webhooks we owe."""
