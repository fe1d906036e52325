"""Turnkeep for the tests of your own application: a real server in this process, with a model that you script.

    # conftest.py
    from turnkeep.testing import turnkeep_server

    # test_shop.py
    def test_the_assistant_answers(turnkeep_server):
        turnkeep_server.say("We are open from 9 to 17.")
        shop = Shop(turnkeep_server.url, turnkeep_server.key)
        assert shop.ask("When are you open?") == "We are open from 9 to 17."

`TurnkeepServer` works with any test framework, or none. The fixture `turnkeep_server` needs pytest, which Turnkeep
does not install: it is imported when the fixture is. Read `server.py` first; the guide is docs/howto/test-your-app.md.
"""

from typing import TYPE_CHECKING, Any

from turnkeep.providers.ports import ModelRequest, ProviderFailed
from turnkeep.providers.scripted import Call, Fail, OutOfTokens, Pause, Restart, Script, Think, Until
from turnkeep.testing.server import TurnkeepServer
from turnkeep.tools.functions import tool

if TYPE_CHECKING:
    from turnkeep.testing.fixtures import turnkeep_server

__all__ = [
    "Call",
    "Fail",
    "ModelRequest",
    "OutOfTokens",
    "Pause",
    "ProviderFailed",
    "Restart",
    "Script",
    "Think",
    "TurnkeepServer",
    "Until",
    "tool",
    "turnkeep_server",
]


def __getattr__(name: str) -> Any:
    if name == "turnkeep_server":
        from turnkeep.testing.fixtures import turnkeep_server

        return turnkeep_server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
