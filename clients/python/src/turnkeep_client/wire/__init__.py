"""The JSON of the Turnkeep API, defined once."""
