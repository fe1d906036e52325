"""Configuration: what an operator may set, and where it is read from.

Each setting of a server and of a sandbox runner is declared once, with its name, default, parser and meaning, in
`settings.py` (read this file first). `variables.py` makes environment variables, flags and names in `turnkeep.toml`
from the declarations, reads and parses them, and masks the secrets among them. The engine gets its section,
`EngineSettings`, as one frozen value. This package opens no other file, no database and no connection.
"""

from turnkeep.config.settings import (
    CONFIG_VARIABLE,
    KNOWN_NAMES,
    RUNNER_VARIABLES,
    VARIABLES,
    EngineSettings,
    LogLevel,
    MetricsAccess,
    RunnerSection,
    Settings,
    exposed_secrets,
    find_config_file,
    read_settings,
)
from turnkeep.config.variables import (
    MASK,
    PICTURE_TYPES,
    SECRET_CHARS,
    SELF,
    ConfigFile,
    SandboxImage,
    Variable,
    mask_url,
    masked,
    refuse_unknown,
)

__all__ = [
    "CONFIG_VARIABLE",
    "KNOWN_NAMES",
    "MASK",
    "PICTURE_TYPES",
    "RUNNER_VARIABLES",
    "SECRET_CHARS",
    "SELF",
    "VARIABLES",
    "ConfigFile",
    "EngineSettings",
    "LogLevel",
    "MetricsAccess",
    "RunnerSection",
    "SandboxImage",
    "Settings",
    "Variable",
    "exposed_secrets",
    "find_config_file",
    "mask_url",
    "masked",
    "read_settings",
    "refuse_unknown",
]
