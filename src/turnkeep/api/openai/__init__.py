"""OpenAI's wire format.

- `chat_completions`  requests and replies of Chat Completions, as values; no I/O
- `gateway`           the model of a running turn for its sandbox, which speaks Chat Completions

Errors have OpenAI's shape here, because OpenAI's clients read them. Read first: `gateway`.
"""
