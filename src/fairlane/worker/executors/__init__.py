"""What a task does when it runs, one file per kind; the contract they share is in `base`."""
