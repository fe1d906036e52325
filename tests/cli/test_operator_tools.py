"""Tools that an operator wrote: `turnkeep serve --tools`."""

from pathlib import Path

from tests.server_process import environment, run_turnkeep, serving
from turnkeep.client import Turnkeep

WEATHER = """
from turnkeep.tools.functions import tool

@tool(idempotent=True)
async def weather(city: str, days: int = 1) -> str:
    \"\"\"The forecast for a city.\"\"\"
    return f"{days} sunny days in {city}"
"""


class TestToolsOfTheOperator:
    def test_can_be_named_by_agents(self, tmp_path: Path) -> None:
        (tmp_path / "weather.py").write_text(WEATHER)
        with (
            serving(tmp_path, environment(tmp_path), "--tools", "weather.py", "--sandbox-url", "off"),
            Turnkeep(data_dir=tmp_path / "data") as turnkeep,
        ):
            agent = turnkeep.agents.create("Forecaster", model="demo", tools=["weather"])
            answer = turnkeep.ask('use weather {"city": "Bern", "days": 3}', agent_id=agent.id)
        assert "3 sunny days in Bern" in answer.text

    def test_that_cannot_be_loaded_stop_the_server_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "weather.py").write_text(WEATHER.replace("sunny days", "{rain}"))
        (tmp_path / "broken.py").write_text("import nothing_like_it\n")
        flags = ("--port", "0", "--tools", "weather.py,broken.py", "--sandbox-url", "off")
        done = run_turnkeep("serve", *flags, env=environment(tmp_path), cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "turnkeep: TURNKEEP_TOOLS names broken.py, which fails: ModuleNotFoundError" in done.stderr
        assert "Traceback" not in done.stderr
