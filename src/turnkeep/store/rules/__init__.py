"""The rules of the store, once for both databases: pure functions from facts to decisions, and every refusal."""
