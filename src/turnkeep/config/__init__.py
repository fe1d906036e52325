"""What an operator may set, and where it is read from."""

from turnkeep.config.masking import masked
from turnkeep.config.parsing import MASK, SECRET_CHARS, mask_url
from turnkeep.config.settings import LOOPBACK_HOSTS, Settings, read_settings
from turnkeep.config.variables import VARIABLES, LogLevel, Variable

__all__ = [
    "LOOPBACK_HOSTS",
    "MASK",
    "SECRET_CHARS",
    "VARIABLES",
    "LogLevel",
    "Settings",
    "Variable",
    "mask_url",
    "masked",
    "read_settings",
]
