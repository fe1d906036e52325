"""Turnkeep: a conversation runtime for AI assistants and agents."""

__version__ = "0.1.0"
