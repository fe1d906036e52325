"""The routes of `/v1`, one module per topic.

Each module declares its endpoints with `@endpoints.add(...)`; `api/app.py` collects them. A handler takes a `ApiCall`,
calls the runtime, and returns a response. The docstring of a handler is its summary in the OpenAPI document.

- `turns`             ask, follow, stop, regenerate, edit
- `conversations`     list, read, change, export, import
- `files`             upload, download, save
- `agents`, `skills`  create, change, run
- `knowledge`         the pages and tables of a workspace
- `sandbox`           what the sandbox of a running turn asks for
- `account`           keys, workspaces, usage
- `signin`            how people come to the page and leave it; its sessions
- `people`            sessions and invites, listed and ended
- `operations`        health, metrics, OpenAPI, tenants
- `query_parameters`  queries, and pages of lists

Read first: `turns`.
"""
