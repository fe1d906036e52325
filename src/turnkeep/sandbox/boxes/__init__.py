"""Boxes: where the tools of one turn run, cut off from the network, the system and other turns.

`ports.py` says what every box promises. Two drivers implement it, bubblewrap and Docker, and one test suite tests both.
Bubblewrap boxes are made of namespaces (`bubblewrap.py`), a system call filter (`seccomp.py`) and limits (`limits.py`).
`processes.py` runs, feeds and kills a command, whatever its box is made of.

This package knows nothing of turns, models or servers. Read `ports.py` first. A change here needs the escape tests
(`tests/sandbox_runner/test_escape.py`).
"""
