"""Datasets, their cache, and how their images are dealt out to the clients."""
