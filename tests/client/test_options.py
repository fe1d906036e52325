"""For whom a client acts, how long it waits, what it is built on, and how its values read."""

import asyncio
import inspect
import time
from collections.abc import Iterator
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest

import turnkeep_client
from tests.api.harness import OPERATOR_KEY
from tests.client.site import Site, rounds_of
from tests.files.samples import PNG
from turnkeep.client import AsyncTurnkeep, ConnectionLost, Delta, File, Turnkeep, WaitTimeout
from turnkeep.errors import NotFound, Unavailable
from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Script, Until
from turnkeep_client import stream, sync, wire
from turnkeep_client.errors import Refused
from turnkeep_client.transport import Resource
from turnkeep_client.wire.base import RequestBody


class TestActingForUsers:
    async def test_one_client_serves_many_users_on_its_connections(self, turnkeep: AsyncTurnkeep) -> None:
        ann, bob = turnkeep.as_user("ann"), turnkeep.as_user("bob")
        answer = await ann.ask("Hello?")
        me = await ann.me()
        assert me.user is not None
        assert (me.user.external_id, me.role) == ("ann", "service")
        assert (await turnkeep.me()).user is None
        assert [one.id async for one in ann.conversations.list()] == [answer.conversation_id]
        assert [one async for one in bob.conversations.list()] == []
        await ann.close()
        assert (await bob.ask("Still there?")).text == "Hello there."

    async def test_the_workspace_may_be_another_one(self, turnkeep: AsyncTurnkeep) -> None:
        other = await turnkeep.workspaces.create("Other")
        ann = turnkeep.as_user("ann", workspace_id=other.id)
        assert (await ann.me()).workspace_id == other.id
        assert (await ann.with_options(timeout_seconds=5).me()).workspace_id == other.id

    def test_the_sync_client_does_the_same(self) -> None:
        def respond(request: httpx.Request) -> httpx.Response:
            users.append(request.headers.get("turnkeep-user"))
            return httpx.Response(404, json={"code": "not_found"})

        users: list[str | None] = []
        with Turnkeep("https://chat.example", "key", transport=httpx.MockTransport(respond)) as turnkeep:
            for client in (turnkeep.as_user("ann"), turnkeep, turnkeep.as_user("Ünal")):
                with pytest.raises(NotFound):
                    client.me()
        assert users[:2] == ["ann", None]
        assert len(users) == 3


async def silence(request: httpx.Request) -> httpx.Response:
    """A server that takes requests and never answers them, as httpx sees it."""
    await asyncio.sleep(request.extensions["timeout"]["read"])
    raise httpx.ReadTimeout("silence", request=request)


class TestTimeouts:
    async def test_one_call_may_have_its_own(self) -> None:
        async with AsyncTurnkeep("https://chat.example", "key", transport=httpx.MockTransport(silence)) as turnkeep:
            began = time.monotonic()
            with pytest.raises(ConnectionLost):
                await turnkeep.with_options(timeout_seconds=0.2).conversations.get("conv_1")
            assert time.monotonic() - began < 30, "the client's own limits are a minute each"
            assert turnkeep.options.timeout_seconds == 60

    async def test_of_a_question_leaves_the_turn_to_be_followed(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        gate = asyncio.Event()
        site.model = lambda request: ["One ", Until(gate.wait), "two."]
        with pytest.raises(WaitTimeout) as caught:
            await turnkeep.ask("Count!", background=True, timeout_seconds=1)
        assert caught.value.turn_id is not None
        with pytest.raises(WaitTimeout):
            await turnkeep.turns.wait(caught.value.turn_id, timeout_seconds=0.2)
        gate.set()
        assert (await turnkeep.turns.wait(caught.value.turn_id)).text == "One two."

    async def test_of_a_stream_lets_it_be_read_on(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        gate = asyncio.Event()
        site.model = lambda request: ["One ", Until(gate.wait), "two."]
        async with turnkeep.stream("Count!", background=True) as stream:
            with pytest.raises(WaitTimeout):
                await stream.result(timeout_seconds=1)
            gate.set()
            assert (await stream.result()).text == "One two."


class TestATransportOfTheCaller:
    async def test_takes_the_place_of_the_network_and_is_not_closed(self) -> None:
        class Counting(httpx.MockTransport):
            closed = 0

            async def aclose(self) -> None:
                self.closed += 1

        transport = Counting(lambda request: httpx.Response(200, json={"data": [{"id": "demo", "provider": "demo"}]}))
        async with AsyncTurnkeep("https://chat.example", "key", transport=transport) as turnkeep:
            assert [model.id async for model in turnkeep.models.list()] == ["demo"]
        assert transport.closed == 0

    async def test_may_be_the_application_itself(self, site: Site) -> None:
        assert site.runtime is not None
        from turnkeep.api.app import create_app

        app = httpx.ASGITransport(create_app(site.runtime))
        async with AsyncTurnkeep("http://127.0.0.1", OPERATOR_KEY, transport=app) as turnkeep:
            assert (await turnkeep.ask("Hello?")).text == "Hello there."


class TestErrors:
    async def test_have_the_status_and_the_id_of_the_request(self, turnkeep: AsyncTurnkeep) -> None:
        with pytest.raises(NotFound) as caught:
            await turnkeep.conversations.get("conv_" + "0" * 32)
        error = caught.value
        assert error.status == 404
        assert error.request_id is not None
        assert error.request_id.startswith("req_")
        assert repr(error) == f"NotFound({error.detail!r}, status=404, request_id={error.request_id!r})"

    async def test_of_a_proxy_have_the_status(self) -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(418, text="tea"))
        async with AsyncTurnkeep("https://chat.example", "key", transport=transport) as turnkeep:
            with pytest.raises(Refused) as caught:
                await turnkeep.me()
        assert (caught.value.status, caught.value.request_id) == (418, None)

    def test_that_came_from_no_response_have_neither(self) -> None:
        assert (Unavailable("x").status, Unavailable("x").request_id) == (None, None)
        assert repr(Unavailable("x")) == "Unavailable('x')"


class TestReading:
    async def test_the_text_and_the_picture_of_a_file(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.conversations.create()
        sent: list[int] = []
        text = await turnkeep.files.upload(b"buy milk", name="list.txt", conversation_id=made.id, on_sent=sent.append)
        picture = await turnkeep.files.upload(PNG, name="red.png", conversation_id=made.id)
        assert sent == [len(b"buy milk")]
        assert (await turnkeep.files.text(text.id)).text == "buy milk"
        assert (await turnkeep.files.thumbnail(picture.id)).startswith((b"\x89PNG", b"\xff\xd8"))
        copy = await turnkeep.files.save(text.id)
        assert copy.conversation_id is None
        assert [file.id async for file in turnkeep.files.list()] == [copy.id]

    @pytest.mark.parametrize("form", ["list", "object", "text"])
    async def test_a_history_is_imported_as_python_has_it(self, turnkeep: AsyncTurnkeep, form: str) -> None:
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
        document: Any = {
            "list": messages,
            "object": {"messages": messages},
            "text": msgspec.json.encode(messages).decode(),
        }
        made = await turnkeep.conversations.import_(document[form], title="Old")
        said = [message.text async for message in turnkeep.conversations.messages(made.conversation.id)]
        assert said == ["Hi", "Hello."]

    async def test_none_takes_a_model_away(self, turnkeep: AsyncTurnkeep) -> None:
        made = await turnkeep.conversations.create(model="scripted")
        assert (await turnkeep.conversations.update(made.id, title="T")).model == "scripted"
        assert (await turnkeep.conversations.update(made.id, model=None)).model is None


def groups() -> Iterator[type]:
    yield from Resource.__subclasses__()
    yield from sync.SyncResource.__subclasses__()
    yield from (AsyncTurnkeep, Turnkeep, stream.TurnStream, sync.Stream, sync.SyncRun, sync.Items, stream.TurnView)


@pytest.mark.parametrize("group", list(groups()), ids=lambda group: group.__name__)
class TestVerbs:
    def test_each_has_a_docstring(self, group: type) -> None:
        silent = [
            name
            for name, value in vars(group).items()
            if not name.startswith("_") and (callable(value) or isinstance(value, property)) and not value.__doc__
        ]
        assert silent == []

    def test_each_group_has_one(self, group: type) -> None:
        assert inspect.getdoc(group)


class TestNames:
    def test_each_public_value_has_the_name_that_it_is_imported_by(self) -> None:
        aliases = {"Event"}  # a union
        found = {name: getattr(turnkeep_client, name) for name in turnkeep_client.__all__ if name not in aliases}
        assert {name: value.__name__ for name, value in found.items()} == {name: name for name in found}
        assert (Delta, File) == (wire.Delta, wire.File)

    @pytest.mark.parametrize("name", ["Place", "View", "WrittenFile", "Preview"])
    def test_there_is_no_second_one(self, name: str) -> None:
        from turnkeep_client import discovery
        from turnkeep_client.wire import events

        assert not any(hasattr(module, name) for module in (wire, events, stream, discovery, turnkeep_client))

    async def test_a_client_and_its_parts_say_what_they_are(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        assert repr(turnkeep) == f"AsyncTurnkeep({site.url!r})"
        assert repr(turnkeep.as_user("ann")) == f"AsyncTurnkeep({site.url!r}, user='ann')"
        assert repr(turnkeep.files) == f"FileResource({site.url!r})"
        with Turnkeep(site.url, OPERATOR_KEY, user="ann") as blocking:
            assert repr(blocking) == f"Turnkeep({site.url!r}, user='ann')"
            assert repr(blocking.files) == repr(turnkeep.files)
            assert repr(blocking.models.list()).startswith("Items(iterate over them")
        async with turnkeep.stream("Hello?") as followed:
            assert repr(followed) == "TurnStream(not asked yet, cursor='')"
            await followed.result()
            assert repr(followed) == f"TurnStream({followed.turn_id}, over)"
        assert OPERATOR_KEY not in repr(vars(turnkeep))


RESPONSES = [
    value
    for value in vars(wire).values()
    if inspect.isclass(value) and issubclass(value, msgspec.Struct) and not issubclass(value, RequestBody)
]


class TestAbsentFields:
    @pytest.mark.parametrize("shape", RESPONSES, ids=lambda shape: shape.__name__)
    def test_are_none_and_never_unset(self, shape: type[msgspec.Struct]) -> None:
        unset = {name for name, hint in get_type_hints(shape).items() if "UnsetType" in repr(hint)}
        any_json = {"args", "result", "error"} if issubclass(shape, wire.Step | wire.StepPart) else set()
        # A problem becomes an error before a caller sees it, and only a runner sees an environment.
        assert unset == any_json or shape in {wire.Problem, wire.SandboxEnvironment}

    async def test_are_none_in_what_a_server_answers(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        agent = await turnkeep.agents.create("Help")
        assert agent.tool_secret
        assert (await turnkeep.agents.get(agent.id)).tool_secret is None
        await turnkeep.keys.create("one")
        assert [key.key async for key in turnkeep.keys.list()] == [None]
        answer = await turnkeep.as_user("ann").ask("Hello?")
        conversation = await turnkeep.conversations.get(answer.conversation_id)
        assert conversation.snippet is None
        assert conversation.user is not None
        assert conversation.user.name is None
        assert b"name" not in msgspec.json.encode(conversation.user)

    async def test_of_a_step_are_none_too(self, site: Site, turnkeep: AsyncTurnkeep) -> None:
        def model(request: ModelRequest) -> Script:
            return ["Sunny."] if rounds_of(request) else [Call("lookup", {"city": "Bern"})]

        site.model = model
        async with turnkeep.stream("Weather?") as stream:
            steps = [event async for event in stream if isinstance(event, wire.Step)]
            answer = await stream.result()
        assert [(step.status, step.result, step.error) for step in steps] == [
            ("running", None, None),
            ("succeeded", "sunny in Bern", None),
        ]
        messages = [message async for message in turnkeep.conversations.messages(answer.conversation_id)]
        for content in (answer.content, stream.content, messages[-1].content):
            [step] = [part for part in content if isinstance(part, wire.StepPart)]
            assert (step.args, step.result, step.error) == ({"city": "Bern"}, "sunny in Bern", None)
