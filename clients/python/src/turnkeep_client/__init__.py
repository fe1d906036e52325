"""A Turnkeep server from Python."""
