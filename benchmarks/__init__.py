"""Speed and memory, measured: ours and peers in one run on one machine."""
