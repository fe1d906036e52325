"""Other people's ways to keep conversations, each through its public API. A file per project."""
