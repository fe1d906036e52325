"""One turn, from question to last event."""

from turnkeep.engine.engine import Draining, Engine
from turnkeep.engine.observer import Boundary, Observer
from turnkeep.engine.questions import Options, Question
from turnkeep.engine.settings import EngineSettings

__all__ = ["Boundary", "Draining", "Engine", "EngineSettings", "Observer", "Options", "Question"]
