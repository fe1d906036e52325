"""Model providers: a compiled request goes in, deltas and one complete reply come out.

`ports.py` defines the port `Provider`. `anthropic.py` and `openai.py` implement it for three protocols, with what they
share in `http_provider.py`: the session and the events of a stream (`wire.py`), retries (`retry.py`), errors
(`failures.py`), drafts of a reply (`drafts.py`), and what a server's errors teach about it (`lessons.py`). `demo.py`
works offline; `scripted.py` is for tests, yours included.

This package must not know turns, stores or readers: the engine drives it, the compiler makes its messages. A vendor's
JSON and errors do not leave it.

Read `ports.py` first, then `http_provider.py`. `registry.py` says which providers a server has.
"""
