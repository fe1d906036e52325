"""Turnkeep: a conversation runtime for AI assistants and agents.

The layers, from the outside in: `cli` and `testing`; `api` (HTTP) and `sandbox` (the runner); `runtime.py`, which
builds everything once; `engine`, which runs turns; `compiler`, `store`, `providers`, `tools`, `files`, `knowledge`,
`streaming` and `transfer`, which know each other only through their ports; `model`, the pure values. The JSON of the
API is defined in the distribution `turnkeep-client` (`turnkeep_client.wire`), which server, client and runner share.

Read `runtime.py` first, then `engine/loop.py`. `docs/explanation/architecture.md` draws the whole.
"""

__version__ = "0.1.0"
