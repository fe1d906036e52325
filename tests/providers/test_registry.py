"""Which providers a server has, the error for those that are not configured, and the list of models."""

import asyncio
from pathlib import Path

import pytest

from tests.api.harness import ApiServer, code_of, settings_for
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, connected
from turnkeep.errors import InvalidRequest
from turnkeep.providers.demo import DemoProvider
from turnkeep.providers.openai import OpenAIProvider, reasons
from turnkeep.providers.ports import Provider, ProviderFailed
from turnkeep.providers.registry import AWAY_SECONDS, KEPT_SECONDS, NotSetUp, ProviderRegistry, configured_providers
from turnkeep.providers.wire import Account
from turnkeep.runtime import default_providers

LOCAL = "http://127.0.0.1:11434/v1"


def openai_of(environ: dict[str, str]) -> Provider:
    return configured_providers(environ).named("openai/x")


class TestConfiguring:
    @pytest.mark.parametrize(
        "model, setting", [("anthropic/claude-x", "ANTHROPIC_API_KEY"), ("openai/gpt-x", "OPENAI_API_KEY")]
    )
    def test_a_model_without_a_key_is_refused_with_what_to_set(self, model: str, setting: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            configured_providers({}).named(model)
        assert model in refused.value.detail
        assert f"Set {setting}" in refused.value.detail

    @pytest.mark.parametrize(
        "model, environ",
        [
            ("anthropic/claude-x", {"ANTHROPIC_API_KEY": "k"}),
            ("anthropic/claude-x", {"ANTHROPIC_BASE_URL": LOCAL}),
            ("anthropic/claude-x", {"ANTHROPIC_AUTH_TOKEN": "t"}),
            ("openai/gpt-x", {"OPENAI_API_KEY": "k"}),
            ("openai/gpt-x", {"OPENAI_BASE_URL": LOCAL}),
            ("demo", {}),
        ],
    )
    def test_a_key_or_an_address_is_enough(self, model: str, environ: dict[str, str]) -> None:
        assert configured_providers(environ).named(model).name == model.partition("/")[0]

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        with pytest.raises(InvalidRequest, match="OPENAI_API_KEY"):
            configured_providers({"OPENAI_API_KEY": " ", "OPENAI_BASE_URL": ""}).named("openai/x")

    @pytest.mark.parametrize("model", ["gemini/x", "claude-x", "", "/x"])
    def test_an_unknown_provider_is_refused_with_a_list_of_providers(self, model: str) -> None:
        with pytest.raises(InvalidRequest, match="This server has: demo, openai"):
            configured_providers({"OPENAI_API_KEY": "k"}).named(model)

    @pytest.mark.parametrize("name", ["", "/", "/ ", "/ x", "/x ", "/fast\n", "/a\tb", "/a\0b"])
    @pytest.mark.parametrize("provider", ["openai", "anthropic"])
    def test_a_provider_without_a_model_is_refused(self, provider: str, name: str) -> None:
        with pytest.raises(InvalidRequest, match=f"write {provider}/ and then the provider's own name") as refused:
            configured_providers({"OPENAI_API_KEY": "k"}).named(provider + name)
        assert not isinstance(refused.value, NotSetUp), "no key would make it a name"

    @pytest.mark.parametrize("name", ["x", "org/with-a-slash", "qwen3:8b", "my own model", "größer"])
    def test_the_part_after_the_slash_is_not_checked(self, name: str) -> None:
        assert configured_providers({"OPENAI_API_KEY": "k"}).named(f"openai/{name}").name == "openai"

    @pytest.mark.parametrize("model", ["demo/x", "demo/", "demo/demo"])
    def test_there_is_one_demo_model(self, model: str) -> None:
        with pytest.raises(InvalidRequest, match="does not name a model"):
            configured_providers({}).named(model)

    def test_the_settings_reach_the_providers(self, tmp_path: Path) -> None:
        settings = settings_for(tmp_path, openai_api="chat")
        assert default_providers(settings, {"OPENAI_API_KEY": "k"}).named("openai/x").target == "openai_chat"

    async def test_a_server_of_ones_own_needs_no_key(self) -> None:
        async with connected(CHAT, wire=CHAT.wire(key="none")) as line:
            registry = configured_providers({"OPENAI_BASE_URL": f"{line.server.url}/v1"})
            assert "openai/local-model" in await registry.models()
            await registry.close()


class TestTheApiOfOpenAI:
    @pytest.mark.parametrize(
        "base_url, target",
        [
            (None, "openai_responses"),
            ("https://api.openai.com/v1", "openai_responses"),
            ("https://eu.api.openai.com/v1", "openai_responses"),
            ("https://api.openai.com.evil.example/v1", "openai_chat"),
            ("https://openrouter.ai/api/v1", "openai_chat"),
            (LOCAL, "openai_chat"),
        ],
    )
    def test_follows_from_the_address(self, base_url: str | None, target: str) -> None:
        assert openai_of({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": base_url or ""}).target == target

    def test_can_be_set(self) -> None:
        local = Account(api_key="k", base_url=LOCAL)
        assert OpenAIProvider(local, api="responses").target == "openai_responses"
        assert OpenAIProvider(Account(api_key="k"), api="chat").target == "openai_chat"

    @pytest.mark.parametrize(
        "name, does",
        [
            ("o3", True),
            ("o4-mini", True),
            ("gpt-5", True),
            ("gpt-5.2-codex", True),
            ("gpt-10", True),
            ("gpt-5-chat-latest", False),
            ("gpt-4o", False),
            ("gpt-4.1-mini", False),
            ("chatgpt-4o-latest", False),
            ("ft:gpt-4o:acme", False),
        ],
    )
    def test_guesses_by_the_name_whether_a_model_reasons(self, name: str, does: bool) -> None:
        assert reasons(name) is does


class Listing(DemoProvider):
    """Lists what it is told to, or fails."""

    def __init__(self, name: str, models: list[str] | None) -> None:
        super().__init__()
        self.name = name
        self.listed = models
        self.asked = 0

    async def models(self) -> list[str]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.listed is None:
            raise ProviderFailed("away")
        return self.listed


class TestTheListOfModels:
    async def test_has_what_each_provider_serves_by_its_full_name(self) -> None:
        async with connected(ANTHROPIC) as claude, connected(CHAT) as local:
            registry = ProviderRegistry([claude.provider, local.provider, DemoProvider()])
            assert await registry.models() == [
                "anthropic/claude-adaptive",
                "anthropic/claude-blind",
                "anthropic/claude-budget",
                "anthropic/claude-plain",
                "demo",
                "openai/blind-model",
                "openai/local-model",
                "openai/org/with-a-slash",
            ]

    async def test_leaves_out_providers_that_are_away(self) -> None:
        async with connected(CHAT, wire=CHAT.wire(lists_models=False)) as away, connected(ANTHROPIC) as gone:
            await gone.server.__aexit__()
            registry = ProviderRegistry([away.provider, gone.provider, DemoProvider()])
            assert await registry.models() == ["demo"]
            await gone.server.__aenter__()

    async def test_leaves_out_what_cannot_chat_at_openai_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with connected(RESPONSES) as line:
            assert "openai/whisper-1" in await line.provider.models()
            local = line.provider._address("/models")
            line.provider._account = Account(api_key="sk-test-key")
            monkeypatch.setattr(line.provider, "_address", lambda path: local)
            assert await line.provider.models() == ["openai/gpt-5-test", "openai/gpt-4o-test"]

    async def test_is_kept_for_a_while_and_a_failure_for_less(self) -> None:
        now = 1_000.0
        good, away = Listing("good", ["good/a"]), Listing("away", None)
        registry = ProviderRegistry([good, away], monotonic=lambda: now)
        await asyncio.gather(*(registry.models() for _ in range(20)))
        assert (good.asked, away.asked) == (1, 1)
        now += AWAY_SECONDS + 1
        away.listed = ["away/b"]
        assert await registry.models() == ["away/b", "good/a"]
        assert (good.asked, away.asked) == (1, 2)
        now += KEPT_SECONDS + 1
        await registry.models()
        assert (good.asked, away.asked) == (2, 3)


class TestTheRoutes:
    async def test_list_the_models_and_refuse_those_without_a_key(self, tmp_path: Path) -> None:
        async with connected(ANTHROPIC) as line:
            unset = configured_providers({})._unset
            providers = ProviderRegistry([line.provider, DemoProvider()], unset=unset)
            async with ApiServer.start(settings_for(tmp_path, model="demo"), providers=providers) as api:
                service = await api.tenant()
                listed = await service.read("/v1/models")
                assert {"id": "anthropic/claude-plain", "provider": "anthropic"} in listed["data"]
                assert {"id": "demo", "provider": "demo"} in listed["data"]
                refused = await service.post("/v1/turns", json={"message": "Hi", "model": "openai/gpt-x"})
                assert code_of(refused) == (422, "invalid_request")
                assert "OPENAI_API_KEY" in refused.json()["detail"]

    async def test_take_no_name_that_is_none_anywhere(self, tmp_path: Path) -> None:
        providers = configured_providers({"OPENAI_API_KEY": "a-key-of-nobody"})
        async with ApiServer.start(settings_for(tmp_path, model="demo"), providers=providers) as api:
            service = await api.tenant()
            workspace = (await service.read("/v1/workspaces"))["data"][0]["id"]
            conversation = (await service.post("/v1/conversations", json={})).json()["id"]
            places: tuple[tuple[str, str, dict[str, str]], ...] = (
                ("POST", "/v1/turns", {"message": "Hi"}),
                ("POST", "/v1/conversations", {}),
                ("PATCH", f"/v1/conversations/{conversation}", {}),
                ("POST", "/v1/agents", {"name": "A"}),
                ("POST", "/v1/workspaces", {"name": "W"}),
                ("PATCH", f"/v1/workspaces/{workspace}", {}),
            )
            for model in ("openai", "openai/", "openai/ x", "openai/fast\n", "demo/x"):
                for method, path, body in places:
                    refused = await service.request(method, path, json={**body, "model": model})
                    assert code_of(refused) == (422, "invalid_request"), (path, model)
                    assert "does not name a model" in refused.json()["detail"]
            assert len((await service.read("/v1/conversations"))["data"]) == 1
            assert (await service.read("/v1/agents"))["data"] == []
            assert [each["model"] for each in (await service.read("/v1/workspaces"))["data"]] == [None]
