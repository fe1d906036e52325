"""Conversations from and to other systems."""
