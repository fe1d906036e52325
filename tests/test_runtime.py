"""From what an operator sets to what the parts are built with: nothing is lost on the way."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.providers.model_requests import answer
from tests.providers.wire.script import Say
from tests.providers.wire.server import WireServer
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, Line, Vendor
from tests.store.factories import a_tenant
from turnkeep.config import VARIABLES, Settings, read_settings
from turnkeep.engine import EngineSettings, Observer, Question
from turnkeep.errors import InvalidRequest
from turnkeep.providers.http_provider import HttpProvider
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import Call, ScriptedProvider
from turnkeep.runtime import default_providers, open_runtime
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.blocks import Text

FIXED = {"queue_limit", "max_running", "sweep_seconds", "max_failures"}
"""Settings of the engine that an operator cannot change."""
SETTABLE = sorted(set(EngineSettings.__struct_fields__) - FIXED)


class TestTheEngine:
    @pytest.mark.parametrize("field", SETTABLE)
    def test_is_told_every_setting_of_its_section(self, field: str) -> None:
        variable = next(variable for variable in VARIABLES if variable.field == field)
        text = "scripted/other" if field in {"model", "title_model"} else str(getattr(Settings(), field) + 7)
        settings = read_settings({variable.name: text})
        assert str(getattr(settings, field)) == text
        assert isinstance(settings, EngineSettings), "what the operator set is what the engine reads"
        assert getattr(EngineSettings(), field) == getattr(Settings(), field), "a default is stated once"

    async def test_of_a_runtime_reads_the_settings_of_the_operator(self, tmp_path: Path) -> None:
        settings = read_settings({"TURNKEEP_DATA_DIR": str(tmp_path), "TURNKEEP_LEASE_SECONDS": "17"})
        async with open_runtime(settings, providers=ProviderRegistry([])) as runtime:
            assert runtime.settings is settings
            assert runtime.engine._worker._settings is settings

    def test_has_no_other_settings_than_these(self) -> None:
        assert {variable.field for variable in VARIABLES} & set(EngineSettings.__struct_fields__) == set(SETTABLE)
        assert set(SETTABLE) | FIXED == set(EngineSettings.__struct_fields__)


class ClosingProviders(ProviderRegistry):
    """Remembers that it was closed."""

    is_closed = False

    async def close(self) -> None:
        await super().close()
        self.is_closed = True


class TestOpening:
    async def test_what_was_opened_is_closed_when_a_later_step_fails(self, tmp_path: Path) -> None:
        settings, providers = Settings(data_dir=tmp_path, tools=("nothing_like_it.py",)), ClosingProviders([])
        with pytest.raises(InvalidRequest, match="nothing_like_it"):
            async with open_runtime(settings, providers=providers):
                pass
        assert providers.is_closed
        async with open_runtime(Settings(data_dir=tmp_path), providers=ClosingProviders([])) as runtime:
            assert await runtime.store.orgs(), "the file is free for another server"


class Clumsy(Observer):
    """Fails at everything that it is told."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)

        def fail(*args: object, **fields: object) -> None:
            raise ValueError("Counters can only be incremented by non-negative amounts.")

        fail.__name__ = name
        return fail


class TestAnObserverThatFails:
    async def test_harms_no_turn_and_is_heard_of_once(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        @tool
        def look() -> str:
            return "here"

        provider = ScriptedProvider([[Call("look")], ["Done."]] * 2)
        async with open_runtime(
            Settings(data_dir=tmp_path, model="scripted"),
            providers=ProviderRegistry([provider]),
            tools=ToolRegistry([look], offered_to_all=["look"]),
            observer=Clumsy(),
        ) as runtime:
            ann = (await a_tenant(runtime.store)).ann
            for _ in range(2):
                claimed = await runtime.engine.ask(Question(principal=ann, message=(Text(text="Hi"),)))
                turn = await runtime.engine.wait(claimed.turn.id)
                assert (turn.status, turn.attempt) == ("succeeded", 1), turn.error
        said = [record.getMessage() for record in caplog.records if "the observer failed" in record.getMessage()]
        assert len(said) == len(set(said)) == 9, said


class TestTheProviders:
    @pytest.mark.parametrize(
        "vendor, told",
        [
            (ANTHROPIC, {"output_config": {"effort": "high"}}),
            (CHAT, {"reasoning_effort": "high"}),
            (RESPONSES, {"reasoning": {"summary": "auto", "effort": "high"}}),
        ],
        ids=lambda value: value.name if isinstance(value, Vendor) else "",
    )
    async def test_are_told_how_much_to_reason_and_tell_the_model(self, vendor: Vendor, told: dict[str, Any]) -> None:
        api = "responses" if vendor is RESPONSES else "auto"
        settings = read_settings({"TURNKEEP_REASONING_EFFORT": "high", "TURNKEEP_OPENAI_API": api})
        async with WireServer(vendor.wire()) as server:
            server.says([Say("Sunny.")])
            environ = {
                "ANTHROPIC_API_KEY": "sk-ant-test-key",
                "ANTHROPIC_BASE_URL": server.url,
                "OPENAI_API_KEY": "sk-test-key",
                "OPENAI_BASE_URL": f"{server.url}/v1",
            }
            providers = default_providers(settings, environ)
            provider = cast(HttpProvider, providers.named(vendor.model))
            try:
                await answer(Line(vendor, server, provider, None))
            finally:
                await providers.close()
        [body] = server.bodies
        assert {name: body.get(name) for name in told} == told
