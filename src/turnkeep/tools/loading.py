"""Native tools from the operator's own code: every `@tool` of the files and modules that `TURNKEEP_TOOLS` names."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from turnkeep.errors import InvalidRequest
from turnkeep.tools.functions import FunctionTool


def load_tools(places: Sequence[str]) -> list[FunctionTool]:
    """The tools of each place, in order: a file (`tools.py`) or the name of a module (`shop.tools`).

    Raises InvalidRequest with the place and the reason for code that is not there, that fails, or that has no tool.
    """
    tools: dict[str, FunctionTool] = {}
    for place in places:
        found = [value for value in vars(_imported(place)).values() if isinstance(value, FunctionTool)]
        if not found:
            raise InvalidRequest(f"TURNKEEP_TOOLS names {place}, which has no tool: decorate a function with @tool.")
        for each in found:
            if tools.setdefault(each.spec.name, each) is not each:
                raise InvalidRequest(f"TURNKEEP_TOOLS: two tools are called {each.spec.name}, one of them in {place}.")
    return list(tools.values())


def _imported(place: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except InvalidRequest:
        raise
    except Exception as exc:
        raise InvalidRequest(f"TURNKEEP_TOOLS names {place}, which fails: {type(exc).__name__}: {exc}") from exc


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidRequest(f"TURNKEEP_TOOLS names {path}, and there is no such file.")
    name = f"turnkeep_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints are looked up there
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    """Also one in the folder in which the server was started, as `python -m` would find it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)
