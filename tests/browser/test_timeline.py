"""What happened in a turn, on the page: opened from an answer or from the usage, live, and by the keyboard."""

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.api.harness import settings_for
from tests.browser.harness import ChatPage, Harness
from turnkeep.config import Settings
from turnkeep.providers.ports import ProviderFailed
from turnkeep.providers.scripted import Call, Fail, Pause, Restart, Think


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"scripted": {"input": 1_000, "output": 2_000}}), encoding="utf-8")
    return settings_for(tmp_path, prices=prices)


async def names(page: Page) -> list[str]:
    return [" ".join(text.split()) for text in await page.locator(".span-name").all_inner_texts()]


class TestTheTimelineOfATurn:
    async def test_is_opened_from_its_answer_and_shows_times_tokens_and_cost(self, harness: Harness) -> None:
        harness.lookup_allowed.set()
        harness.scripts.say(Think("Hm."), "Let me look.", Call("lookup", {"place": "Bern"}))
        harness.scripts.say("It rains.")
        chat = await ChatPage.open(harness)
        await chat.send("Weather?")
        await chat.wait_settled()
        await chat.answers.get_by_role("link", name="What happened").click()
        page = chat.page
        await expect(page.get_by_role("heading", name="What happened")).to_be_visible()
        assert page.url.endswith("/timeline")
        table = page.get_by_role("table", name="Model calls, tools, waits")
        await expect(table.get_by_role("row")).to_have_count(4)
        assert await names(page) == ["Model call scripted done", "Tool lookup done", "Model call scripted done"]
        first = table.get_by_role("row").nth(1)
        await expect(first).to_contain_text("0.02")
        await expect(first.get_by_role("cell").nth(2)).to_have_text("15")
        await expect(page.locator(".facts").first).to_contain_text("20 read, 10 written")
        await table.get_by_role("button", name="Tool lookup").click()
        await expect(page.get_by_role("region", name="Arguments")).to_contain_text('"place": "Bern"')
        await expect(page.get_by_role("region", name="Result")).to_contain_text('"sky": "rain"')
        await table.get_by_role("button", name="Model call").first.click()
        await expect(page.get_by_role("region", name="Thoughts")).to_have_text("Hm.")
        await page.get_by_text("What the model was sent").click()
        await expect(page.get_by_role("region", name="Messages")).to_contain_text("Weather?")
        await expect(page.get_by_role("region", name="Tools", exact=True)).to_contain_text('"name": "lookup"')
        await page.reload()
        await expect(page.get_by_role("button", name="Tool lookup")).to_be_visible()
        await page.get_by_role("link", name="Open the conversation").click()
        await expect(chat.answers).to_have_count(1)

    async def test_works_with_the_keyboard_alone(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("Let me look.", Call("broken", {}))
        turn = (await client.ask("Weather?"))["turn"]["id"]
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await page.get_by_role("button", name="Model call").first.focus()
        await page.keyboard.press("ArrowDown")
        await expect(page.get_by_role("button", name="Tool broken failed")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("region", name="Error")).to_contain_text("The station does not answer.")
        await expect(page.get_by_role("button", name="Tool broken failed")).to_have_attribute("aria-expanded", "true")
        await page.keyboard.press("End")
        await expect(page.get_by_role("button", name="Model call").last).to_be_focused()
        await page.keyboard.press("Home")
        await expect(page.get_by_role("button", name="Model call").first).to_be_focused()

    async def test_is_kept_up_to_date_until_the_turn_has_ended(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say(Call("lookup", {"place": "Bern"}))
        harness.scripts.say("It rains.")
        asked = (await client.post("/v1/turns", json={"message": "Weather?", "background": True})).json()
        page = await harness.open_page(f"/turns/{asked['turn_id']}/timeline")
        await expect(page.get_by_role("button", name="Tool lookup under way")).to_be_visible()
        await expect(page.locator(".facts").first).to_contain_text("Under way")
        harness.lookup_allowed.set()
        await expect(page.locator(".facts").first).to_contain_text("Answered")
        assert await names(page) == ["Model call scripted done", "Tool lookup done", "Model call scripted done"]

    async def test_shows_retries_and_why_it_failed(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("Half", Restart("overloaded"), Fail(ProviderFailed("Out of order.")))
        turn = (await client.ask("Try"))["turn"]["id"]
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await expect(page.get_by_role("button", name="Asked again overloaded")).to_be_visible()
        await expect(page.get_by_role("button", name="Model call scripted failed")).to_be_visible()
        await expect(page.locator(".facts").first).to_contain_text("Out of order.")

    async def test_of_a_stopped_turn_says_what_was_stopped(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("Half", Pause(600))
        asked = (await client.post("/v1/turns", json={"message": "Slowly", "background": True})).json()
        page = await harness.open_page(f"/turns/{asked['turn_id']}/timeline")
        await expect(page.get_by_role("button", name="Model call scripted under way")).to_be_visible()
        await client.post(f"/v1/turns/{asked['turn_id']}/cancel")
        await expect(page.get_by_role("button", name="Model call scripted stopped")).to_be_visible()

    async def test_with_hundreds_of_steps_is_shown_in_parts(self, harness: Harness) -> None:
        client = await harness.api()
        for _ in range(5):
            harness.scripts.say(*(Call("broken", {"place": str(number)}) for number in range(70)))
        turn = (await client.ask("Much"))["turn"]["id"]
        shown = await client.read(f"/v1/turns/{turn}/timeline")
        assert len(shown["spans"]) > 300
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await expect(page.locator(".span-name")).to_have_count(300)
        await page.get_by_role("button", name=f"Show {len(shown['spans']) - 300} more").click()
        await expect(page.locator(".span-name")).to_have_count(len(shown["spans"]))

    async def test_of_another_person_shows_an_admin_no_words(self, harness: Harness) -> None:
        operator = await harness.server.operator()
        bob = await harness.server.client(operator.key, turnkeep_user="bob")
        harness.scripts.say("A secret.", Call("broken", {}))
        turn = (await bob.ask("A question that is nobody's business"))["turn"]["id"]
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await expect(page.get_by_text("This turn is of another person.")).to_be_visible()
        await page.get_by_role("button", name="Tool broken").click()
        await expect(page.locator(".span-details")).to_be_visible()
        await expect(page.get_by_role("region", name="Arguments")).to_have_count(0)
        await expect(page.get_by_text("What the model was sent")).to_have_count(0)
        await expect(page.get_by_role("link", name="Open the conversation")).to_have_count(0)

    async def test_that_does_not_exist_says_so(self, harness: Harness) -> None:
        page = await harness.open_page(f"/turns/turn_{'0' * 32}/timeline")
        await expect(page.get_by_role("alert")).to_have_text("There is no such turn, or you may not see it.")

    async def test_fits_on_a_phone(self, harness: Harness) -> None:
        client = await harness.api()
        harness.scripts.say("Let me look.", Call("broken", {"place": "A" * 300}))
        turn = (await client.ask("Weather?"))["turn"]["id"]
        page = await harness.open_page(f"/turns/{turn}/timeline")
        await page.set_viewport_size({"width": 375, "height": 740})
        await page.get_by_role("button", name="Tool broken").click()
        await expect(page.get_by_role("region", name="Arguments")).to_be_visible()
        assert await page.evaluate("document.querySelector('main').scrollWidth <= innerWidth")
        box = await page.get_by_role("button", name="Tool broken").bounding_box()
        assert box is not None
        assert box["height"] >= 44


class TestTheDashboardOfUsage:
    async def test_has_charts_tables_files_limits_and_turns(self, harness: Harness) -> None:
        operator = await harness.server.operator()
        client = await harness.api()
        bob = await harness.server.client(operator.key, turnkeep_user="bob")
        agent = (await client.post("/v1/agents", json={"name": "Librarian"})).json()["id"]
        await client.ask("One")
        await client.ask("Two", agent_id=agent)
        await bob.ask("Three")
        workspace = (await client.read("/v1/workspaces"))["data"][0]
        await client.patch(f"/v1/workspaces/{workspace['id']}", json={"monthly_token_limit": 100})
        page = await harness.open_page("/settings/usage")
        chart = page.get_by_role("img", name="Messages by day in")
        await expect(chart).to_be_visible()
        await expect(chart.locator("desc")).to_contain_text("3 in all.")
        await page.get_by_label("Show", exact=True).select_option("cost")
        await expect(page.get_by_role("img", name="Cost by day in").locator("desc")).to_contain_text("0.06 in all.")
        people = page.get_by_role("region", name="By person")
        await expect(people.get_by_role("row")).to_have_count(3)
        await expect(people.get_by_role("row", name="bob")).to_contain_text("0.02")
        await expect(page.get_by_role("region", name="By agent").get_by_role("row", name="Librarian")).to_contain_text(
            "10"
        )
        await expect(page.get_by_role("region", name="By model").get_by_role("row", name="scripted")).to_contain_text(
            "30"
        )
        limit = page.get_by_role("listitem").filter(has=page.get_by_role("meter", name="Tokens this month"))
        await expect(limit).to_contain_text("45 of 100 (45%)")
        async with page.expect_download() as saved:
            await page.get_by_role("button", name="Download CSV: By person").click()
        text = Path(await (await saved.value).path()).read_text(encoding="utf-8-sig")
        assert text.splitlines()[0].startswith("month,user,external_id,name,messages")
        assert len(text.splitlines()) == 3
        await page.get_by_label("Person", exact=True).select_option(label="bob")
        await expect(page.get_by_role("img", name="Cost by day in").locator("desc")).to_contain_text("0.02 in all.")
        turns = page.get_by_role("region", name="Turns")
        await expect(turns.get_by_role("row")).to_have_count(2)
        await turns.get_by_role("link").click()
        await expect(page.get_by_text("This turn is of another person.")).to_be_visible()

    async def test_shows_a_member_their_own_alone(self, harness: Harness) -> None:
        operator = await harness.server.operator()
        bob = await harness.server.client(operator.key, turnkeep_user="bob")
        await (await harness.api()).ask("One")
        await bob.ask("Two")
        member = await operator.read("/v1/users/bob")
        await harness.sign_in(member["id"])
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/settings/usage")
        await expect(page.get_by_role("heading", name="Your usage by day and model")).to_be_visible()
        await expect(page.get_by_role("img", name="Messages by day in").locator("desc")).to_contain_text("1 in all.")
        await expect(page.get_by_label("Person", exact=True)).to_have_count(0)
        turns = page.get_by_role("region", name="Turns")
        await expect(turns.get_by_role("row")).to_have_count(2)
        await turns.get_by_role("link").click()
        await expect(page.get_by_role("link", name="Open the conversation")).to_be_visible()
