"""The sandbox runner: a server of its own that runs turns with their tools in a box.

`turnkeep sandbox` starts it. The Turnkeep server sends it a turn (`POST /stream`); the runner fetches the configuration
with one-time tokens, starts a box, runs the engine's loop, and responds with NDJSON lines. The model and the agent's
own tools are reached through the server's gateway, so no provider key and no credential of a tool comes here.

It must not know the store or the API: what it needs of the server it fetches with `server_client.py`. It never opens a
path inside a box: files go in and out through a script that runs there (`box_script.py`). The box ends with the
request, whatever happens.

Read `turn.py` first, then `boxes/ports.py`. `server.py` is the HTTP server, `workspace.py` the files of a turn,
`line_stream.py` the lines.
"""
