"""Skills that come as zips: taken whole under the name of their folder, or refused in words with nothing changed."""

import io
import zipfile

import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of, fake_id
from tests.files.hostile_zips import HOSTILE, entry, zipped
from tests.sandbox_runner.fake_server import zip_of

CHARTS = {"charts/SKILL.md": b"# Charts\n", "charts/recipes/draw.sh": "#!/bin/sh\necho größer\n".encode()}
BEFORE: Json = {"name": "kept", "files": {"SKILL.md": "Stays."}}


@pytest.fixture
async def agent(service: Client) -> str:
    made = await service.post("/v1/agents", json={"name": "A", "instructions": "Be brief.", "skills": [BEFORE]})
    return f"/v1/agents/{made.json()['id']}"


async def upload(client: Client, agent: str, *zips: tuple[str, bytes]) -> Json:
    return await client.post(f"{agent}/skills", files=[("file", each) for each in zips])


class TestAZip:
    @both
    async def test_becomes_a_skill_beside_the_others(self, service: Client, agent: str) -> None:
        response = await upload(service, agent, ("anything.zip", zip_of(CHARTS)))
        assert response.status_code == 200, response.text
        files = {"SKILL.md": "# Charts\n", "recipes/draw.sh": "#!/bin/sh\necho größer\n"}
        assert response.json()["skills"] == [BEFORE, {"name": "charts", "files": files}]
        assert await service.read(agent) == response.json()
        assert response.json()["instructions"] == "Be brief."

    async def test_replaces_the_skill_of_its_name_where_it_stood(self, service: Client, agent: str) -> None:
        await upload(service, agent, ("c.zip", zip_of(CHARTS)))
        response = await upload(service, agent, ("c.zip", zip_of({"kept/SKILL.md": b"Anew."})))
        assert [skill["name"] for skill in response.json()["skills"]] == ["kept", "charts"]
        assert response.json()["skills"][0]["files"] == {"SKILL.md": "Anew."}

    async def test_without_a_folder_is_called_after_its_file(self, service: Client, agent: str) -> None:
        response = await upload(service, agent, ("-My charts (2).ZIP", zip_of({"SKILL.md": b"x", "a/b.sh": b"y"})))
        assert response.json()["skills"][1] == {"name": "My-charts-2-", "files": {"SKILL.md": "x", "a/b.sh": "y"}}

    async def test_leaves_out_what_systems_leave_behind(self, service: Client, agent: str) -> None:
        litter = {"__MACOSX/charts/._SKILL.md": b"\xff\x00", "charts/.DS_Store": b"\xff", "charts/.git/x": b"\xff"}
        response = await upload(service, agent, ("c.zip", zip_of(CHARTS | litter)))
        assert sorted(response.json()["skills"][1]["files"]) == ["SKILL.md", "recipes/draw.sh"]

    async def test_comes_with_others_in_one_form(self, service: Client, agent: str) -> None:
        other = zip_of({"tables/SKILL.md": b"x"})
        response = await upload(service, agent, ("c.zip", zip_of(CHARTS)), ("t.zip", other))
        assert [skill["name"] for skill in response.json()["skills"]] == ["kept", "charts", "tables"]

    async def test_can_be_larger_in_all_than_one_json_body(self, service: Client, agent: str) -> None:
        """Four skills of 400 kB: more than `TURNKEEP_MAX_BODY_BYTES`, which holds for JSON."""
        for name in "abcd":
            response = await upload(service, agent, ("x.zip", zip_of({f"{name}/SKILL.md": b"word " * 80_000})))
            assert response.status_code == 200, response.text
        assert len((await service.read(agent))["skills"]) == 5


def mixed_case() -> bytes:
    return zip_of({"s/SKILL.md": b"x", "s/Run.sh": b"1", "s/run.SH": b"2"})


def folder_and_file_by_case() -> bytes:
    return zip_of({"s/SKILL.md": b"x", "s/Run": b"1", "s/run/a": b"2"})


def a_lying_directory() -> bytes:
    """A folder entry that is a link."""
    return zipped(entry("s/SKILL.md"), entry("s/link", b"..", kind=0o120777))


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "no SKILL.md": (zip_of({"s/README.md": b"x"}), 422, "no SKILL.md"),
    "SKILL.md below another folder": (zip_of({"s/SKILL.md": b"x", "t/x": b"y"}), 422, "no SKILL.md"),
    "empty": (zip_of({}), 422, "no SKILL.md"),
    "names that differ by case": (mixed_case(), 422, "the same name"),
    "a file and a folder that differ by case": (folder_and_file_by_case(), 422, "inside a file"),
    "a link": (a_lying_directory(), 422, "not a file"),
    "no text": (zip_of({"s/SKILL.md": b"x", "s/logo.png": b"\x89PNG\xff"}), 422, "not text"),
    "too many files": (zip_of({"s/SKILL.md": b"x"} | {f"s/{n}": b"" for n in range(200)}), 422, "200 files"),
    "too many entries": (zip_of({"s/SKILL.md": b"x"} | {f"s/.{n}": b"" for n in range(1_000)}), 422, "1,001 entries"),
    "too much in it": (zip_of({"s/SKILL.md": b"x" * 524_289}), 422, "524,288"),
    "a bomb of what is left out": (zip_of({"s/SKILL.md": b"x", "s/.z": bytes(3 << 20)}), 422, "2,097,152"),
    "too large": (b"PK" + bytes(2 << 20), 413, "2,097,152"),
    "a tar": (b"s/SKILL.md" + bytes(600) + b"ustar", 415, "no zip"),
}


class TestWhatIsRefused:
    @pytest.mark.parametrize("name", REFUSED)
    async def test_says_why_and_changes_nothing(self, service: Client, agent: str, name: str) -> None:
        data, status, words = REFUSED[name]
        before = await service.read(agent)
        good = ("good.zip", zip_of(CHARTS))
        response = await upload(service, agent, good, ("bad.zip", data))
        assert code_of(response)[0] == status, response.text
        assert words in response.json()["detail"]
        assert await service.read(agent) == before

    async def test_is_every_hostile_zip(self, service: Client, agent: str) -> None:
        before = await service.read(agent)
        for name, make in HOSTILE.items():
            response = await upload(service, agent, ("s.zip", make()))
            assert code_of(response) in {(422, "invalid_request"), (415, "unsupported_media_type")}, name
            assert "SKILL.md" not in response.json()["detail"], name
        assert await service.read(agent) == before

    async def test_is_the_same_skill_twice(self, service: Client, agent: str) -> None:
        response = await upload(service, agent, ("a.zip", zip_of(CHARTS)), ("b.zip", zip_of(CHARTS)))
        assert code_of(response) == (422, "invalid_request")
        assert len((await service.read(agent))["skills"]) == 1

    async def test_is_a_skill_that_differs_from_another_in_case_alone(self, service: Client, agent: str) -> None:
        before = await service.read(agent)
        [known] = [skill["name"] for skill in before["skills"]]
        upper, lower = ("charts2.zip", zip_of({"SKILL.md": b""})), ("CHARTS2.zip", zip_of({"SKILL.md": b""}))
        for zips in ([(f"{known.swapcase()}.zip", zip_of({"SKILL.md": b""}))], [upper, lower]):
            response = await upload(service, agent, *zips)
            assert code_of(response) == (422, "invalid_request")
            assert "differ in case alone" in response.json()["detail"]
        assert await service.read(agent) == before

    async def test_is_one_skill_too_many(self, service: Client, agent: str) -> None:
        many = [{"name": f"s{n}", "files": {"SKILL.md": ""}} for n in range(50)]
        await service.patch(agent, json={"skills": many})
        response = await upload(service, agent, ("c.zip", zip_of(CHARTS)))
        assert code_of(response) == (422, "invalid_request")
        assert "50 skills" in response.json()["detail"]
        again = await upload(service, agent, ("s7.zip", zip_of({"SKILL.md": b"new"})))
        assert again.status_code == 200, "one that replaces another still fits"

    async def test_is_a_body_that_is_no_form(self, service: Client, agent: str) -> None:
        url = f"{agent}/skills"
        naked = await service.post(url, content=zip_of(CHARTS), headers={"content-type": "application/zip"})
        assert code_of(naked) == (415, "unsupported_media_type")
        assert "field `file`" in naked.json()["detail"]
        assert code_of(await service.post(url, data={"file": "x"}, files={})) == (415, "unsupported_media_type")
        wrong = await service.post(url, files={"zip": ("c.zip", zip_of(CHARTS))})
        assert code_of(wrong) == (422, "invalid_request")

    async def test_is_a_zip_that_breaks_off(self, service: Client, agent: str) -> None:
        response = await upload(service, agent, ("c.zip", zip_of(CHARTS)[:-30]))
        assert code_of(response) == (415, "unsupported_media_type")

    async def test_is_refused_to_callers_who_may_not_write_agents(
        self, server: ApiServer, service: Client, agent: str
    ) -> None:
        member = await server.user(service)
        assert code_of(await upload(member, agent, ("c.zip", zip_of(CHARTS)))) == (403, "forbidden")
        stranger = await server.tenant()
        assert code_of(await upload(stranger, agent, ("c.zip", zip_of(CHARTS)))) == (404, "not_found")
        nobody = f"/v1/agents/{fake_id('agent')}"
        assert code_of(await upload(service, nobody, ("c.zip", zip_of(CHARTS)))) == (404, "not_found")


class TestTakingASkillAway:
    async def test_leaves_the_others(self, service: Client, agent: str) -> None:
        await upload(service, agent, ("c.zip", zip_of(CHARTS)))
        response = await service.delete(f"{agent}/skills/kept")
        assert [skill["name"] for skill in response.json()["skills"]] == ["charts"]
        assert code_of(await service.delete(f"{agent}/skills/kept")) == (404, "not_found")


def test_the_hostile_zips_are_what_they_say() -> None:
    """Each is a zip that a plain reader would unpack, or begin to; otherwise they would prove nothing."""
    readable = 0
    for make in HOSTILE.values():
        try:
            with zipfile.ZipFile(io.BytesIO(make())) as archive:
                readable += bool(archive.namelist())
        except zipfile.BadZipFile:
            pass
    assert readable >= len(HOSTILE) - 3
