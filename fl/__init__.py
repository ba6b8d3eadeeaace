"""The federated part: the maths, the TFF round, methods, the loop, its records."""
