"""OpenAI's wire format, for programs that are written for OpenAI's API.

- `responses`         Responses: create, follow, stop, delete; `response_events` makes their events and objects
- `completions`       Chat Completions
- `conversations`, `items`, `files`, `models`   the other resources
- `messages`          the messages and options of a request, as a question for the engine
- `segments`          the parts of a turn between its waits: to OpenAI's clients each of them is one answer
- `chat_completions`  the model of a running turn for its sandbox, which speaks Chat Completions

Errors have OpenAI's shape here, because OpenAI's clients read them (`http/problem_details.py`). The modules make
questions for the engine, as `native/turns.py` does, and start turns in no other way. Read first: `completions`.
"""
