"""The settings: usage and limits, agents, keys, pages and tables, as far as the user's role allows."""

import io
import zipfile

import pytest_asyncio
from playwright.async_api import FilePayload, Page, expect

from tests.browser.harness import ChatPage, Harness
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Fail


async def settings_of(harness: Harness, section: str) -> Page:
    chat = await ChatPage.open(harness)
    await chat.page.get_by_role("link", name="Settings").click()
    await chat.page.get_by_role("navigation", name="Settings").get_by_role("link", name=section).click()
    return chat.page


class TestUsage:
    async def test_shows_the_month_and_changes_the_limits(self, harness: Harness) -> None:
        client = await harness.api()
        await client.ask("One")
        page = await settings_of(harness, "Usage and limits")
        await expect(page.locator(".figures dd").first).to_have_text("1 no limit")
        each = page.get_by_role("group", name="Limits of each user")
        await each.get_by_label("Messages per month").fill("3")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Saved.")).to_be_visible()
        await expect(page.locator(".figures dd").first).to_have_text("1 of 3")
        await page.reload()
        await expect(page.locator(".figures dd").first).to_have_text("1 of 3")

    async def test_every_limit_that_has_a_meter_can_be_changed(self, harness: Harness) -> None:
        client = await harness.api()
        path = f"/v1/workspaces/{(await client.read('/v1/workspaces'))['data'][0]['id']}"
        await client.patch(path, json={"stored_byte_limit": 100_000_000, "user_monthly_token_limit": 500})
        page = await settings_of(harness, "Usage and limits")
        everyone = page.get_by_role("group", name="Limits of the workspace")
        each = page.get_by_role("group", name="Limits of each user")
        await expect(everyone.get_by_label("Stored files in MB")).to_have_value("95.3674")
        await expect(each.get_by_label("Tokens per month")).to_have_value("500")
        texts = {
            "Messages per month": "40",
            "Tokens per month": "70000",
            "Cost per month": "2.5",
            "Stored files in MB": "1.5",
            "Turns at the same time": "2",
        }
        for label, text in texts.items():
            await everyone.get_by_label(label).fill(text)
        await each.get_by_label("Tokens per month").fill("")
        await each.get_by_label("Turns at the same time").fill("1")
        # What another admin changes meanwhile stays, because this form does not change it.
        await client.patch(path, json={"user_monthly_message_limit": 9})
        await page.get_by_role("button", name="Save").click()
        for name in ("Messages this month", "Tokens this month", "Cost this month", "Stored files"):
            await expect(page.get_by_role("meter", name=name).last).to_be_visible()
        await expect(page.get_by_role("listitem").filter(has_text="Stored files")).to_contain_text("of 1.5 MB")
        shown = await client.read(path)
        limits = {name: value for name, value in shown.items() if name.endswith("_limit") and value is not None}
        assert limits == {
            "monthly_message_limit": 40,
            "monthly_token_limit": 70_000,
            "monthly_cost_limit": 2.5,
            "stored_byte_limit": 1_572_864,
            "parallel_turn_limit": 2,
            "user_parallel_turn_limit": 1,
            "user_monthly_message_limit": 9,
        }

    async def test_an_admin_chooses_the_model_that_writes_titles(self, harness: Harness) -> None:
        client = await harness.api()
        page = await settings_of(harness, "Usage and limits")
        field = page.get_by_label("Model that writes titles")
        await expect(field).to_have_value("")
        for label, model in (
            ("None: the beginning of the question", "off"),
            ("The server’s default", None),
            ("scripted", "scripted"),
        ):
            await field.select_option(label=label)
            async with page.expect_response(lambda response: "/v1/workspaces/" in response.url):
                await page.get_by_role("button", name="Save").click()
            [workspace] = (await client.read("/v1/workspaces"))["data"]
            assert workspace["title_model"] == model
        await page.reload()
        await expect(field).to_have_value("scripted")
        harness.scripts.say("The sea is deep.")
        harness.scripts.say("Ocean depth")
        await client.ask("How deep is the sea?")
        await page.goto(harness.server.url)
        await expect(page.get_by_role("navigation", name="Conversations").get_by_text("Ocean depth")).to_be_visible()

    async def test_a_limit_that_an_admin_cannot_raise_is_named(self, harness: Harness) -> None:
        client = await harness.api()
        path = f"/v1/workspaces/{(await client.read('/v1/workspaces'))['data'][0]['id']}"
        await client.patch(path, json={"monthly_token_limit": 500})
        page = await settings_of(harness, "Usage and limits")
        field = page.get_by_role("group", name="Limits of the workspace").get_by_label("Tokens per month")
        for text in ("501", ""):
            await field.fill(text)
            await page.get_by_role("button", name="Save").click()
            refusal = page.get_by_role("alert").filter(
                has_text="“Tokens per month” of the workspace can only be lowered"
            )
            await expect(refusal).to_be_visible()
        await field.fill("499")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_text("Saved.")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        assert (await client.read(path))["monthly_token_limit"] == 499

    async def test_a_limit_that_is_reached_is_explained_in_the_thread(self, harness: Harness) -> None:
        client = await harness.api()
        workspace = (await client.read("/v1/workspaces"))["data"][0]
        await client.patch(f"/v1/workspaces/{workspace['id']}", json={"user_monthly_message_limit": 1})
        chat = await ChatPage.open(harness)
        await chat.send("One")
        await chat.wait_settled()
        await chat.send("Two")
        refusal = chat.questions.get_by_role("alert")
        await expect(refusal).to_contain_text("This message was not sent. What you may use this month is used up.")
        await expect(refusal).to_contain_text("limit of 1 messages a month. Raise the limit")  # for an admin


class TestAgents:
    async def test_an_agent_is_created_with_tools_and_skills_edited_and_chosen(self, harness: Harness) -> None:
        page = await settings_of(harness, "Agents")
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill("Librarian")
        await page.get_by_label("Description", exact=True).first.fill("Finds books.")
        await page.get_by_label("Questions to begin with").fill("What is new?\n\nWhat is old?")
        await page.get_by_label("Instructions", exact=True).fill("You know every book.")
        await page.get_by_role("checkbox", name="lookup", exact=True).check()
        await page.get_by_role("button", name="Add an HTTP tool").click()
        tool = page.get_by_role("group", name="HTTP tools")
        await tool.get_by_label("Name", exact=True).fill("shelves")
        await tool.get_by_label("Address").fill("https://example.org/shelves")
        await page.get_by_role("button", name="Add an MCP server").click()
        server = page.get_by_role("group", name="MCP servers")
        await server.get_by_label("Name", exact=True).fill("catalogue")
        await server.get_by_label("Address").fill("https://example.org/mcp")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("citing/SKILL.md", "# Citing\n" + "Name the shelf. " * 50)
            archive.writestr("citing/recipes/x.sh", "echo hello\n")
        skill: FilePayload = {"name": "citing.zip", "mimeType": "application/zip", "buffer": packed.getvalue()}
        await page.locator("[data-kind=skill-zip]").set_input_files([skill])
        await expect(page.get_by_role("group", name="Skills")).to_contain_text("citing2 files")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".item")).to_contain_text("Librarian")
        client = await harness.api()
        made = (await client.read("/v1/agents"))["data"][0]
        assert made["instructions"] == "You know every book."
        assert (made["description"], made["starters"]) == ("Finds books.", ["What is new?", "What is old?"])
        assert made["tools"][0] == "lookup"
        assert made["tools"][1]["url"] == "https://example.org/shelves"
        assert made["mcp_servers"][0]["name"] == "catalogue"
        assert set(made["skills"][0]["files"]) == {"SKILL.md", "recipes/x.sh"}
        await page.get_by_role("button", name="Edit Librarian").click()
        await page.get_by_role("button", name="Make a new secret").click()
        await expect(page.get_by_role("status").filter(has_text="tksec_")).to_be_visible()
        await page.get_by_label("Instructions", exact=True).fill("You know most books.")
        await page.get_by_role("button", name="Remove shelves").click()
        await page.get_by_role("button", name="Remove catalogue").click()
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("button", name="New agent")).to_be_visible()
        chat = ChatPage(page)
        await chat.conversations.get_by_role("link", name="New conversation").click()
        await page.get_by_label("Agent", exact=True).select_option(label="Librarian")
        await chat.send("Which books?")
        await chat.wait_settled()
        await expect(page.get_by_label("Agent", exact=True)).to_have_value(made["id"])
        assert "You know most books." in str(harness.scripts.requests[-1])

    async def test_an_agent_gets_an_image_for_its_sandbox(self, harness: Harness) -> None:
        client = await harness.api()
        page = await settings_of(harness, "Agents")
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill("Analyst")
        images = page.get_by_label("Python packages of the sandbox")
        await expect(images).to_have_count(0)
        await page.get_by_label("Runs code in a sandbox").check()
        await expect(images.locator("option")).to_have_text(["Only those of the system", "science"])
        await images.select_option("science")
        await expect(page.get_by_text("matplotlib, numpy")).to_be_visible()
        await page.get_by_label("Set-up script").fill("true")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".item")).to_contain_text("Analyst")
        [made] = (await client.read("/v1/agents"))["data"]
        assert made["environment"]["image"] == "science"
        assert made["environment"]["setup_script"] == "true"
        await page.get_by_role("button", name="Edit Analyst").click()
        await expect(images).to_have_value("science")
        await images.select_option("")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("button", name="New agent")).to_be_visible()
        [changed] = (await client.read("/v1/agents"))["data"]
        assert not changed["environment"].get("image")
        assert changed["environment"]["setup_script"] == "true"

    async def test_a_refusal_by_the_server_is_shown_at_the_form(self, harness: Harness) -> None:
        page = await settings_of(harness, "Agents")
        await page.get_by_role("button", name="New agent").click()
        await page.get_by_label("Name", exact=True).fill("X")
        await page.get_by_role("button", name="Add an HTTP tool").click()
        tool = page.get_by_role("group", name="HTTP tools")
        await tool.get_by_label("Name", exact=True).fill("not a tool name")
        await tool.get_by_label("Address").fill("https://example.org/")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await expect(page.get_by_label("Name", exact=True).first).to_have_value("X")

    async def test_an_agent_is_deleted_after_a_confirmation(self, harness: Harness) -> None:
        client = await harness.api()
        await client.post("/v1/agents", json={"name": "Old one"})
        page = await settings_of(harness, "Agents")
        await page.get_by_role("button", name="Delete the agent Old one").click()
        await page.get_by_role("button", name="No").click()
        await expect(page.locator(".item")).to_have_count(1)
        await page.get_by_role("button", name="Delete the agent Old one").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.get_by_text("There are no agents yet.")).to_be_visible()


class TestKeys:
    async def test_a_key_is_shown_once_works_and_is_revoked(self, harness: Harness) -> None:
        page = await settings_of(harness, "API keys")
        await page.get_by_label("Name").fill("backend")
        await page.get_by_role("button", name="New key").click()
        secret = await page.locator(".secret code").inner_text()
        client = await harness.server.client(secret)
        assert (await client.get("/v1/me")).json()["role"] == "service"
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_text(secret)).to_have_count(0)
        await page.get_by_role("button", name="Revoke the key backend").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.locator(".item.is-gone")).to_be_visible()
        assert (await client.get("/v1/me")).status_code == 401


class TestWebhooks:
    async def test_one_is_made_disabled_and_deleted_and_its_deliveries_are_sent_again(self, harness: Harness) -> None:
        url = "https://hook.invalid/turnkeep"
        page = await settings_of(harness, "Webhooks")
        await page.get_by_label("Address").fill(url)
        await page.get_by_role("switch", name="A conversation was created").check()
        await page.get_by_role("button", name="New webhook").click()
        secret = await page.locator(".secret code").inner_text()
        assert secret.startswith("whsec_")
        await page.get_by_role("button", name="Done").click()
        await expect(page.get_by_text(secret)).to_have_count(0)
        client = await harness.api()
        [webhook] = (await client.read("/v1/webhooks"))["data"]
        assert (webhook["url"], webhook["events"]) == (url, ["conversation.created"])
        await expect(page.locator(".item", has_text=url)).to_contain_text("A conversation was created")
        await client.post("/v1/conversations", json={})
        await page.get_by_role("button", name=f"Deliveries to {url}").click()
        deliveries = page.get_by_role("list", name=f"Deliveries to {url}")
        await expect(deliveries.locator(".tag")).to_have_text("pending")
        await deliveries.get_by_role("button", name="Send conversation.created").click()
        await expect(page.get_by_text("It is sent again in a moment.")).to_be_visible()
        await page.get_by_role("button", name=f"Disable {url}").click()
        await expect(page.get_by_role("button", name=f"Enable {url}")).to_be_visible()
        assert not (await client.read(f"/v1/webhooks/{webhook['id']}"))["is_enabled"]
        await page.get_by_role("button", name=f"Enable {url}").click()
        await expect(page.get_by_role("button", name=f"Disable {url}")).to_be_visible()
        await page.get_by_role("button", name=f"Delete {url}").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.get_by_text("There are no webhooks.")).to_be_visible()
        assert (await client.read("/v1/webhooks"))["data"] == []

    async def test_a_refused_address_is_told(self, harness: Harness) -> None:
        page = await settings_of(harness, "Webhooks")
        await page.get_by_label("Address").fill("http://127.0.0.1:1/")
        await page.get_by_role("switch", name="An answer is complete").check()
        await page.get_by_role("button", name="New webhook").click()
        await expect(page.get_by_role("alert")).to_contain_text("may not be called")


class TestKnowledge:
    async def test_a_page_is_written_found_changed_and_deleted(self, harness: Harness) -> None:
        page = await settings_of(harness, "Pages")
        await page.get_by_role("button", name="New page").click()
        await page.get_by_label("Title").fill("Opening hours")
        await page.get_by_label("Text (Markdown)").fill("# Hours\n\nWe open at nine.")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".item")).to_contain_text("Opening hours")
        await page.get_by_label("Search in pages").fill("nine")
        await expect(page.locator(".item")).to_contain_text("nine")
        await page.get_by_role("link", name="Opening hours").click()
        await expect(page.locator("p[data-cited]")).to_have_text("We open at nine.")
        await page.get_by_role("link", name="Back", exact=True).click()
        await page.get_by_role("button", name="Edit Opening hours").click()
        await expect(page.get_by_label("Text (Markdown)")).to_have_value("# Hours\n\nWe open at nine.")
        await page.get_by_label("Title").fill("Hours")
        await page.get_by_role("button", name="Save").click()
        await page.get_by_role("button", name="Delete the page Hours").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.locator(".item")).to_have_count(0)

    async def test_a_table_is_imported_from_a_file_searched_and_deleted(self, harness: Harness) -> None:
        page = await settings_of(harness, "Tables")
        lines = ["planet,moons", *(f"Planet {number},{number}" for number in range(70))]
        file: FilePayload = {"name": "planets.csv", "mimeType": "text/csv", "buffer": "\n".join(lines).encode()}
        await page.locator("[data-kind=csv]").set_input_files([file])
        await expect(page.locator(".item")).to_contain_text("70 rows · planet, moons")
        await page.get_by_role("link", name="planets").click()
        await expect(page.get_by_role("row")).to_have_count(51)
        await page.get_by_role("button", name="More rows").click()
        await expect(page.get_by_role("row")).to_have_count(71)
        await page.get_by_label("Search in the rows").fill("planet 42")
        await expect(page.get_by_role("rowheader").first).to_have_text("43")
        await page.get_by_label("Search in the rows").fill("")
        await expect(page.get_by_role("row")).to_have_count(51)
        await page.get_by_role("link", name="Back", exact=True).click()
        await page.get_by_role("button", name="Delete the table planets").click()
        await page.get_by_role("button", name="Yes").click()
        await expect(page.get_by_text("There are no tables yet.")).to_be_visible()


class TestMembers:
    @pytest_asyncio.fixture(loop_scope="session")
    async def member(self, harness: Harness) -> Page:
        runtime = harness.server.runtime
        workspace = await runtime.store.workspace(runtime.home_org)
        user = await runtime.store.ensure_member(runtime.home_org, workspace.id, "ann", role="member")
        await harness.sign_in(user.id)
        return await harness.context.new_page()

    async def test_read_what_they_can_do_about_a_limit(self, harness: Harness, member: Page) -> None:
        client = await harness.api()
        workspace = (await client.read("/v1/workspaces"))["data"][0]
        await client.patch(f"/v1/workspaces/{workspace['id']}", json={"user_monthly_message_limit": 0})
        await member.goto(harness.server.url)
        chat = ChatPage(member)
        await chat.send("One")
        refusal = chat.questions.get_by_role("alert")
        await expect(refusal).to_have_text(
            "This message was not sent. What you may use this month is used up. "
            "Wait for the next month, or ask an admin for more."
        )

    async def test_see_agents_without_keys_or_buttons_of_admins(self, harness: Harness, member: Page) -> None:
        client = await harness.api()
        await client.post("/v1/agents", json={"name": "For all"})
        await member.goto(f"{harness.server.url}/settings/agents")
        await expect(member.locator(".item")).to_contain_text("For all")
        await expect(member.get_by_role("button", name="New agent")).to_have_count(0)
        await expect(member.get_by_role("button", name="Delete the agent For all")).to_have_count(0)
        await expect(member.get_by_role("link", name="API keys")).to_have_count(0)
        await member.goto(f"{harness.server.url}/settings/keys")
        await expect(member.get_by_text("Your usage in")).to_be_visible()
        await expect(member.get_by_role("button", name="Save")).to_have_count(0)

    async def test_read_what_they_can_do_about_a_failure_and_not_what_the_provider_said(
        self, harness: Harness, member: Page
    ) -> None:
        harness.scripts.say(Fail(ProviderFailed("OpenAI: 401 Incorrect API key.")))
        await member.goto(harness.server.url)
        await member.get_by_label("Message", exact=True).fill("Hello")
        await member.keyboard.press("Enter")
        await expect(member.locator(".ending")).to_contain_text("choose another model")
        await expect(member.locator(".ending")).not_to_contain_text("401")

    async def test_read_pages_and_tables_without_buttons_of_admins(self, harness: Harness, member: Page) -> None:
        client = await harness.api()
        await client.post("/v1/pages", json={"title": "Hours", "content": "# Hours\n\nWe open at **nine**."})
        table = (await client.post("/v1/tables", json={"name": "Boats", "columns": [{"name": "Name"}]})).json()["id"]
        await client.post(f"/v1/tables/{table}/rows", json={"rows": [{"Name": "Ark"}]})
        await member.goto(f"{harness.server.url}/settings/pages")
        await member.get_by_role("link", name="Hours").click()
        await expect(member.locator(".prose strong")).to_have_text("nine")
        await expect(member.get_by_role("heading", name="Hours")).to_have_count(1)
        await expect(member.locator(".settings-body").get_by_role("button")).to_have_count(0)
        await member.reload()
        await expect(member.locator(".prose strong")).to_have_text("nine")
        await member.get_by_role("link", name="Back", exact=True).click()
        await expect(member.get_by_role("link", name="Hours")).to_be_visible()
        await member.get_by_role("link", name="Tables").click()
        await member.get_by_role("link", name="Boats").click()
        await expect(member.get_by_role("cell")).to_have_text("Ark")
        await expect(member.locator(".settings-body").get_by_role("button")).to_have_text(["Export as JSON"])

    async def test_do_not_learn_whether_a_page_of_another_workspace_exists(
        self, harness: Harness, member: Page
    ) -> None:
        operator = await harness.server.operator()
        elsewhere = (await operator.post("/v1/workspaces", json={"name": "Elsewhere"})).json()["id"]
        stranger = await harness.server.client(operator.key, turnkeep_workspace=elsewhere)
        made = (await stranger.post("/v1/pages", json={"title": "Secret", "content": "Nobody knows."})).json()
        await member.goto(f"{harness.server.url}/settings/pages/{made['id']}")
        notice = member.locator(".settings-body").get_by_role("status")
        await expect(notice).to_contain_text("This page does not exist any more")
        await expect(member.get_by_text("Secret")).to_have_count(0)


class TestLongLists:
    async def test_load_more_with_a_button(self, harness: Harness) -> None:
        client = await harness.api()
        for number in range(103):
            await client.post("/v1/pages", json={"title": f"Page {number}", "content": "Words."})
        page = await settings_of(harness, "Pages")
        await expect(page.locator(".item")).to_have_count(100)
        await page.get_by_role("button", name="More pages").click()
        await expect(page.locator(".item")).to_have_count(103)
        await expect(page.get_by_role("button", name="More pages")).to_have_count(0)
