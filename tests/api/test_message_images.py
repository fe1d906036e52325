"""Images inside a message: an image that no model accepts is refused before anything is stored."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.api.harness import ApiServer, Client, code_of, settings_for
from tests.api.test_attachments import told
from tests.files.samples import PNG, picture

GOOD = base64.b64encode(PNG).decode()


def message(**image: Any) -> Any:
    return [{"type": "text", "text": "What is this?"}, {"type": "image", "media_type": "image/png", **image}]


class TestInline:
    async def test_a_picture_reaches_the_model_and_the_trace(self, server: ApiServer, service: Client) -> None:
        answer = await service.ask(message(data=GOOD))
        assert GOOD in told(server)
        trace = await service.read(f"/v1/conversations/{answer['conversation_id']}/trace")
        assert {"type": "image", "media_type": "image/png", "data": GOOD} in trace["data"][0]["blocks"]

    async def test_the_transcript_shows_the_words_beside_it(self, user: Client) -> None:
        answer = await user.ask(message(data=GOOD))
        asked = (await user.read(f"/v1/conversations/{answer['conversation_id']}/messages"))["data"][0]
        assert asked["content"] == [{"type": "text", "text": "What is this?"}]

    async def test_its_bytes_decide_what_it_is(self, server: ApiServer, user: Client) -> None:
        await user.ask(message(data=base64.b64encode(picture("JPEG")).decode()))
        assert "image/jpeg" in told(server)
        assert "image/png" not in told(server)

    async def test_one_that_is_too_large_for_models_is_made_smaller(self, server: ApiServer, user: Client) -> None:
        large = base64.b64encode(picture("PNG", size=(3000, 20))).decode()
        await user.ask(message(data=large))
        assert "image/" in told(server)
        assert large not in told(server)

    @pytest.mark.parametrize(
        "image, field",
        [
            ({"data": "not base64!"}, "data"),
            ({"data": GOOD[:-1]}, "data"),
            ({"data": f"data:image/png;base64,{GOOD}"}, "data"),
            ({"data": ""}, "data"),
            ({"data": base64.b64encode(b"no picture at all").decode()}, "data"),
            ({"data": base64.b64encode(PNG[: len(PNG) // 2]).decode()}, "data"),
            ({"data": GOOD, "media_type": "application/x-exe"}, "media_type"),
            ({"data": GOOD, "media_type": "image/svg+xml"}, "media_type"),
            ({"data": GOOD, "media_type": "image/*"}, "media_type"),
            ({"url": "https://example.com/a.png", "media_type": "text/html"}, "media_type"),
            ({"url": "file:///etc/passwd"}, "url"),
            ({"url": "ftp://example.com/a.png"}, "url"),
            ({"url": f"data:image/png;base64,{GOOD}"}, "url"),
            ({"url": "/a.png"}, "url"),
            ({"url": ""}, "url"),
            ({"url": "https://"}, "url"),
            ({"url": "https://me:secret@example.com/a.png"}, "url"),
            ({"url": "http://127.0.0.1/a.png"}, "url"),
            ({"url": "http://localhost:8000/a.png"}, "url"),
            ({"url": "http://169.254.169.254/latest"}, "url"),
            ({"url": "http://[::1]/a.png"}, "url"),
            ({"url": "http://0x7f000001/a.png"}, "url"),
        ],
    )
    async def test_a_bad_one_is_refused_by_its_place_and_nothing_is_stored(
        self, user: Client, image: dict[str, Any], field: str
    ) -> None:
        response = await user.post("/v1/turns", json={"message": message(**image)})
        assert code_of(response) == (422, "invalid_request")
        assert f"message[1].{field}" in response.json()["detail"]
        assert "secret" not in response.text
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_one_with_both_or_neither_is_refused(self, user: Client) -> None:
        for image in ({}, {"data": GOOD, "url": "https://example.com/a.png"}):
            response = await user.post("/v1/turns", json={"message": message(**image)})
            assert code_of(response) == (422, "invalid_request")
            assert "message[1]" in response.json()["detail"]

    async def test_an_edit_is_held_to_the_same(self, user: Client) -> None:
        first = await user.ask("One")
        path = f"/v1/conversations/{first['conversation_id']}/turns/{first['turn']['id']}/edit"
        assert (await user.post(path, json={"message": message(data=GOOD)})).status_code == 200
        assert code_of(await user.post(path, json={"message": message(data="?")})) == (422, "invalid_request")


class TestAddresses:
    async def test_a_public_one_is_handed_on(self, server: ApiServer, user: Client) -> None:
        for media_type in ("image/png", "image/*"):
            await user.ask(message(url="HTTPS://example.com/a.png?b=c", media_type=media_type))
            assert "https://example.com/a.png?b=c" in told(server)

    async def test_a_private_one_where_the_operator_allows_it(self, tmp_path: Path) -> None:
        async with ApiServer.start(settings_for(tmp_path, allow_private_addresses=True)) as server:
            user = await server.user(await server.tenant())
            await user.ask(message(url="http://192.168.1.5/a.png"))
            assert "http://192.168.1.5/a.png" in told(server)
            response = await user.post("/v1/turns", json={"message": message(url="file:///etc/passwd")})
            assert code_of(response) == (422, "invalid_request")
