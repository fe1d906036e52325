"""The HTTP API: parse a request, call the runtime, answer.

Packages and modules:

- `http/`       how a request becomes a call and a value a response: endpoints, middleware,
                problem details, downloads. Starlette is used here and in `app.py`.
- `identity/`   who calls: authentication, policies, tokens, service keys, rate limits.
- `telemetry/`  logs, metrics, tracing.
- `native/`     the routes of `/v1`, one module per topic.
- `openai/`     OpenAI's wire format: the model gateway of sandboxes.
- `views.py`    from the model's values to the JSON of the API (`turnkeep_client.wire`); `openapi.py` describes it.

This package decides nothing about turns, conversations or files: it checks the form of a request, and the engine and
the store decide the rest. Nothing outside it knows of HTTP requests, except the command line, which starts the server.

Read first: `app.py` (the composition), then `http/endpoints.py` (the way of one request), then `native/turns.py`. To
add an endpoint, declare it in a module of `native/`; routes, OpenAPI and the tests of access follow from the
declaration. `docs/reference/http.md` lists it.
"""
