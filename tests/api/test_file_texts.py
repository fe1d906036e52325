"""The text of a file over HTTP, for callers who may see the file."""

from typing import Any

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of
from tests.files.samples import PNG
from tests.knowledge.test_file_tools import PDF, a_pdf
from turnkeep.api.native import files


async def sent(client: Client, name: str, data: bytes, mime_type: str) -> str:
    conversation = (await client.post("/v1/conversations")).json()["id"]
    response = await client.post(f"/v1/conversations/{conversation}/files", files={"file": (name, data, mime_type)})
    assert response.status_code == 201, response.text
    file_id: str = response.json()["data"][0]["id"]
    return file_id


class TestTheTextOfAFile:
    @both
    async def test_is_that_of_a_document_part_by_part(self, user: Client) -> None:
        file_id = await sent(user, "tides.pdf", a_pdf("High at eight.", "Low at two."), PDF)
        read = await user.read(f"/v1/files/{file_id}/text")
        assert read == {"file_id": file_id, "text": "High at eight.\fLow at two.", "unit": "page"}

    async def test_is_that_of_a_text_as_it_is(self, user: Client) -> None:
        file_id = await sent(user, "notes.md", "# Ünï\n\n<script>".encode(), "text/markdown")
        read = await user.read(f"/v1/files/{file_id}/text")
        assert read == {"file_id": file_id, "text": "# Ünï\n\n<script>", "unit": None}

    async def test_is_not_read_from_what_has_none_or_is_broken(self, user: Client) -> None:
        for name, data, mime_type, why in (
            ("p.png", PNG, "image/png", "Text is read from"),
            ("broken.pdf", a_pdf("x")[:80], PDF, "broken.pdf cannot be read"),
        ):
            response = await user.get(f"/v1/files/{await sent(user, name, data, mime_type)}/text")
            assert code_of(response) == (415, "unsupported_media_type")
            assert why in response.json()["detail"]

    async def test_belongs_to_those_who_may_see_the_file(
        self, user: Client, server: ApiServer, service: Client
    ) -> None:
        file_id = await sent(user, "notes.txt", b"Mine.", "text/plain")
        other = await server.client(service.key, turnkeep_user="another")
        assert code_of(await other.get(f"/v1/files/{file_id}/text")) == (404, "not_found")

    async def test_that_takes_long_is_asked_for_again(self, user: Client, monkeypatch: Any) -> None:
        file_id = await sent(user, "tides.pdf", a_pdf("High at eight."), PDF)
        with monkeypatch.context() as hurried:
            hurried.setattr(files, "TEXT_SECONDS", 0.0)
            refused = await user.get(f"/v1/files/{file_id}/text")
            assert code_of(refused) == (503, "unavailable")
            assert "still being read" in refused.json()["detail"]
        assert (await user.read(f"/v1/files/{file_id}/text"))["text"] == "High at eight."
