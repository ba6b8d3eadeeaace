"""The command line: flags, their defaults, and the configuration they resolve to."""
