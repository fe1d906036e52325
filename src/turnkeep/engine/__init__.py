"""One turn, from question to last event."""

from turnkeep.config import EngineSettings
from turnkeep.engine.claims import Options, Question
from turnkeep.engine.engine import Draining, Engine
from turnkeep.engine.observer import Boundary, Observer
from turnkeep.engine.services import Services

__all__ = ["Boundary", "Draining", "Engine", "EngineSettings", "Observer", "Options", "Question", "Services"]
