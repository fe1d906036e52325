"""The files of a turn's sandbox: fetched as a signed zip, added with a token, announced by the worker."""

import asyncio
import hashlib
import io
import secrets
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import buckets
from tests.api.harness import STREAM, ApiServer, Client, code_of, data_of, names, read_events, settings_for
from tests.api.test_files import a_conversation, announce, form, put, storage_key_of, stored, upload
from tests.files.blocks import blocks
from tests.files.samples import ELF, PNG
from turnkeep.api.identity.authentication import hash_key
from turnkeep.api.native.sandbox import OUTPUT_FILES, bag_path
from turnkeep.config import Settings
from turnkeep.files.signed_urls import UrlSigner
from turnkeep.ids import OrgId, TurnId, new_file_id
from turnkeep.model.files import NewFile, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.providers.scripted import Until
from turnkeep.store.commands import TokenBinding

Json = Any


@pytest.fixture(params=["local"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    if request.param == "local":
        return settings_for(
            tmp_path, secret_keys=("the-first-secret-of-this-test-server", "the-second-secret-of-this-test-server")
        )
    if request.param == "postgres":
        return settings_for(tmp_path, database_url=request.getfixturevalue("api_database"))
    for name, value in buckets.shared_environ().items():
        monkeypatch.setenv(name, value)
    return settings_for(tmp_path, files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}")


class Running:
    """A turn that runs for as long as the test wants, and what its sandbox would have been given."""

    def __init__(self, server: ApiServer, user: Client, stranger: Client, conversation_id: str, turn_id: str) -> None:
        self._server = server
        self.user = user
        self.stranger = stranger
        self.conversation_id = conversation_id
        self.turn_id = TurnId(turn_id)
        self.may_end = asyncio.Event()

    @classmethod
    async def begin(cls, server: ApiServer, user: Client, **body: Json) -> "Running":
        may_end = asyncio.Event()
        server.scripts.say("Working. ", Until(may_end.wait), "Done.")
        conversation_id = body.pop("conversation_id", None) or await a_conversation(user)
        accepted = await user.ask("Go.", conversation_id=conversation_id, background=True, **body)
        made = cls(server, user, await server.client(None), conversation_id, accepted["turn_id"])
        made.may_end = may_end
        return made

    async def bag(self) -> OrgId:
        return (await self._server.runtime.store.turn_bag(self.turn_id, 1)).org_id

    async def address(self, *, attempt: int = 1, seconds: float = 300, signer: UrlSigner | None = None) -> str:
        return bag_path(
            signer or self._server.runtime.addresses,
            org_id=await self.bag(),
            turn_id=self.turn_id,
            attempt=attempt,
            expires_at=int((time.time() + seconds) * 1000),
        )

    async def token(self, *, seconds: float = 60) -> str:
        token = secrets.token_urlsafe(32)
        binding = TokenBinding(purpose="upload", turn_id=self.turn_id, attempt=1)
        await self._server.runtime.store.add_token(hash_key(token), binding, expires_in_seconds=seconds)
        return token

    async def write(self, token: str, *files: Any, turn_id: str | None = None) -> httpx.Response:
        path = f"/v1/sandbox/{turn_id or self.turn_id}/results"
        return await self.stranger.post(path, files=form(*files), headers={"authorization": token})

    async def heard(self) -> None:
        """Wait until a renewal has told the turn's holder of the files."""
        lease = self._server.runtime.engine._leases._held[self.turn_id]
        while not lease.files_written:  # noqa: ASYNC110 - the renewals have their own pace
            await asyncio.sleep(0.02)

    async def end(self) -> Json:
        self.may_end.set()
        while True:
            turn = await self.user.read(f"/v1/turns/{self.turn_id}")
            if turn["status"] != "running":
                return turn
            await asyncio.sleep(0.02)


class TestTheZip:
    @pytest.mark.parametrize("settings", ["local", "s3"], indirect=True)
    async def test_holds_the_bag_in_the_order_in_which_it_came(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        data = {"z.txt": b"last in the alphabet", "a.png": PNG, "Größe.md": b"# big\n" * 400_000}
        for name, each in data.items():
            await upload(user, conversation, name, each)
        running = await Running.begin(server, user, conversation_id=conversation)
        response = await running.stranger.get(await running.address())
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/zip"
        assert response.headers["content-length"] == str(len(response.content))
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert archive.testzip() is None
            assert archive.namelist() == list(data)
            assert {name: archive.read(name) for name in archive.namelist()} == data
        assert (await running.stranger.get(await running.address())).content == response.content
        await running.end()

    async def test_of_an_empty_bag_is_empty(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        response = await running.stranger.get(await running.address())
        assert zipfile.ZipFile(io.BytesIO(response.content)).namelist() == []
        await running.end()

    async def test_needs_an_address_of_which_every_byte_is_ours(
        self, server: ApiServer, user: Client, settings: Settings
    ) -> None:
        running, other = await Running.begin(server, user), await Running.begin(server, user)
        good = await running.address()
        flipped = [
            good[:place] + chr(ord(good[place]) ^ 1) + good[place + 1 :]
            for place in range(good.index("?") + 1, len(good))
            if chr(ord(good[place]) ^ 1).isalnum()
        ]
        stranger = await server.tenant("another tenant")
        foreign = await stranger.read("/v1/workspaces")
        assert foreign["data"]
        orgs = [org.id for org in await server.runtime.store.orgs()]
        mine = await running.bag()
        retired = UrlSigner(["a-secret-that-was-retired"])
        second = UrlSigner(settings.secret_keys[1:])
        bad = [
            *flipped,
            good.replace(running.turn_id, other.turn_id),
            *(good.replace(mine, org) for org in orgs if org != mine),
            bag_path(
                server.runtime.addresses,
                org_id=next(org for org in orgs if org != mine),
                turn_id=running.turn_id,
                attempt=1,
                expires_at=int((time.time() + 300) * 1000),
            ),
            await running.address(seconds=-1),
            await running.address(attempt=2),
            await running.address(signer=retired),
            good + "&attempt=1",
            good + "&" + good.partition("?")[2],
            good.replace("?", "?attempt=1&"),
            good.partition("?")[0],
            good.rpartition("&")[0],
        ]
        for address in bad:
            assert code_of(await running.stranger.get(address)) == (401, "unauthorized"), address
        for address in (good, await running.address(signer=second)):
            assert (await running.stranger.get(address)).status_code == 200
        assert (await running.stranger.put(good)).status_code == 405
        await running.end()
        await other.end()

    async def test_dies_with_the_turn(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        address = await running.address()
        await running.end()
        assert code_of(await running.stranger.get(address)) == (401, "unauthorized")

    async def test_breaks_off_where_a_file_is_lost(self, server: ApiServer, user: Client) -> None:
        """Nobody can take it for whole: fewer bytes come than were told."""
        conversation = await a_conversation(user)
        await upload(user, conversation, "a.txt", b"here")
        lost = await upload(user, conversation, "b.txt", b"gone")
        running = await Running.begin(server, user, conversation_id=conversation)
        stored_as = await storage_key_of(server, lost)
        await server.runtime.bag.objects.delete([stored_as])
        with pytest.raises(httpx.RemoteProtocolError):
            await running.stranger.get(await running.address())
        await running.end()

    async def test_is_an_error_where_nothing_can_be_read(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        lost = await upload(user, conversation, "a.txt", b"gone")
        running = await Running.begin(server, user, conversation_id=conversation)
        stored_as = await storage_key_of(server, lost)
        await server.runtime.bag.objects.delete([stored_as])
        assert code_of(await running.stranger.get(await running.address())) == (404, "not_found")
        await running.end()

    @pytest.mark.parametrize("settings", ["local", "s3"], indirect=True)
    async def test_bytes_that_changed_are_not_taken_for_the_file(self, server: ApiServer, user: Client) -> None:
        """Whoever unpacks the zip finds that they are not those which were uploaded."""
        conversation = await a_conversation(user)
        await upload(user, conversation, "a.txt", b"as it was")
        changed = await upload(user, conversation, "b.txt", b"as it was")
        running = await Running.begin(server, user, conversation_id=conversation)
        stored_as = await storage_key_of(server, changed)
        await server.runtime.bag.objects.put(stored_as, blocks(b"as it is "))
        response = await running.stranger.get(await running.address())
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert archive.read("a.txt") == b"as it was"
            with pytest.raises(zipfile.BadZipFile, match="CRC"):
                archive.read("b.txt")
        await running.end()

    @pytest.mark.parametrize("settings", ["local", "postgres"], indirect=True)
    async def test_holds_every_kind_of_file_with_its_checksum(self, server: ApiServer, user: Client) -> None:
        """Uploaded in either way, saved, and written back; those from before checksums were kept too."""
        conversation = await a_conversation(user)
        data = {name: name.encode() * 1_000 for name in ("form.txt", "put.txt", "copy.txt", "older.txt", "out.txt")}
        await upload(user, conversation, "form.txt", data["form.txt"])
        promised = await announce(user, "put.txt", data["put.txt"], conversation_id=conversation)
        await put(promised, data["put.txt"])
        assert (await user.post(f"/v1/files/{promised['file']['id']}/complete")).status_code == 200
        elsewhere = await upload(user, await a_conversation(user), "copy.txt", data["copy.txt"])
        await user.post(f"/v1/files/{elsewhere['id']}/save", json={"conversation_id": conversation})
        running = await Running.begin(server, user, conversation_id=conversation)
        bag = await server.runtime.store.turn_bag(running.turn_id, 1)
        await self._older_file(server, bag, "older.txt", data["older.txt"])
        assert (await running.write(await running.token(), ("out.txt", data["out.txt"]))).status_code == 201
        bag = await server.runtime.store.turn_bag(running.turn_id, 1)
        assert {file.name: file.crc32 for file in bag.files} == {
            name: None if name == "older.txt" else zlib.crc32(each) for name, each in data.items()
        }
        response = await running.stranger.get(await running.address())
        assert response.headers["content-length"] == str(len(response.content))
        with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
            assert archive.namelist() == list(data)
            assert {name: archive.read(name) for name in archive.namelist()} == data
        await running.end()

    @staticmethod
    async def _older_file(server: ApiServer, bag: TurnBag, name: str, data: bytes) -> None:
        """As a release made it that kept no checksum."""
        new = NewFile(
            id=new_file_id(),
            conversation_id=bag.conversation_id,
            name=name,
            mime_type="text/plain",
            size=len(data),
            storage_key=f"bag/{bag.workspace_id}/{bag.conversation_id}/{name}",
            sha256=hashlib.sha256(data).hexdigest(),
        )
        await server.runtime.bag.objects.put(new.storage_key, blocks(data))
        service = Principal(org_id=bag.org_id, workspace_id=bag.workspace_id, user_id=None, role="service")
        await server.runtime.store.add_files(service, [new])

    async def test_a_key_does_not_open_it(self, server: ApiServer, service: Client, user: Client) -> None:
        running = await Running.begin(server, user)
        path = f"/v1/sandbox/{running.turn_id}/bag.zip"
        for client in (service, user):
            assert code_of(await client.get(path)) == (401, "unauthorized")
        await running.end()


class TestWritingBack:
    @pytest.mark.parametrize("settings", ["local", "s3"], indirect=True)
    async def test_files_join_the_bag_and_following_turns_see_them(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        await upload(user, conversation, "out.csv", b"a,b\n")
        running = await Running.begin(server, user, conversation_id=conversation)
        response = await running.write(await running.token(), ("out.csv", b"1,2\n"), ("model.bin", ELF))
        assert response.status_code == 201, response.text
        files = response.json()["data"]
        assert [(file["name"], file["source"], file["mime_type"]) for file in files] == [
            ("out-1.csv", "sandbox", "text/csv"),
            ("model.bin", "sandbox", "application/octet-stream"),
        ]
        assert (await user.read(f"/v1/conversations/{conversation}/files"))["data"][1:] == files
        assert (await user.get(f"/v1/files/{files[0]['id']}/content")).content == b"1,2\n"
        await running.heard()
        turn = await running.end()
        assert turn["files"] == files
        again = await Running.begin(server, user, conversation_id=conversation, attachment_ids=[files[0]["id"]])
        zipped = await again.stranger.get(await again.address())
        assert "out-1.csv" in zipfile.ZipFile(io.BytesIO(zipped.content)).namelist()
        await again.end()

    async def test_too_many_at_once_do_not_cost_the_token(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        token = await running.token()
        refused = await running.write(token, *((f"{n}.txt", b"x") for n in range(OUTPUT_FILES + 1)))
        assert code_of(refused) == (422, "too_many_files")
        assert "The token is still valid, for one form" in refused.json()["detail"]
        assert "next request" not in refused.json()["detail"]
        assert (await running.write(token, ("all.txt", b"x"))).status_code == 201
        await running.end()

    async def test_readers_get_an_event_before_the_end(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        written = (await running.write(await running.token(), ("out.txt", b"result"))).json()["data"]
        await running.heard()
        await running.end()
        async with user.stream("GET", f"/v1/turns/{running.turn_id}/events", headers=STREAM) as response:
            events = await read_events(response)
        assert names(events) == ["turn", "files", "result"]
        assert data_of(events[1])["files"] == written
        result = data_of(events[2])
        shown = {"type": "file", "file_id": written[0]["id"], "name": "out.txt", "mime_type": "text/plain", "size": 6}
        assert shown in result["content"]
        history = (await user.read(f"/v1/conversations/{running.conversation_id}/messages"))["data"]
        assert history[-1]["content"] == result["content"]

    async def test_of_200_at_once_exactly_one_wins(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        token = await running.token()
        answers = await asyncio.gather(*(running.write(token, (f"{n}.txt", b"x")) for n in range(200)))
        assert sorted(answer.status_code for answer in answers) == [201] + [401] * 199
        assert len((await user.read(f"/v1/conversations/{running.conversation_id}/files"))["data"]) == 1
        assert len(await stored(server)) == 1
        await running.end()

    async def test_a_form_that_fails_does_not_spend_the_token(self, server: ApiServer, user: Client) -> None:
        running = await Running.begin(server, user)
        token = await running.token()
        assert code_of(await running.write(token, ("ok.txt", b"x"), ("../evil", b"x"))) == (422, "invalid_request")
        assert await stored(server) == set()
        assert (await running.write(token, ("ok.txt", b"x"))).status_code == 201
        assert code_of(await running.write(token, ("ok.txt", b"x"))) == (401, "unauthorized")
        await running.end()

    async def test_tokens_that_buy_nothing(self, server: ApiServer, user: Client) -> None:
        running, other = await Running.begin(server, user), await Running.begin(server, user)
        good = await running.token()
        late = await running.token(seconds=0.01)
        run = secrets.token_urlsafe(32)
        binding = TokenBinding(purpose="run", turn_id=running.turn_id, attempt=1)
        await server.runtime.store.add_token(hash_key(run), binding, expires_in_seconds=60)
        await asyncio.sleep(0.05)
        for token in (late, run, secrets.token_urlsafe(32), "", user.key):
            assert code_of(await running.write(token, ("a.txt", b"x"))) == (401, "unauthorized")
        assert code_of(await running.write(good, ("a.txt", b"x"), turn_id=other.turn_id)) == (401, "unauthorized")
        unused = await running.token()
        await running.end()
        assert code_of(await running.write(unused, ("a.txt", b"x"))) == (401, "unauthorized")
        assert await stored(server) == set()
        await other.end()

    @pytest.mark.parametrize("settings", ["postgres"], indirect=True)
    async def test_on_postgresql(self, server: ApiServer, user: Client) -> None:
        await self.test_readers_get_an_event_before_the_end(server, user)
