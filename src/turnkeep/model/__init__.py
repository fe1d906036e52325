"""What a conversation is to the server: pure values without I/O.

This package answers for turns and their legal moves, stored rows, conversations, files, agents, principals, and the
text search over them. What is on the wire as it is (blocks, parts, events, usage, the display fold) lives in
`turnkeep_client.wire` and is imported from there.

It must not know the store, HTTP, a provider or a clock. Read `turns.py` first, then `messages.py`.
"""
