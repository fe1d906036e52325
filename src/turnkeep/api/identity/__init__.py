"""Identity: who calls, and whether this caller may use an endpoint.

- `authentication`  from headers to an `Identity`: service key, user token, or the cookie of the bundled page; and
                    `Policy`, which says who may call an endpoint
- `tokens`          user tokens, signed by `turnkeep.signed_values`
- `oidc`            sign-in at an identity provider
- `turn_tokens`     tokens of the sandbox of a running turn
- `service_keys`    making service keys; the local key; sign-in links
- `users`           users as other things show them
- `rate_limits`     requests per minute and key

What a caller may see (which conversations, which files) is decided by the store, not here. Read first:
`authentication`.
"""
