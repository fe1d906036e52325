"""The engine: one turn, from the question to its last event.

It claims turns, runs their loop, records what happens, settles them in every case, and adopts turns that other
workers left. `loop.py` is the file to read first; then `worker.py`, which runs the loop and handles every way in
which it can end, and `recorder.py`, the only writer of a turn. `engine.py` is what the API calls.

What a model is sent is put together in `assembly.py`. A tool call becomes an outcome in `outcomes.py`. Leases,
recovery and the endings of interrupted turns are in `held_turn.py`. Turns whose loop runs in a sandbox are in
`sandbox/`. `outbox.py` tells the outside which turns have ended. `services.py` holds what all parts share.

The engine knows the store, providers, tools and the hub only through their ports. It knows nothing of HTTP, of wire
formats, or of where settings come from.
"""

from turnkeep.config import EngineSettings
from turnkeep.engine.engine import Draining, Engine, Options, Question
from turnkeep.engine.observer import Boundary, Observer
from turnkeep.engine.services import Services
from turnkeep.engine.worker import EndedTurn

__all__ = [
    "Boundary",
    "Draining",
    "EndedTurn",
    "Engine",
    "EngineSettings",
    "Observer",
    "Options",
    "Question",
    "Services",
]
