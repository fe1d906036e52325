"""Conversations that come from other systems, and transcripts that are repaired and written back.

`transcripts.py` reads a list of messages into our rows, groups them into turns, and writes repaired messages back into
the form they came in. `message_formats.py` knows the messages of each vendor, and `chatgpt.py` the trees of ChatGPT's
export.

The package is pure: it reads values and returns values. It does not store anything, does not call a provider, and does
not judge whether calls and results fit together; the compiler does that. Exports without loss are the store's. Read
`transcripts.py` first.
"""
