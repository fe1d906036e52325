"""As a user's conftest.py would be."""

from turnkeep.testing import turnkeep_server

__all__ = ["turnkeep_server"]
