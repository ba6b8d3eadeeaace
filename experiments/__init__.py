"""Programs around a run: evaluate one, describe its data."""
