"""The routes of `/v1`, one module per topic.

Each module declares its endpoints with `@endpoints.add(...)`; `api/app.py` collects them. A handler takes a `Call`,
calls the runtime, and returns a response. The docstring of a handler is its summary in the OpenAPI document.

- `turns`, `message_blocks`  ask, follow, stop, regenerate, edit
- `conversations`            list, read, change, export, import
- `files`                    upload, download, save
- `agents`, `agent_checks`, `skills`, `runs`
- `pages`, `tables`          the knowledge of a workspace
- `sandbox`                  what the sandbox of a running turn asks for
- `account`, `operations`    keys, workspaces, usage; tenants
- `health`                   probes, metrics, OpenAPI, sign-in
- `queries`                  query parameters and pages

Read first: `turns`.
"""
