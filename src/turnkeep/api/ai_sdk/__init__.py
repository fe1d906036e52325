"""The wire of Vercel's AI SDK, for pages that are built with `useChat`.

- `message_stream`  a turn as the SDK's UI message stream, and the same as a whole message; without I/O
- `chat`            the endpoints: ask, go on after an approval or a client tool, resume, and read the messages

The SDK's chat id is the `external_id` of a conversation, and the id of its assistant message is the id of a turn. A
chat is the same conversation as on any other wire. This package knows the SDK's JSON, and makes questions for the
engine as `native/turns.py` does. It knows neither databases nor models. Read first: `message_stream`.
"""
