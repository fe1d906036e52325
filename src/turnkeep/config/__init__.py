"""Configuration: what an operator may set, and where it is read from.

Each setting is declared once, with its name, default, parser and meaning: those of a server in `settings.py` (read
this file first), those of a sandbox runner in `runner.py`. `variables.py` makes environment variables and flags from
the declarations, and reads and parses them. The engine gets its section, `EngineSettings`, as one frozen value.
`secret_masking.py` hides secrets in texts. This package opens no file, no database and no connection.
"""

from turnkeep.config.secret_masking import MASK, mask_url, masked
from turnkeep.config.settings import LOOPBACK_HOSTS, VARIABLES, EngineSettings, LogLevel, Settings, read_settings
from turnkeep.config.variables import SECRET_CHARS, Variable

__all__ = [
    "LOOPBACK_HOSTS",
    "MASK",
    "SECRET_CHARS",
    "VARIABLES",
    "EngineSettings",
    "LogLevel",
    "Settings",
    "Variable",
    "mask_url",
    "masked",
    "read_settings",
]
