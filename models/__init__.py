"""The networks: frozen specs, one builder for all of them, and initial weights."""
