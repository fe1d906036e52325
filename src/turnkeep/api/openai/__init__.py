"""OpenAI's wire format, for programs that are written for OpenAI's API.

- `chat_completions`  the model of a running turn for its sandbox, which speaks Chat Completions: requests and replies
                      as values, and the endpoint

Each API of OpenAI is one module. Errors have OpenAI's shape here, because OpenAI's clients read them. A module makes
questions for the engine, as `native/turns.py` does, and starts turns in no other way. Read first: `chat_completions`.
"""
