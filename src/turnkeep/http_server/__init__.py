"""The HTTP server process, shared by the API server and the sandbox runner.

- `uvicorn_server`  uvicorn around an ASGI app, with an orderly way out on SIGTERM and SIGINT, and with limits on what a
                    client may send and on how long it may take
- `sockets`         listening sockets, local addresses, TCP keep-alive

It knows nothing of the app that it serves. `sockets` imports neither uvicorn nor the rest, because clients and settings
use it too. Read first: `GracefulServer`.
"""
