"""Whole servers under load: what a turn and a streamed token cost, beside a floor and the peers.

A fake provider, a client and each server are processes of their own, all on loopback. Read `run.py` first.
"""
