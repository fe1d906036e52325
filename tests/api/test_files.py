"""Files over HTTP: in, out, and everything that must be refused, on a local disk and on a real bucket."""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import buckets
from tests.api.harness import ApiServer, Client, code_of, fake_id, settings_for
from tests.files.blocks import keys
from tests.files.disks import small_disk
from tests.files.samples import ELF, GIF_SCRIPT, HTML, PDF, PNG, SVG, picture
from turnkeep.config import Settings

MIB = 1024 * 1024

Json = Any


@pytest.fixture(params=["local"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """On a local disk; tests that ask for `both` run on a bucket too."""
    if request.param == "local":
        return settings_for(tmp_path)
    for name, value in buckets.shared_environ().items():
        monkeypatch.setenv(name, value)
    return settings_for(tmp_path, files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}")


both = pytest.mark.parametrize("settings", ["local", "s3"], indirect=True)


async def a_conversation(client: Client) -> str:
    response = await client.post("/v1/conversations")
    assert response.status_code == 201, response.text
    conversation_id: str = response.json()["id"]
    return conversation_id


def form(*files: tuple[str, bytes] | tuple[str, bytes, str]) -> list[tuple[str, Any]]:
    return [("file", file) for file in files]


async def send(client: Client, conversation_id: str, *files: Any) -> httpx.Response:
    return await client.post(f"/v1/conversations/{conversation_id}/files", files=form(*files))


async def upload(client: Client, conversation_id: str, name: str = "a.txt", data: bytes = b"hello") -> Json:
    response = await send(client, conversation_id, (name, data))
    assert response.status_code == 201, response.text
    return response.json()["data"][0]


async def storage_key_of(server: ApiServer, file: Json) -> str:
    [key] = [each.storage_key for each in await server.runtime.store.all_files() if each.id == file["id"]]
    return key


async def announce(client: Client, name: str, data: bytes, **body: Json) -> Json:
    response = await client.post("/v1/files", json={"name": name, "size": len(data), **body})
    assert response.status_code == 201, response.text
    return response.json()


async def put(promised: Json, data: bytes) -> httpx.Response:
    """Without a key: the address alone is the permission."""
    async with httpx.AsyncClient(trust_env=False, timeout=120) as stranger:
        return await stranger.put(promised["upload"]["url"], content=data)


async def stored(server: ApiServer) -> set[str]:
    return await keys(server.runtime.bag.objects)


async def nothing_stored(server: ApiServer, client: Client, conversation_id: str) -> None:
    assert (await client.read(f"/v1/conversations/{conversation_id}/files"))["data"] == []
    assert await stored(server) == set()


class TestOneForm:
    @both
    async def test_brings_files_into_the_bag(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        response = await send(user, conversation, ("Notes.txt", b"hello"), ("p.png", PNG, "image/png"))
        assert response.status_code == 201
        notes, png = response.json()["data"]
        assert notes == {
            "id": notes["id"],
            "conversation_id": conversation,
            "message_id": None,
            "name": "Notes.txt",
            "mime_type": "text/plain",
            "size": 5,
            "sha256": hashlib.sha256(b"hello").hexdigest(),
            "source": "user",
            "created_at": notes["created_at"],
        }
        assert png["mime_type"] == "image/png"
        assert (await user.read(f"/v1/conversations/{conversation}/files"))["data"] == [notes, png]
        assert await user.read(f"/v1/files/{notes['id']}") == notes
        found = await stored(server)
        assert {key.rpartition("/")[2] for key in found} == {f"{notes['id']}.txt", f"{png['id']}.png"}
        assert all(key.split("/")[0] == "bag" and key.split("/")[2] == conversation for key in found)

    async def test_names_never_collide_also_at_once(self, user: Client) -> None:
        conversation = await a_conversation(user)
        files = await asyncio.gather(
            *(upload(user, conversation, name) for name in ["a.txt", "A.TXT", "a.txt", "caf\u00e9.md", "cafe\u0301.md"])
        )
        names = [file["name"] for file in files]
        assert len({name.casefold() for name in names}) == 5
        assert sorted(name.casefold() for name in names) == [
            "a-1.txt",
            "a-2.txt",
            "a.txt",
            "caf\u00e9-1.md",
            "caf\u00e9.md",
        ]

    async def test_the_list_is_paged(self, user: Client) -> None:
        conversation = await a_conversation(user)
        await send(user, conversation, *((f"{n}.txt", b"x") for n in range(5)))
        path = f"/v1/conversations/{conversation}/files"
        first = await user.read(path, params={"limit": 3})
        rest = await user.read(path, params={"limit": 3, "cursor": first["next_cursor"]})
        assert [file["name"] for file in first["data"] + rest["data"]] == [f"{n}.txt" for n in range(5)]
        assert rest["next_cursor"] is None


class TestRefusedForms:
    async def test_names_that_mean_mischief(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        good = ("good.txt", b"stays out too")
        for name in (
            "../../etc/passwd",
            "/etc/passwd",
            "C:\\windows\\win.ini",
            "..\\..\\boot.ini",
            "CON",
            "nul.txt",
            "COM1.log",
            "invoice\u202efdp.exe",
            "n" * 300 + ".txt",
        ):
            assert code_of(await send(user, conversation, good, (name, b"x"))) == (422, "invalid_request"), name
        await nothing_stored(server, user, conversation)

    async def test_a_name_with_a_nul(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a\0.txt"\r\n\r\nx\r\n--B--\r\n'
        response = await self._raw(user, conversation, body)
        assert code_of(response) == (422, "invalid_request")
        await nothing_stored(server, user, conversation)

    async def test_forms_that_are_none(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        begun = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
        proper = "multipart/form-data; boundary=B"
        for body, content_type in (
            (b"--B\r\n", "multipart/form-data"),
            (b"not a form", proper),
            (b"{}", "application/json"),
            (b"", proper),
            (begun + b"X: " + b"x" * 100_000, proper),
            (begun + b"\r\ncut off", proper),
        ):
            response = await self._raw(user, conversation, body, content_type)
            assert code_of(response) == (422, "invalid_request"), body[:100]
        await nothing_stored(server, user, conversation)

    async def test_a_million_parts(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        one = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n\r\n'

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(1_000):
                yield one * 1_000
            yield b"--B--\r\n"

        response = await self._raw(user, conversation, parts())
        assert code_of(response) == (422, "too_many_files")
        await nothing_stored(server, user, conversation)

    async def test_more_files_than_a_message_may_carry(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        response = await send(user, conversation, *((f"{n}.txt", b"x") for n in range(11)))
        assert code_of(response) == (422, "too_many_files")
        await nothing_stored(server, user, conversation)

    @both
    async def test_types_that_are_not_taken(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        for bad in (("a.exe", ELF, "text/plain"), ("a.png", HTML, "image/png"), ("a.pdf", PNG, "application/pdf")):
            response = await send(user, conversation, ("good.txt", b"stays out too"), bad)
            assert code_of(response) == (415, "unsupported_media_type")
        await nothing_stored(server, user, conversation)

    async def test_a_conversation_of_another_user(self, server: ApiServer, service: Client, user: Client) -> None:
        conversation = await a_conversation(user)
        for stranger in (await server.user(service, "mallory"), await server.tenant("other")):
            assert code_of(await send(stranger, conversation, ("a.txt", b"x"))) == (404, "not_found")
        await nothing_stored(server, user, conversation)

    async def _raw(
        self,
        client: Client,
        conversation_id: str,
        body: bytes | AsyncIterator[bytes],
        content_type: str = "multipart/form-data; boundary=B",
    ) -> httpx.Response:
        path = f"/v1/conversations/{conversation_id}/files"
        return await client.post(path, content=body, headers={"content-type": content_type})


class TestTooLarge:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_file_bytes=3 * MIB)

    async def test_exactly_at_the_limit_is_fine(self, user: Client) -> None:
        file = await upload(user, await a_conversation(user), data=b"x" * (3 * MIB))
        assert file["size"] == 3 * MIB

    async def test_one_byte_more_is_refused(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        response = await send(user, conversation, ("a.txt", b"x"), ("b.txt", b"x" * (3 * MIB + 1)))
        assert code_of(response) == (413, "file_too_large")
        await nothing_stored(server, user, conversation)

    async def test_while_it_is_read_when_no_length_was_announced(self, server: ApiServer, user: Client) -> None:
        """Chunked, and it would never end: the refusal comes long before."""
        conversation = await a_conversation(user)
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
            while sent < 64 * MIB:
                sent += 65_536
                yield b"x" * 65_536

        response = await user.post(
            f"/v1/conversations/{conversation}/files",
            content=endless(),
            headers={"content-type": "multipart/form-data; boundary=B"},
        )
        assert code_of(response) == (413, "file_too_large")
        await nothing_stored(server, user, conversation)

    async def test_when_it_is_announced(self, user: Client) -> None:
        response = await user.post("/v1/files", json={"name": "a.txt", "size": 3 * MIB + 1, "mime_type": "text/plain"})
        assert code_of(response) == (413, "file_too_large")

    async def test_a_content_length_that_lies(self, server: ApiServer, user: Client) -> None:
        """It says less than the form holds: the server reads no further, and the form was cut off."""
        conversation = await a_conversation(user)
        body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n--B--\r\n'
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        head = (
            f"POST /v1/conversations/{conversation}/files HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {user.key}\r\nContent-Type: multipart/form-data; boundary=B\r\n"
            f"Content-Length: {len(body) - 20}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)
        assert b" 422 " in answer
        writer.close()
        await nothing_stored(server, user, conversation)


class TestCutOff:
    @both
    async def test_an_upload_that_is_cut_leaves_neither_row_nor_object(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        head = (
            f"POST /v1/conversations/{conversation}/files HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {user.key}\r\nContent-Type: multipart/form-data; boundary=B\r\n"
            "Content-Length: 50000000\r\n\r\n"
            '--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nfirst, and whole\r\n'
            '--B\r\nContent-Disposition: form-data; name="file"; filename="b.txt"\r\n\r\n'
        )
        writer.write(head.encode() + b"x" * (7 * MIB))
        await writer.drain()
        while len(await stored(server)) != 1:  # noqa: ASYNC110 - the server decides when the first one is in
            await asyncio.sleep(0.02)
        writer.transport.abort()
        assert reader is not None
        deadline = time.monotonic() + 30
        while await stored(server):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await nothing_stored(server, user, conversation)
        folder = server.runtime.settings.files_path
        assert not [path for path in folder.rglob("*") if path.is_file()]


class TestTwoPhases:
    @both
    async def test_announce_put_complete(self, server: ApiServer, user: Client) -> None:
        conversation = await a_conversation(user)
        data = picture("PNG", (300, 200))
        promised = await announce(user, "p.png", data, mime_type="image/png", conversation_id=conversation)
        file, where = promised["file"], promised["upload"]
        assert (file["sha256"], file["size"], file["name"]) == (None, len(data), "p.png")
        assert where["method"] == "PUT"
        assert where["expires_at"] > time.time() * 1000
        is_local = where["url"].startswith(server.url)
        assert is_local == (server.runtime.settings.files_url.startswith("file:"))
        assert (await user.read(f"/v1/conversations/{conversation}/files"))["data"] == []
        assert (await put(promised, data)).status_code in {200, 204}
        response = await user.post(
            f"/v1/files/{file['id']}/complete", json={"sha256": hashlib.sha256(data).hexdigest()}
        )
        assert response.status_code == 200, response.text
        done = response.json()
        assert done["sha256"] == hashlib.sha256(data).hexdigest()
        assert (await user.read(f"/v1/conversations/{conversation}/files"))["data"] == [done]
        assert (await user.get(f"/v1/files/{file['id']}/content")).content == data
        again = await user.post(f"/v1/files/{file['id']}/complete")
        assert again.json() == done
        assert len(await stored(server)) == 1

    @both
    async def test_the_type_is_what_the_bytes_say(self, user: Client) -> None:
        promised = await announce(user, "picture", PNG, mime_type="application/octet-stream")
        await put(promised, PNG)
        done = (await user.post(f"/v1/files/{promised['file']['id']}/complete")).json()
        assert done["mime_type"] == "image/png"

    @pytest.mark.parametrize(
        "mime_type", ["text", "text/", "text/plain/x", "text/plain; a=b", "te xt/plain", "text/plain\r\nX: y"]
    )
    async def test_a_type_is_two_words_and_nothing_else(self, user: Client, mime_type: str) -> None:
        response = await user.post("/v1/files", json={"name": "a.bin", "size": 5, "mime_type": mime_type})
        assert response.json()["file"]["mime_type"] in {"application/octet-stream", "text/plain"}

    async def test_what_calls_itself_a_program_is_refused_before_it_is_sent(self, user: Client) -> None:
        for name, mime_type in (("setup.exe", "text/plain"), ("setup", "application/x-msdownload")):
            response = await user.post("/v1/files", json={"name": name, "size": 5, "mime_type": mime_type})
            assert code_of(response) == (415, "unsupported_media_type")

    async def test_completing_before_the_put_is_a_conflict(self, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete")
        assert code_of(response) == (409, "conflict")
        for path in ("content", "thumbnail"):
            assert code_of(await user.get(f"/v1/files/{promised['file']['id']}/{path}")) == (409, "conflict")

    @both
    async def test_a_wrong_size_is_refused_and_nothing_stays(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        await put(promised, b"hello, world")
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete")
        assert response.status_code in {409, 422}, response.text
        assert await stored(server) == set()
        await self._then_it_works(user, promised, b"hello")

    @both
    async def test_a_wrong_sha256_is_refused_and_nothing_stays(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        await put(promised, b"hellO")
        wrong = {"sha256": hashlib.sha256(b"hello").hexdigest()}
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete", json=wrong)
        assert code_of(response) == (422, "invalid_request")
        assert await stored(server) == set()
        await self._then_it_works(user, promised, b"hello")

    async def test_another_size_at_complete_is_refused(self, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        await put(promised, b"hello")
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete", json={"size": 6})
        assert code_of(response) == (422, "invalid_request")

    @both
    async def test_a_type_that_is_not_taken(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.png", ELF, mime_type="image/png")
        await put(promised, ELF)
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete")
        assert code_of(response) == (415, "unsupported_media_type")
        assert await stored(server) == set()

    @both
    async def test_what_is_put_after_completing_changes_nothing(self, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        await put(promised, b"hello")
        await user.post(f"/v1/files/{promised['file']['id']}/complete")
        await put(promised, b"HELLO")
        assert (await user.get(f"/v1/files/{promised['file']['id']}/content")).content == b"hello"
        assert (await user.post(f"/v1/files/{promised['file']['id']}/complete")).status_code == 200
        assert (await user.get(f"/v1/files/{promised['file']['id']}/content")).content == b"hello"

    async def test_another_user_cannot_complete_it(self, server: ApiServer, service: Client, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        await put(promised, b"hello")
        for stranger in (await server.user(service, "mallory"), await server.tenant("other")):
            response = await stranger.post(f"/v1/files/{promised['file']['id']}/complete")
            assert code_of(response) == (404, "not_found")

    async def test_names_and_conversations_are_checked_at_once(self, user: Client) -> None:
        for body in ({"name": "../x", "size": 1}, {"name": "a", "size": -1}, {"name": "", "size": 1}, {"size": 1}):
            assert code_of(await user.post("/v1/files", json=body)) == (422, "invalid_request")
        body = {"name": "a", "size": 1, "conversation_id": fake_id("conv")}
        assert code_of(await user.post("/v1/files", json=body)) == (404, "not_found")

    @staticmethod
    async def _then_it_works(user: Client, promised: Json, data: bytes) -> None:
        await put(promised, data)
        response = await user.post(f"/v1/files/{promised['file']['id']}/complete")
        assert response.status_code == 200, response.text
        assert response.json()["sha256"] == hashlib.sha256(data).hexdigest()


class TestSignedPuts:
    """To the server itself. What a bucket signs is the bucket's to check, which `test_objects` looks at."""

    async def test_the_address_is_the_permission(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        url = promised["upload"]["url"]
        other = await announce(user, "b.txt", b"hello")
        flipped = url[:-1] + ("A" if url[-1] != "A" else "B")
        elsewhere = url.replace(promised["file"]["id"], other["file"]["id"])
        larger = url.replace("size=5", "size=6")
        for bad in (flipped, elsewhere, larger, url + "&size=5", url.partition("?")[0]):
            async with httpx.AsyncClient(trust_env=False, timeout=120) as stranger:
                assert code_of(await stranger.put(bad, content=b"hello")) == (401, "unauthorized")
        assert await stored(server) == set()

    async def test_not_a_second_longer(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        org = promised["upload"]["url"].split("org=")[1].partition("&")[0]
        path = f"/v1/files/{promised['file']['id']}/content"
        expired = server.runtime.addresses.sign(
            "PUT", path, org_id=org, expires_at=int(time.time() * 1000) - 1_000, facts={"size": 5}
        )
        async with httpx.AsyncClient(trust_env=False, timeout=120) as stranger:
            assert code_of(await stranger.put(server.url + expired, content=b"hello")) == (401, "unauthorized")

    async def test_a_file_for_the_bucket_may_come_through_the_server(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in buckets.shared_environ().items():
            monkeypatch.setenv(name, value)
        settings = settings_for(tmp_path, files_url=f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}")
        async with ApiServer.start(settings) as server:
            user = await server.user(await server.operator())
            body = {"name": "a.txt", "size": 5, "mime_type": "text/plain"}
            straight = (await user.post("/v1/files", json=body)).json()
            assert not straight["upload"]["url"].startswith(server.url)
            through = (await user.post("/v1/files", json={**body, "through_server": True})).json()
            assert through["upload"]["url"].startswith(f"{server.url}/v1/files/{through['file']['id']}/content?")
            assert (await put(through, b"hello")).status_code == 204
            done = await user.post(f"/v1/files/{through['file']['id']}/complete")
            assert done.status_code == 200, done.text
            assert (await user.get(f"/v1/files/{through['file']['id']}/content")).content == b"hello"

    async def test_not_for_a_file_that_was_deleted(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        assert (await user.delete(f"/v1/files/{promised['file']['id']}")).status_code == 204
        assert code_of(await put(promised, b"hello")) == (409, "conflict")
        assert await stored(server) == set()

    async def test_more_bytes_than_were_announced(self, server: ApiServer, user: Client) -> None:
        promised = await announce(user, "a.txt", b"hello")
        assert code_of(await put(promised, b"hello, world")) == (413, "file_too_large")
        assert code_of(await put(promised, b"hell")) == (422, "invalid_request")
        assert await stored(server) == set()


class TestDownloads:
    @both
    async def test_whole(self, user: Client) -> None:
        data = b"%PDF-1.7\n" + os.urandom(3 * MIB)
        file = await upload(user, await a_conversation(user), 'r\u00e9port "1".pdf'.replace('"', ""), data)
        response = await user.get(f"/v1/files/{file['id']}/content")
        assert response.content == data
        assert response.headers["content-length"] == str(len(data))
        assert response.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'
        assert response.headers["accept-ranges"] == "bytes"
        assert response.headers["content-disposition"] == (
            "attachment; filename=\"r_port 1.pdf\"; filename*=UTF-8''r%C3%A9port%201.pdf"
        )

    @both
    async def test_ranges(self, user: Client) -> None:
        data = b"%PDF-" + os.urandom(2 * MIB)
        file = await upload(user, await a_conversation(user), "a.pdf", data)
        size = len(data)
        for asked, start, end in (
            ("bytes=0-0", 0, 1),
            ("bytes=5-9", 5, 10),
            (f"bytes={size - 3}-", size - 3, size),
            ("bytes=-7", size - 7, size),
            (f"bytes=-{size * 2}", 0, size),
            (f"bytes=10-{size * 2}", 10, size),
            (f"bytes=010-{10**22}", 10, size),
            (f"bytes=-{10**22}", 0, size),
            (f"bytes={MIB - 1}-{MIB + 1}", MIB - 1, MIB + 2),
        ):
            response = await user.get(f"/v1/files/{file['id']}/content", headers={"range": asked})
            assert response.status_code == 206, asked
            assert response.content == data[start:end]
            assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"

    async def test_ranges_outside_or_malformed(self, user: Client) -> None:
        file = await upload(user, await a_conversation(user), data=b"hello")
        path = f"/v1/files/{file['id']}/content"
        for asked in ("bytes=5-", "bytes=99-100", "bytes=-0", f"bytes={10**22}-", f"bytes={'9' * 5_000}-{'9' * 5_000}"):
            response = await user.get(path, headers={"range": asked})
            assert code_of(response) == (416, "range_not_satisfiable")
            assert response.headers["content-range"] == "bytes */5"
        many = "bytes=" + ",".join("0-0" for _ in range(1_000))
        for asked in ("bytes=", "bytes=-", "bytes=3-1", "items=0-1", "bytes=a-b", "bytes=0-1,2-3", many, "bytes=0x1-2"):
            response = await user.get(path, headers={"range": asked})
            assert (response.status_code, response.content) == (200, b"hello"), asked

    async def test_a_client_that_has_it_already_gets_304(self, user: Client) -> None:
        file = await upload(user, await a_conversation(user), data=b"hello")
        path = f"/v1/files/{file['id']}/content"
        tag = (await user.get(path)).headers["etag"]
        for known in (tag, f'"x", W/{tag}', "*"):
            response = await user.get(path, headers={"if-none-match": known})
            assert (response.status_code, response.content) == (304, b"")
            assert "content-length" not in response.headers
        assert (await user.get(path, headers={"if-none-match": '"x"'})).status_code == 200
        stale = await user.get(path, headers={"range": "bytes=0-1", "if-range": '"x"'})
        fresh = await user.get(path, headers={"range": "bytes=0-1", "if-range": tag})
        assert (stale.status_code, fresh.status_code) == (200, 206)

    async def test_nothing_is_served_in_a_way_that_a_browser_would_run(self, user: Client) -> None:
        conversation = await a_conversation(user)
        for name, data in (
            ("page.html", HTML),
            ("drawing.svg", SVG),
            ("page.xml", b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"/>'),
            ("script.js", b"alert(1)"),
            ("both.gif", GIF_SCRIPT),
            ("report.pdf", PDF),
            ("note.txt", b"<script>alert(1)</script>"),
            ("mail.eml", b"Content-Type: text/html\n\n<script>alert(1)</script>"),
        ):
            file = await upload(user, conversation, name, data)
            for asked in ({}, {"range": "bytes=0-3"}):
                self._check_that_it_is_harmless(await user.get(f"/v1/files/{file['id']}/content", headers=asked))

    @staticmethod
    def _check_that_it_is_harmless(response: httpx.Response) -> None:
        headers = response.headers
        assert headers["content-disposition"].startswith("attachment;")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        policy = headers["content-security-policy"]
        assert {"default-src 'none'", "sandbox"} <= {each.strip() for each in policy.split(";")}
        assert headers["content-type"] in {"application/octet-stream", "image/gif", "text/plain; charset=utf-8"}

    async def test_a_reader_who_leaves_in_the_middle_costs_nothing_more(self, server: ApiServer, user: Client) -> None:
        data = b"%PDF-" + bytes(20 * MIB)
        file = await upload(user, await a_conversation(user), "a.pdf", data)
        async with user.stream("GET", f"/v1/files/{file['id']}/content") as response:
            async for _ in response.aiter_bytes():
                break
        assert (await user.get(f"/v1/files/{file['id']}")).status_code == 200


class TestThumbnails:
    @both
    async def test_of_a_picture(self, user: Client) -> None:
        file = await upload(user, await a_conversation(user), "p.png", picture("PNG", (900, 300)))
        response = await user.get(f"/v1/files/{file['id']}/thumbnail")
        assert response.status_code == 200
        assert response.headers["content-type"] in {"image/png", "image/jpeg"}
        assert response.headers["content-disposition"].startswith("attachment;")
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in response.headers["content-security-policy"]
        assert len(response.content) < 20_000

    async def test_of_nothing_else(self, user: Client) -> None:
        conversation = await a_conversation(user)
        for name, data in (
            ("a.svg", SVG),
            ("a.pdf", PDF),
            ("a.txt", b"x"),
            ("cut.png", PNG[:20]),
            ("both.gif", GIF_SCRIPT),
        ):
            file = await upload(user, conversation, name, data)
            assert code_of(await user.get(f"/v1/files/{file['id']}/thumbnail")) == (415, "unsupported_media_type")


class TestSaving:
    @both
    async def test_a_copy_among_the_workspaces_files(self, server: ApiServer, service: Client, user: Client) -> None:
        conversation = await a_conversation(user)
        file = await upload(user, conversation)
        response = await user.post(f"/v1/files/{file['id']}/save")
        assert response.status_code == 201, response.text
        saved = response.json()
        assert (saved["conversation_id"], saved["name"], saved["sha256"]) == (None, "a.txt", file["sha256"])
        assert saved["id"] != file["id"]
        colleague = await server.user(service, "bob")
        assert (await colleague.read("/v1/files", params={"scope": "workspace"}))["data"] == [saved]
        await user.delete(f"/v1/conversations/{conversation}")
        assert (await colleague.get(f"/v1/files/{saved['id']}/content")).content == b"hello"

    @both
    async def test_from_there_into_a_bag(self, user: Client) -> None:
        saved = (await user.post(f"/v1/files/{(await upload(user, await a_conversation(user)))['id']}/save")).json()
        target = await a_conversation(user)
        copy = (await user.post(f"/v1/files/{saved['id']}/save", json={"conversation_id": target})).json()
        assert copy["conversation_id"] == target
        await user.ask(conversation_id=target, attachment_ids=[copy["id"]])

    async def test_only_what_one_can_see_and_where_one_may(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        file = await upload(user, await a_conversation(user))
        mallory = await server.user(service, "mallory")
        assert code_of(await mallory.post(f"/v1/files/{file['id']}/save"))[0] == 404
        theirs = await a_conversation(mallory)
        body = {"conversation_id": theirs}
        assert code_of(await user.post(f"/v1/files/{file['id']}/save", json=body))[0] == 404
        assert len(await stored(server)) == 1

    async def test_deleting_a_saved_file_takes_its_owner_or_an_admin(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        saved = (await user.post(f"/v1/files/{(await upload(user, await a_conversation(user)))['id']}/save")).json()
        colleague = await server.user(service, "bob")
        assert code_of(await colleague.delete(f"/v1/files/{saved['id']}"))[0] == 404
        admin = await server.user(service, "boss", role="admin")
        assert (await admin.delete(f"/v1/files/{saved['id']}")).status_code == 204
        assert (await user.read("/v1/files"))["data"] == []


class TestOtherCallers:
    async def test_a_foreign_or_deleted_id_does_not_exist(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        mine = await upload(user, await a_conversation(user))
        deleted = await upload(user, await a_conversation(user))
        assert (await user.delete(f"/v1/files/{deleted['id']}")).status_code == 204
        asked = [(user, deleted["id"]), (user, fake_id("file")), (user, "file_x")]
        asked += [(await server.user(service, "mallory"), mine["id"]), (await server.tenant("other"), mine["id"])]
        for client, file_id in asked:
            for method, path in (
                ("GET", ""),
                ("GET", "/content"),
                ("GET", "/thumbnail"),
                ("GET", "/text"),
                ("POST", "/complete"),
                ("POST", "/save"),
                ("DELETE", ""),
            ):
                response = await client.request(method, f"/v1/files/{file_id}{path}")
                assert code_of(response) == (404, "not_found"), (method, path)
            turn = await client.post("/v1/turns", json={"message": "?", "attachment_ids": [file_id]})
            assert code_of(turn) == (404, "not_found")
        assert (await user.get(f"/v1/files/{mine['id']}/content")).content == b"hello"


class TestStoredBytes:
    @pytest.mark.parametrize("name", ["max_user_bytes", "max_workspace_bytes"])
    async def test_of_a_user_and_of_a_workspace_have_the_limits_of_the_server(self, tmp_path: Path, name: str) -> None:
        async with ApiServer.start(settings_for(tmp_path, **{name: 10})) as server:
            user = await server.user(await server.tenant())
            conversation = await a_conversation(user)
            await upload(user, conversation, data=b"12345")
            assert code_of(await send(user, conversation, ("b.txt", b"123456"))) == (507, "storage_full")
            assert code_of(await user.post("/v1/files", json={"name": "b.txt", "size": 6})) == (507, "storage_full")
            assert len(await stored(server)) == 1

    def test_of_a_user_are_limited_without_any_setting(self) -> None:
        assert 0 < Settings().max_user_bytes <= 10 * 1024**3


class TestFullDisk:
    async def test_is_507_reads_go_on_and_it_recovers_by_itself(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", size=4 * MIB) as disk:
            settings = settings_for(tmp_path, files_url=f"file://{disk.folder}")
            async with ApiServer.start(settings) as server:
                user = await server.user(await server.tenant())
                conversation = await a_conversation(user)
                small = await upload(user, conversation, data=b"hello")
                with disk.full():
                    big = await send(user, conversation, ("ok.txt", b"x"), ("big.txt", b"x" * (6 * MIB)))
                    assert code_of(big) == (507, "storage_full")
                    promised = await announce(user, "big.txt", b"x" * (6 * MIB))
                    assert code_of(await put(promised, b"x" * (6 * MIB))) == (507, "storage_full")
                    assert (await user.get(f"/v1/files/{small['id']}/content")).content == b"hello"
                    assert (await user.ask())["turn"]["status"] == "succeeded"
                assert len(await stored(server)) == 1
                assert len([path for path in disk.folder.rglob("*") if path.is_file()]) == 1
                again = await upload(user, conversation, "again.txt", b"x" * (2 * MIB))
                assert again["size"] == 2 * MIB


class TestBucketAway:
    async def test_is_503_and_it_recovers_by_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with buckets.BucketServer().start() as bucket:
            for name, value in bucket.environ.items():
                monkeypatch.setenv(name, value)
            async with ApiServer.start(settings_for(tmp_path, files_url=f"s3://{buckets.BUCKET}/x")) as server:
                user = await server.user(await server.tenant())
                conversation = await a_conversation(user)
                file = await upload(user, conversation)
                bucket.stop()
                refused = await send(user, conversation, ("b.txt", b"x"))
                assert code_of(refused) == (503, "unavailable")
                assert int(refused.headers["retry-after"]) >= 1
                assert code_of(await user.get(f"/v1/files/{file['id']}/content")) == (503, "unavailable")
                assert await user.read(f"/v1/files/{file['id']}") == file
                assert (await user.ask())["turn"]["status"] == "succeeded"
                await asyncio.to_thread(bucket.start)
                assert (await user.get(f"/v1/files/{file['id']}/content")).content == b"hello"
                assert (await upload(user, conversation, "b.txt", b"x"))["name"] == "b.txt"
