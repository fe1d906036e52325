"""HTTP: from a request to a call, and from a value to a response.

A request passes `middleware` (request id, host check, log line; the bundled page; CORS), Starlette's router, and the
`Dispatcher` in `endpoints` (authentication, policy, rate limit, body and query). The handler of the
endpoint gets a `ApiCall` and returns an ASGI response. An exception becomes a problem (`problem_details`).

- `endpoints`        declarations of endpoints, their Starlette routes, the checks before a handler runs; `ApiCall`, the
                     request as a handler sees it
- `requests`         bodies within a limit, headers, messages for malformed values
- `responses`        JSON responses, HEAD, addresses in responses
- `problem_details`  errors as RFC 9457 problems
- `middleware`       what holds for every request
- `idempotency`      repeated requests
- `disconnects`      work that ends when the client disconnects
- `downloads`        files and ranges
- `bundled_page`     the built web page, its embedded form, and the brand

It knows nothing of turns, conversations or files as such. Read first: `endpoints`.
"""
