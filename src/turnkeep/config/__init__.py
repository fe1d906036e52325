"""Configuration: what an operator may set, and where it is read from.

Each setting of a server and of a sandbox runner is declared once, with its name, default, parser and meaning, in
`settings.py` (read this file first). `variables.py` makes environment variables and flags from the declarations, reads
and parses them, and masks the secrets among them. The engine gets its section, `EngineSettings`, as one frozen value.
This package opens no file, no database and no connection.
"""

from turnkeep.config.settings import (
    RUNNER_VARIABLES,
    VARIABLES,
    EngineSettings,
    LogLevel,
    MetricsAccess,
    RunnerSection,
    Settings,
    read_settings,
)
from turnkeep.config.variables import MASK, SECRET_CHARS, Variable, mask_url, masked

__all__ = [
    "MASK",
    "RUNNER_VARIABLES",
    "SECRET_CHARS",
    "VARIABLES",
    "EngineSettings",
    "LogLevel",
    "MetricsAccess",
    "RunnerSection",
    "Settings",
    "Variable",
    "mask_url",
    "masked",
    "read_settings",
]
