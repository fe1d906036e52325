"""From what an operator sets to what the parts are built with: nothing is lost on the way."""

from typing import Any, cast

import pytest

from tests.providers.asking import answer
from tests.providers.wire.script import Say
from tests.providers.wire.server import WireServer
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, Line, Vendor
from turnkeep.config import VARIABLES, Settings, read_settings
from turnkeep.engine import EngineSettings
from turnkeep.providers.speaking import SdkProvider
from turnkeep.runtime import default_providers, engine_settings

NAMESAKES = sorted(set(EngineSettings.__struct_fields__) & set(Settings.__struct_fields__))
OWN = {"default_model", "queue_limit", "max_running", "sweep_seconds", "max_failures"}
"""What the engine calls by another name than the operator does, or what an operator cannot set."""


class TestTheEngine:
    @pytest.mark.parametrize("field", NAMESAKES)
    def test_is_told_every_setting_that_it_has_by_the_same_name(self, field: str) -> None:
        variable = next(variable for variable in VARIABLES if variable.field == field)
        usual = getattr(Settings(), field)
        settings = read_settings({variable.name: str(usual + 7)})
        assert getattr(engine_settings(settings), field) == usual + 7
        assert getattr(EngineSettings(), field) == usual, "the defaults are stated twice, and must agree"

    def test_has_no_other_settings_than_these(self) -> None:
        assert set(EngineSettings.__struct_fields__) - set(NAMESAKES) == OWN

    def test_is_told_the_model(self) -> None:
        assert engine_settings(read_settings({"TURNKEEP_MODEL": "openai/some"})).default_model == "openai/some"


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
            provider = cast(SdkProvider, providers.named(vendor.model))
            try:
                await answer(Line(vendor, server, provider, None))
            finally:
                await providers.close()
        [body] = server.bodies
        assert {name: body.get(name) for name in told} == told
