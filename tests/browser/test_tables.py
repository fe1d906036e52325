"""Tables on the page: rows and columns are added, changed and deleted by admins, and exported by everyone."""

import json
from pathlib import Path
from typing import Literal

import pytest_asyncio
from playwright.async_api import Page, expect

from tests.api.harness import Client
from tests.browser.harness import Harness
from tests.browser.test_accessibility import check_with_axe

COLUMNS = [{"name": "Boat"}, {"name": "Length", "type": "number"}, {"name": "Sails", "type": "boolean"}]
ROWS = [{"Boat": "Anna", "Length": 7.5, "Sails": True}, {"Boat": "=Bo, the second", "Length": None, "Sails": False}]
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest_asyncio.fixture(loop_scope="session")
async def client(harness: Harness) -> Client:
    return await harness.api()


async def a_table(client: Client) -> str:
    made = await client.post("/v1/tables", json={"name": "Boats", "columns": COLUMNS})
    assert made.status_code == 201, made.text
    table_id: str = made.json()["id"]
    assert (await client.post(f"/v1/tables/{table_id}/rows", json={"rows": ROWS})).status_code == 201
    return table_id


async def values(client: Client, table_id: str) -> list[dict[str, object]]:
    return [row["values"] for row in (await client.read(f"/v1/tables/{table_id}/rows"))["data"]]


async def opened(harness: Harness, table_id: str) -> Page:
    page = await harness.open_page(f"/settings/tables/{table_id}")
    await expect(page.get_by_role("heading", name="Boats")).to_be_visible()
    return page


class TestRows:
    async def test_are_added_changed_and_deleted(self, harness: Harness, client: Client) -> None:
        table_id = await a_table(client)
        page = await opened(harness, table_id)
        await page.get_by_role("button", name="Add a row").click()
        form = page.get_by_role("form", name="Add a row")
        await form.get_by_label("Boat").fill("Cleo")
        await form.get_by_label("Length").fill("-3.25")
        await form.get_by_label("Sails").select_option("true")
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            await check_with_axe(page)
        await form.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("row", name="Cleo").get_by_role("cell")).to_have_text(["Cleo", "-3.25", "Yes"])
        assert (await values(client, table_id))[-1] == {"Boat": "Cleo", "Length": -3.25, "Sails": True}
        await page.get_by_role("button", name="Edit row 1").click()
        form = page.get_by_role("form", name="Edit row 1")
        await expect(form.get_by_label("Boat")).to_have_value("Anna")
        await form.get_by_label("Length").fill("long")
        await form.get_by_role("button", name="Save").click()
        await expect(form.get_by_role("alert")).to_contain_text("Length")
        await form.get_by_label("Length").fill("8")
        await form.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("cell", name="8", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Edit row 2").click()
        await page.get_by_role("button", name="Delete row 2").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.get_by_role("button", name="Edit row 2")).to_have_count(0)
        assert [row["Boat"] for row in await values(client, table_id)] == ["Anna", "Cleo"]


class TestPhone:
    async def test_a_wide_table_scrolls_inside_of_the_page(self, harness: Harness, client: Client) -> None:
        table_id = await a_table(client)
        columns = [{"name": f"A wide column {number}", "type": "text"} for number in range(8)]
        body = {"columns": [*(await client.read(f"/v1/tables/{table_id}"))["columns"], *columns]}
        assert (await client.patch(f"/v1/tables/{table_id}", json=body)).status_code == 200
        page = await opened(harness, table_id)
        await page.set_viewport_size({"width": 390, "height": 844})
        await expect(page.get_by_role("cell", name="Anna")).to_be_visible()
        rows = page.get_by_role("region", name="Boats")
        assert await rows.evaluate("each => each.scrollWidth > each.clientWidth")
        wide = "[...document.querySelectorAll('main, .settings-body')].filter((each) => each.scrollWidth > innerWidth)"
        assert await page.evaluate(f"{wide}.length") == 0


class TestColumns:
    async def test_are_renamed_and_added(self, harness: Harness, client: Client) -> None:
        table_id = await a_table(client)
        page = await opened(harness, table_id)
        await page.get_by_role("button", name="Name and columns").click()
        form = page.get_by_role("form", name="Name and columns")
        await form.get_by_label("Description").fill("All boats of the harbour.")
        await form.get_by_role("group", name="Columns").get_by_label("Name").nth(1).fill("Metres")
        await form.get_by_role("button", name="Add a column").click()
        await form.get_by_role("group", name="Columns").get_by_label("Name").last.fill("Built")
        await form.get_by_label("Kind").last.select_option("date")
        for theme in THEMES:
            await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            await check_with_axe(page)
        await form.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("columnheader", name="Metres")).to_be_visible()
        table = await client.read(f"/v1/tables/{table_id}")
        assert [(one["name"], one["type"]) for one in table["columns"]] == [
            ("Boat", "text"),
            ("Metres", "number"),
            ("Sails", "boolean"),
            ("Built", "date"),
        ]
        assert table["description"] == "All boats of the harbour."
        assert (await values(client, table_id))[0]["Metres"] == 7.5


class TestExport:
    async def test_gives_all_rows_as_csv_and_as_json(self, harness: Harness, client: Client, tmp_path: Path) -> None:
        table_id = await a_table(client)
        for n in range(120):
            await client.post(f"/v1/tables/{table_id}/rows", json={"rows": [{"Boat": f"Boat {n}"}]})
        page = await opened(harness, table_id)
        async with page.expect_download() as coming:
            await page.get_by_role("link", name="Export as CSV").click()
        await (await coming.value).save_as(tmp_path / "rows.csv")
        lines = (tmp_path / "rows.csv").read_text("utf-8-sig").splitlines()
        assert lines[0] == "Boat,Length,Sails"
        assert len(lines) == 123
        async with page.expect_download() as coming:
            await page.get_by_role("button", name="Export as JSON").click()
        await (await coming.value).save_as(tmp_path / "rows.json")
        exported = json.loads((tmp_path / "rows.json").read_text("utf-8"))
        assert (exported["name"], len(exported["rows"]), exported["rows"][:2]) == ("Boats", 122, ROWS)

    async def test_is_for_members_and_editing_is_not(self, harness: Harness, client: Client) -> None:
        table_id = await a_table(client)
        store, org = harness.server.runtime.store, harness.server.runtime.home_org
        member = await store.ensure_member(org, (await store.workspace(org)).id, "mia")
        await harness.sign_in(member.id)
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/settings/tables/{table_id}")
        await expect(page.get_by_role("link", name="Export as CSV")).to_be_visible()
        await expect(page.get_by_role("cell", name="Anna")).to_be_visible()
        for name in ("Add a row", "Name and columns", "Edit row 1"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
