"""Speed and memory, measured as ratios in one run: machines are noisy."""
