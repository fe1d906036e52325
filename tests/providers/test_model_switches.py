"""One conversation with another provider at every turn: no provider refuses the history that another one left.

Through the front door: a real server, real SDKs, real HTTP, and at the other end servers that judge every request by
their vendor's rules.
"""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from tests.engine.harness import FailOnDefect
from tests.files.samples import PNG
from tests.providers.wire.openai_chat import chunk
from tests.providers.wire.script import Call, Cut, ErrorEvent, Hang, Raw, Refuse, Say, Script, Stop, Think, Wait
from tests.providers.wire.vendors import ANTHROPIC, CHAT, RESPONSES, Line, connected
from tests.store.factories import a_tenant
from turnkeep.compiler import Contents, Gone, PictureContent
from turnkeep.config import EngineSettings
from turnkeep.engine import Engine, Options, Question, Services
from turnkeep.ids import ConversationId, FileId
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.store.sqlite import SqliteStore
from turnkeep.streaming.hub import LocalHub
from turnkeep.tools.functions import tool
from turnkeep.tools.registry import ToolRegistry
from turnkeep_client.wire.blocks import FileRef, Text

PICTURE = {"type": "image", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
MODELS = [
    "anthropic/claude-budget",
    "compatible/local-model",
    "openai/gpt-5-test",
    "anthropic/claude-adaptive",
    "compatible/blind-model",
    "openai/gpt-4o-test",
    "anthropic/claude-blind",
]
REASONERS = {"anthropic/claude-adaptive", "anthropic/claude-budget", "compatible/local-model", "openai/gpt-5-test"}


@tool(idempotent=True)
async def weather(city: str) -> str:
    """What the weather is."""
    return f"It is 12 °C in {city}."


@tool
async def crash() -> str:
    """Breaks."""
    raise RuntimeError("the tool fell over")


@tool
async def wait_for_ever() -> str:
    """Never comes back."""
    await asyncio.Event().wait()
    return ""


TOOLS = (weather, crash, wait_for_ever)


class Site:
    """A server of ours and the three others."""

    def __init__(self, api: ApiServer, client: Client, lines: dict[str, Line]) -> None:
        self.api = api
        self.client = client
        self.lines = lines
        self.conversation: str | None = None

    def line(self, model: str) -> Line:
        return self.lines[model.partition("/")[0]]

    async def ask(self, model: str, *scripts: Script, message: Any = "Go on.") -> Any:
        """A turn, to its end."""
        self.line(model).server.says(*scripts)
        body = {"conversation_id": self.conversation, "model": model, "message": message}
        told = await self.client.ask(**{name: value for name, value in body.items() if value is not None})
        self.conversation = told["conversation_id"]
        return told["turn"]

    async def stop(self, model: str, *scripts: Script, at_request: int) -> Any:
        """A turn that is cancelled once the model was asked so often and hangs, or its tool does."""
        server = self.line(model).server
        asked = len(server.bodies)
        server.says(*scripts)
        began = await self.client.ask("Go on.", conversation_id=self.conversation, model=model, background=True)
        async with asyncio.timeout(30):
            while len(server.bodies) < asked + at_request:  # noqa: ASYNC110 - the server is another program
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
        response = await self.client.post(f"/v1/turns/{began['turn_id']}/cancel")
        return response.json()

    def assert_never_refused(self) -> None:
        """Nothing but a picture that a model cannot see, which is not sent to it a second time."""
        for name, line in self.lines.items():
            assert line.wire.violations == [], name
            assert line.wire.refused in ([], ["blind-model is not a multimodal model"]), name


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        lines = {
            "anthropic": await stack.enter_async_context(connected(ANTHROPIC, seed=None)),
            "openai": await stack.enter_async_context(connected(RESPONSES, seed=None)),
            "compatible": await stack.enter_async_context(connected(CHAT, seed=None)),
        }
        lines["compatible"].provider.name = "compatible"
        providers = ProviderRegistry([line.provider for line in lines.values()])
        tools = ToolRegistry(TOOLS, offered_to_all=[each.spec.name for each in TOOLS])
        settings = settings_for(tmp_path, model=MODELS[0], tool_rounds=3)
        api = await stack.enter_async_context(ApiServer.start(settings, tools=tools, providers=providers))
        yield Site(api, await api.tenant(), lines)


def thinking(model: str) -> list[Any]:
    return [Think("Let me think.", "cHJvb2Y=")] if model in REASONERS else []


class Happening:
    """One kind of turn, and how it must end."""

    def __init__(self, site: Site, model: str) -> None:
        self.site = site
        self.model = model
        self.think = thinking(model)

    async def plain(self) -> None:
        await self._answered([*self.think, Say("Yes.")], text="Yes.")

    async def empty(self) -> None:
        await self._answered([], text="")

    async def tools(self) -> None:
        calls = [Call("weather", {"city": city}) for city in ("Bern", "Basel")]
        await self._answered([*self.think, Say("Let me see."), *calls], [*self.think, Say("12 °C.")], text="12 °C.")

    async def thoughtless_tools(self) -> None:
        """A loop that began without thinking may not be switched to it."""
        await self._answered([Call("weather", {"city": "Bern"})], [Say("12 °C.")], text="12 °C.")

    async def redacted(self) -> None:
        hidden = [Think("", "c2VjcmV0")] if self.think and not self.model.startswith("compatible") else []
        call = Call("weather", {"city": "Bern"})
        await self._answered([*hidden, call], [*hidden, Say("12 °C.")], text="12 °C.")

    async def broken_arguments(self) -> None:
        await self._answered([*self.think, Call("weather", '{"city": "Be')], [Say("Sorry.")], text="Sorry.")

    async def unknown_tool(self) -> None:
        await self._answered([*self.think, Call("no_such_tool", {"a": 1})], [Say("Sorry.")], text="Sorry.")

    async def crashed_tool(self) -> None:
        await self._answered([*self.think, Call("crash")], [Say("It broke.")], text="It broke.")

    async def stubborn(self) -> None:
        call = [*self.think, Call("weather", {"city": "Bern"})]
        await self._answered(call, call, call, [Say("Enough.")], text="Enough.")
        assert self.site.line(self.model).server.bodies[-1]["tool_choice"] in ("none", {"type": "none"})

    async def cut_off(self) -> None:
        stop = Stop(self.site.line(self.model).vendor.cut_off)
        await self._answered([*self.think, Say("And so"), stop], text="And so")

    async def fails_in_words(self) -> None:
        await self._failed([*self.think, Say("It is"), ErrorEvent("overloaded_error", "Overloaded")])

    async def fails_in_thought(self) -> None:
        await self._failed([Think("Let me"), Cut()] if self.think else [Say("Le"), Cut()])

    async def fails_in_a_call(self) -> None:
        await self._failed([*self.think, Say("Let me see."), Call("weather", {"city": "Bern"}), Cut()])

    async def fails_after_a_tool(self) -> None:
        await self._failed(
            [*self.think, Call("weather", {"city": "Bern"})], [Refuse(403, "Not today", "permission_error")]
        )

    async def stopped_in_words(self) -> None:
        await self._stopped([*self.think, Say("It is"), Hang()], at_request=1)

    async def stopped_in_a_tool(self) -> None:
        calls = [Call("weather", {"city": "Bern"}), Call("wait_for_ever")]
        await self._stopped([*self.think, Say("Let me see."), *calls], at_request=1)

    async def stopped_after_a_tool(self) -> None:
        await self._stopped([*self.think, Call("weather", {"city": "Bern"})], [Hang()], at_request=2)

    async def _answered(self, *scripts: Script, text: str) -> None:
        message = ["Go on.", [PICTURE, {"type": "text", "text": "What is this?"}]]
        turn = await self.site.ask(self.model, *scripts, message=random.Random(len(scripts)).choice(message))
        assert turn["status"] == "succeeded", (self.model, turn["error"])
        assert turn["response"] == text

    async def _failed(self, *scripts: Script) -> None:
        turn = await self.site.ask(self.model, *scripts, message=[PICTURE, {"type": "text", "text": "And this?"}])
        assert turn["status"] == "failed"
        assert turn["error"]["code"] == "provider_error"

    async def _stopped(self, *scripts: Script, at_request: int) -> None:
        turn = await self.site.stop(self.model, *scripts, at_request=at_request)
        assert turn["status"] == "cancelled"


HAPPENINGS = [name for name, value in vars(Happening).items() if not name.startswith("_") and callable(value)]


async def converse(site: Site, plan: Sequence[tuple[str, str]]) -> None:
    await Happening(site, MODELS[0]).plain()
    for model, happening in plan:
        await getattr(Happening(site, model), happening)()
        site.assert_never_refused()


class TestAnotherProviderAtEveryTurn:
    @pytest.mark.parametrize(
        "first", [MODELS[0], *(pytest.param(model, marks=pytest.mark.nightly) for model in MODELS[1:])]
    )
    async def test_goes_on_after_everything_that_can_happen_to_a_turn(self, site: Site, first: str) -> None:
        """Every happening with this model, each followed by a turn of another one."""
        others = [model for model in MODELS if model.partition("/")[0] != first.partition("/")[0]]
        plan = []
        for number, happening in enumerate(HAPPENINGS):
            plan += [(first, happening), (others[number % len(others)], "tools" if number % 2 else "plain")]
        await converse(site, plan)

    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 40))])
    async def test_goes_on_in_any_order(self, site: Site, seed: int) -> None:
        chance = random.Random(seed)
        plan = []
        model = MODELS[0]
        for _ in range(20):
            model = chance.choice([each for each in MODELS if each.partition("/")[0] != model.partition("/")[0]])
            plan.append((model, chance.choice(HAPPENINGS)))
        await converse(site, plan)

    async def test_sends_each_provider_only_its_own_reasoning(self, site: Site) -> None:
        for model, proof in (("anthropic/claude-adaptive", "YW50"), ("openai/gpt-5-test", "b3Bl")):
            await site.ask(model, [Think("Hm.", proof), Say("Yes.")])
        await site.ask("compatible/local-model", [Think("Hm."), Say("Yes.")])
        for model in ("anthropic/claude-adaptive", "openai/gpt-5-test", "compatible/local-model"):
            await site.ask(model, [Say("Yes.")])
        asked = {name: str(line.server.bodies[-1]) for name, line in site.lines.items()}
        assert {name: ("YW50" in text, "b3Bl" in text) for name, text in asked.items()} == {
            "anthropic": (True, False),
            "openai": (False, True),
            "compatible": (False, False),
        }
        site.assert_never_refused()

    async def test_is_replayed_as_the_next_model_gets_it(self, site: Site) -> None:
        """With its own reasoning where the conversation's model thinks, without where it does not."""
        picture = [PICTURE, {"type": "text", "text": "What is this?"}]
        await site.ask("anthropic/claude-adaptive", [Think("Hm.", "YW50"), Say("Yes.")], message=picture)
        seen = {}
        for model in ("anthropic/claude-adaptive", "anthropic/claude-blind", "compatible/local-model"):
            address = f"/v1/conversations/{site.conversation}"
            assert (await site.client.patch(address, json={"model": model})).status_code == 200
            replay = str(await site.client.read(f"{address}/replay"))
            seen[model] = ("YW50" in replay, PICTURE["data"] in replay)
        assert seen == {
            "anthropic/claude-adaptive": (True, True),
            "anthropic/claude-blind": (False, False),
            "compatible/local-model": (False, True),
        }


class TestTheEngine:
    async def test_a_model_that_only_pings_is_a_timeout(self, tmp_path: Path) -> None:
        """The SDKs do not show pings, and pings keep the connection alive: only the engine can tell."""
        async with connected(ANTHROPIC, seed=None) as line:
            settings = settings_for(tmp_path, model=ANTHROPIC.model, provider_timeout_seconds=2.0)
            line.server.says([Say("It is"), Hang(ping_seconds=0.1)])
            async with ApiServer.start(settings, providers=ProviderRegistry([line.provider])) as api:
                told = await (await api.tenant()).ask()
                assert told["turn"]["error"]["code"] == "model_timeout"
                assert told["message"]["content"] == [{"type": "text", "text": "It is"}]
                await asyncio.wait_for(line.server.gone.wait(), 20)

    async def test_a_call_whose_arguments_take_long_is_not_a_timeout(self, tmp_path: Path) -> None:
        pieces = ['{"city"', ': "', "B", "e", "r", 'n"}']
        slowly: list[Any] = []
        for piece in pieces:
            call = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": piece}}
            slowly += [Raw(chunk({"model": "m"}, {"tool_calls": [call]})), Wait(lambda: asyncio.sleep(0.4))]
        async with connected(CHAT, seed=None) as line:
            line.server.says([*slowly, Stop("tool_calls")], [Say("12 °C.")])
            settings = settings_for(tmp_path, model=CHAT.model, provider_timeout_seconds=2.0)
            tools = ToolRegistry([weather], offered_to_all=["weather"])
            async with ApiServer.start(settings, tools=tools, providers=ProviderRegistry([line.provider])) as api:
                told = await (await api.tenant()).ask()
                assert told["turn"]["status"] == "succeeded", told["turn"]["error"]
                assert "in Bern" in str(told["message"]["content"])

    async def test_shows_files_to_models_that_see_and_names_them_to_others(self, tmp_path: Path) -> None:
        picture = FileRef(file_id=FileId("file_1"), name="cat.png", mime_type="image/png", size=8)
        lost = FileRef(file_id=FileId("file_2"), name="dog.png", mime_type="image/png", size=8)

        class Reader:
            async def contents(self, rows: Sequence[Message], principal: Principal, *, sees_images: bool) -> Contents:
                shown: dict[FileId, Any] = {lost.file_id: Gone()}
                if sees_images:
                    shown[picture.file_id] = PictureContent("image/png", "iVBORw0KGgo=")
                return shown

            async def present(self, file_ids: Sequence[FileId], principal: Principal) -> set[FileId]:
                return set(file_ids) - {lost.file_id}

            async def forget_erased(self) -> None: ...

        async with AsyncExitStack() as stack:
            store = await SqliteStore.open(tmp_path / "turnkeep.db")
            stack.push_async_callback(store.close)
            tenant = await a_tenant(store)
            line = await stack.enter_async_context(connected(ANTHROPIC, brain=lambda body: [Say("Yes.")]))
            observer = FailOnDefect()
            engine = Engine(
                Services(
                    store=store,
                    hub=LocalHub(),
                    providers=ProviderRegistry([line.provider]),
                    tools=ToolRegistry(),
                    settings=EngineSettings(model=ANTHROPIC.model, lease_seconds=5.0),
                    observer=observer,
                    files=Reader(),
                ),
                worker="worker-1",
            )
            await engine.start()
            stack.push_async_callback(engine.close)
            stack.push_async_callback(engine.drain, seconds=0)
            conversation: ConversationId | None = None
            for model in (ANTHROPIC.model, "anthropic/claude-blind", ANTHROPIC.model):
                question = Question(
                    principal=tenant.ann,
                    message=(picture, lost, Text(text="What is it?")),
                    conversation_id=conversation,
                    options=Options(model=model),
                )
                claimed = await engine.ask(question)
                conversation = claimed.turn.conversation_id
                turn = await engine.wait(claimed.turn.id)
                assert turn.status == "succeeded"
            assert observer.defects == []
            pictures = [str(body).count("iVBORw0KGgo=") for body in line.server.bodies]
            assert pictures == [1, 0, 3]
            assert "no longer available" in str(line.server.bodies[0])
            assert line.wire.violations == []
