"""The federated part: the maths, the TFF round, the methods, the loop and its records."""
