"""Turns whose loop runs in a sandbox: the server's side of them.

`remote_turn.py` is the file to read first: it sends a turn to the runner and records the lines that come back.
`runner_client.py` is the HTTP client of the runner, with the tokens by which a sandbox reaches the model gateway.
Nothing here knows how the runner makes its boxes (that is the package of the runner itself).
"""
