"""The Python client, under the name that it had before it became a distribution of its own.

`turnkeep_client` is the same without the server (`pip install turnkeep-client`).
"""

from turnkeep_client import *  # noqa: F403 - exactly the public names of the other
from turnkeep_client import __all__  # noqa: F401
