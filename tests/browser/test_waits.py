"""A turn waits for a person: the card of its calls, on one device and on two; and words that steer a turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

from tests.api.harness import Client
from tests.browser.harness import ChatPage, Harness
from tests.browser.test_accessibility import check_with_axe
from turnkeep.ids import UserId
from turnkeep.providers.scripted import Call, Line, Until

TOOLS = [
    "lookup",
    {"type": "native", "name": "pay", "approval": "always"},
    {"type": "native", "name": "run_command", "approval": "always"},
]
CLIENT_TOOL = {"type": "client", "name": "battery", "description": "The charge of the device.", "input_schema": {}}


async def make_agent(harness: Harness, **fields: Any) -> str:
    operator = await harness.server.operator()
    response = await operator.post("/v1/agents", json={"name": "Clerk", "tools": TOOLS, **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def ask(
    client: Client, harness: Harness, *script: Line, then: str = "It is done.", **body: Any
) -> tuple[str, str]:
    """A turn that waits: the ids of its conversation and of itself. After it, the model says `then`."""
    harness.scripts.say(*script)
    harness.scripts.say(then)
    answer = await client.ask("Pay five.", **body)
    assert answer["turn"]["status"] == "waiting", answer
    return answer["conversation_id"], answer["turn"]["id"]


async def wait_ended(client: Client, turn_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (turn := await client.read(f"/v1/turns/{turn_id}"))["status"] in {"running", "waiting", "queued"}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return dict(turn)


class WaitPage(ChatPage):
    """A chat with a card."""

    @property
    def card(self) -> Locator:
        return self.page.locator(".wait-card")

    @property
    def badge(self) -> Locator:
        return self.conversations.get_by_text("Needs your approval")

    def call(self, name: str) -> Locator:
        return self.card.get_by_role("group", name=f"Call of {name}")

    async def wait_settled(self, count: int = 1) -> None:
        await expect(self.card).to_have_count(0)
        await super().wait_settled(count)

    async def press(self, name: str) -> None:
        await self.card.get_by_role("button", name=name, exact=True).click()

    async def step_error(self) -> str:
        await self.page.locator(".step summary").first.click()
        return await self.page.get_by_role("region", name="Error").inner_text()


async def open_waiting(harness: Harness, *script: Line, then: str = "It is done.", **body: Any) -> tuple[WaitPage, str]:
    """The page of a conversation whose turn waits, as a reload shows it, and the id of the turn."""
    agent = await make_agent(harness)
    client = await harness.api()
    conversation, turn = await ask(client, harness, *script, then=then, agent_id=agent, **body)
    return await WaitPage.open(harness, f"/c/{conversation}"), turn


class TestTheCard:
    async def test_it_comes_with_the_stream_and_the_allowed_call_runs(self, harness: Harness) -> None:
        await make_agent(harness)
        harness.scripts.say("I pay now.", Call("pay", {"amount": 5, "to": "bob"}))
        harness.scripts.say("It is done.")
        chat = await WaitPage.open(harness)
        await chat.page.get_by_label("Agent", exact=True).select_option(label="Clerk")
        await chat.send("Pay five.")
        await expect(chat.card).to_contain_text("The assistant asks for your approval")
        await expect(chat.call("pay").locator("pre")).to_have_text(["5", "bob"])
        await expect(chat.card).to_contain_text("it counts as denied")
        await expect(chat.badge).to_be_visible()
        await expect(chat.page).to_have_title("(1) Pay five. · Turnkeep")
        await expect(chat.page.get_by_role("status").filter(has_text="Your approval is needed.")).to_be_attached()
        await chat.press("Allow")
        await chat.wait_settled()
        await expect(chat.answers).to_contain_text("It is done.")
        await expect(chat.card).to_have_count(0)
        await expect(chat.badge).to_have_count(0)
        await expect(chat.page).to_have_title("Pay five. · Turnkeep")
        await expect(chat.message_box).to_be_focused()

    async def test_it_is_there_after_a_reload(self, harness: Harness) -> None:
        command = 'rm -r "build dir"\necho gone'
        chat, _ = await open_waiting(harness, Call("run_command", {"command": command}))
        await expect(chat.call("run_command").locator(".is-program pre")).to_have_text(command)
        await expect(chat.badge).to_be_visible()
        await chat.page.reload()
        await chat.press("Allow")
        await chat.wait_settled()
        live = await chat.drawn_html()
        await chat.page.reload()
        await chat.wait_settled()
        assert await chat.drawn_html() == live

    async def test_a_denial_has_a_reason_which_the_model_reads(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), then="Then not.")
        await chat.press("Deny")
        await expect(chat.card.get_by_role("textbox")).to_be_focused()
        await chat.page.keyboard.type("Not today.")
        await chat.page.reload()
        await expect(chat.card.get_by_role("textbox")).to_have_value("Not today.")
        await chat.press("Deny")
        await chat.wait_settled()
        await expect(chat.page.locator(".step-end")).to_contain_text("denied")
        assert "Not today." in await chat.step_error()
        assert "Not today." in repr(harness.scripts.requests[-1].all_messages)

    async def test_arguments_can_be_edited(self, harness: Harness) -> None:
        chat, turn = await open_waiting(harness, Call("pay", {"amount": 500}))
        await chat.press("Edit arguments")
        editor = chat.card.get_by_role("textbox", name="Arguments (JSON)")
        allow = chat.card.get_by_role("button", name="Allow with these arguments")
        await expect(editor).to_have_value('{\n  "amount": 500\n}')
        await editor.fill('{"amount": 5')
        await expect(chat.card.get_by_role("status")).to_contain_text("This is not JSON yet")
        await expect(allow).to_be_disabled()
        await editor.fill("[5]")
        await expect(chat.card.get_by_role("status")).to_contain_text("must be a JSON object")
        await editor.fill('{"amount": "much"}')
        await allow.click()
        await expect(chat.card.get_by_role("alert")).to_contain_text("amount")
        await expect(editor).to_have_value('{"amount": "much"}')
        await editor.fill('{"amount": 5}')
        await editor.press("Control+Enter")
        await chat.wait_settled()
        trace = await (await harness.api()).get(f"/v1/turns/{turn}/trace")
        assert "paid 5 to ann" in trace.text

    async def test_numbers_that_are_not_edited_stay_exact(self, harness: Harness) -> None:
        amount = 2**63 - 1
        chat, turn = await open_waiting(harness, Call("pay", {"amount": amount, "to": "bob"}))
        await expect(chat.call("pay").locator("pre")).to_have_text([str(amount), "bob"])
        await chat.press("Edit arguments")
        editor = chat.card.get_by_role("textbox", name="Arguments (JSON)")
        await expect(editor).to_have_value(f'{{\n  "amount": {amount},\n  "to": "bob"\n}}')
        await editor.fill((await editor.input_value()).replace("bob", "eve"))
        await editor.press("Control+Enter")
        await chat.wait_settled()
        trace = await (await harness.api()).get(f"/v1/turns/{turn}/trace")
        assert f"paid {amount} to eve" in trace.text

    async def test_always_allows_later_calls_of_the_conversation(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}))
        await chat.press("Always in this conversation")
        await chat.wait_settled()
        harness.scripts.say(Call("pay", {"amount": 6}))
        harness.scripts.say("And again.")
        await chat.send("Once more.")
        await chat.wait_settled(2)
        await expect(chat.answers.last).to_contain_text("And again.")

    async def test_several_calls_are_in_one_card(self, harness: Harness) -> None:
        calls = [Call("pay", {"amount": 5}), Call("run_command", {"command": "ls"}), Call("pay", {"amount": 7})]
        chat, turn = await open_waiting(harness, *calls)
        await expect(chat.card).to_contain_text("your approval of 3 calls")
        await chat.call("run_command").get_by_role("button", name="Deny").click()
        await chat.call("run_command").get_by_role("button", name="Deny").click()
        await expect(chat.call("run_command")).to_contain_text("Denied")
        await chat.call("pay").first.get_by_role("button", name="Allow").click()
        await expect(chat.call("pay").first).to_contain_text("Allowed")
        # After a reload the page knows which calls are open.
        await chat.page.reload()
        await expect(chat.call("run_command")).to_contain_text("Denied by ")
        await expect(chat.card.get_by_role("button", name="Allow", exact=True)).to_have_count(1)
        await chat.press("Allow")
        await chat.wait_settled()
        trace = (await (await harness.api()).get(f"/v1/turns/{turn}/trace")).text
        assert "paid 5" in trace
        assert "paid 7" in trace
        assert "ran ls" not in trace

    async def test_all_calls_can_be_allowed_at_once(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), Call("pay", {"amount": 7}))
        await chat.press("Allow all")
        await chat.wait_settled()
        await expect(chat.page.locator(".step.is-succeeded")).to_have_count(2)

    async def test_a_lost_connection_loses_no_decision(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}))
        lost = 0

        async def lose(route: Route) -> None:
            nonlocal lost
            lost += 1
            await (route.abort() if lost == 1 else route.continue_())

        await chat.page.route("**/approvals", lose)
        await chat.press("Allow")
        await chat.wait_settled()
        assert lost == 2

    async def test_hidden_characters_are_written_out(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("run_command", {"command": "ls \u202e# fr- mr"}))
        await expect(chat.call("run_command").locator("pre")).to_have_text("ls \\u202e# fr- mr")

    async def test_everything_can_be_done_with_the_keyboard(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}))
        allow = chat.card.get_by_role("button", name="Allow", exact=True)
        await allow.focus()
        for name in ("Deny", "Edit arguments", "Always in this conversation"):
            await chat.page.keyboard.press("Tab")
            await expect(chat.card.get_by_role("button", name=name)).to_be_focused()
        await chat.card.get_by_role("button", name="Deny").focus()
        await chat.page.keyboard.press("Enter")
        await expect(chat.card.get_by_role("textbox")).to_be_focused()
        await chat.page.keyboard.press("Escape")
        await expect(allow).to_be_focused()
        await chat.page.keyboard.press("Enter")
        await chat.wait_settled()


class TestStopAndInterrupt:
    async def test_stop_ends_the_wait(self, harness: Harness) -> None:
        chat, turn = await open_waiting(harness, Call("pay", {"amount": 5}))
        await chat.page.get_by_role("button", name="Stop the answer").click()
        await expect(chat.card).to_have_count(0)
        await expect(chat.page.get_by_text("You stopped this answer.")).to_be_visible()
        assert (await wait_ended(await harness.api(), turn))["status"] == "cancelled"

    async def test_interrupt_ends_the_wait_and_sends_the_message(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), then="Something else, then.")
        await expect(chat.card).to_be_visible()
        await chat.message_box.fill("Forget it.")
        await chat.page.get_by_role("button", name="Interrupt this answer and send now").click()
        await expect(chat.answers.last).to_contain_text("Something else, then.")
        await expect(chat.card).to_have_count(0)


class TestTwoDevices:
    """A second browser with the same user."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def other(self, harness: Harness, browser: Browser) -> AsyncIterator[Harness]:
        context = await browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
        phone = Harness(harness.server, context)
        try:
            yield phone
            phone.check_no_problems()
        finally:
            await context.close()

    async def test_a_decision_on_one_ends_the_card_on_the_other(self, harness: Harness, other: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}))
        phone = await WaitPage.open(other, chat.page.url.removeprefix(harness.server.url))
        await expect(chat.card).to_be_visible()
        await expect(phone.card).to_be_visible()
        await phone.press("Allow")
        for each in (phone, chat):
            await expect(each.card).to_have_count(0)
            await expect(each.answers).to_contain_text("It is done.")

    async def test_one_of_several_decisions_shows_on_the_other(self, harness: Harness, other: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), Call("run_command", {"command": "ls"}))
        phone = await WaitPage.open(other, chat.page.url.removeprefix(harness.server.url))
        await expect(chat.card).to_be_visible()
        asked: list[str] = []
        chat.page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
        await phone.call("pay").get_by_role("button", name="Allow").click()
        await expect(chat.call("pay")).to_contain_text("Allowed by ")
        assert not [each for each in asked if "/v1/turns/" in each], "the stream tells it"
        await chat.call("run_command").get_by_role("button", name="Allow").click()
        for each in (phone, chat):
            await expect(each.answers).to_contain_text("It is done.")

    async def test_a_later_decision_is_told_calmly_that_another_holds(self, harness: Harness, other: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), Call("run_command", {"command": "ls"}))
        phone = await WaitPage.open(other, chat.page.url.removeprefix(harness.server.url))
        await expect(phone.card).to_be_visible()
        # The decision of this page is under way when the other one comes.
        is_decided = asyncio.Event()

        async def late(route: Route) -> None:
            await is_decided.wait()
            await route.continue_()

        await chat.page.route("**/approvals", late)
        await chat.call("pay").get_by_role("button", name="Deny").click()
        await chat.call("pay").get_by_role("button", name="Deny").click()
        await expect(chat.call("pay")).to_contain_text("Denying")
        await phone.call("pay").get_by_role("button", name="Allow").click()
        await expect(phone.call("pay")).to_contain_text("Allowed")
        is_decided.set()
        await expect(chat.call("pay")).to_contain_text("This was already allowed")
        await expect(chat.card.get_by_role("alert")).to_have_count(0)

    async def test_a_phone_shows_the_whole_card(self, harness: Harness, other: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("run_command", {"command": "echo " + "long" * 60}))
        phone = await WaitPage.open(other, chat.page.url.removeprefix(harness.server.url))
        await expect(phone.card).to_be_visible()
        assert await phone.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for button in await phone.card.get_by_role("button").all():
            box = await button.bounding_box()
            assert box is not None
            assert box["height"] >= 40
            assert box["x"] + box["width"] <= 390
        await phone.page.get_by_role("button", name="Open the list of conversations").click()
        await expect(phone.badge).to_be_visible()


class TestWhoDecides:
    async def test_the_card_says_who_can_if_this_user_cannot(self, harness: Harness) -> None:
        agent = await make_agent(harness, approvers=["admin"])
        operator = await harness.server.operator()
        invited = await operator.post("/v1/invites", json={"user": "ann", "name": "Ann"})
        assert invited.status_code == 201, invited.text
        ann = await harness.server.user(operator, "ann")
        conversation, turn = await ask(ann, harness, Call("pay", {"amount": 5}), agent_id=agent)
        await harness.sign_in(UserId((await ann.read("/v1/me"))["user_id"]))
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/c/{conversation}")
        chat = WaitPage(page)
        await expect(chat.card).to_contain_text("An admin of this workspace decides about this.")
        await expect(chat.card.get_by_role("button")).to_have_count(1)
        await expect(chat.card.get_by_role("button", name="Copy a link for an admin")).to_be_visible()
        await expect(chat.conversations.get_by_text("Waits for an approval")).to_be_visible()
        waiting = (await operator.read(f"/v1/turns/{turn}"))["waiting_for"]
        decision = {"call_id": waiting["calls"][0]["id"], "decision": "allow"}
        await operator.post(f"/v1/turns/{turn}/approvals", json={"decisions": [decision]})
        await expect(chat.answers).to_contain_text("It is done.")

    async def test_an_admin_decides_on_a_page_of_the_call_alone(self, harness: Harness) -> None:
        agent = await make_agent(harness, approvers=["admin"])
        operator = await harness.server.operator()
        ann = await harness.server.user(operator, "ann")
        _, turn = await ask(ann, harness, Call("pay", {"amount": 5}), agent_id=agent)
        boss = await harness.server.user(operator, "boss", role="admin")
        await harness.sign_in(UserId((await boss.read("/v1/me"))["user_id"]))
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/turns/{turn}")
        chat = WaitPage(page)
        await expect(chat.call("pay").locator("pre")).to_have_text(["5"])
        await check_with_axe(page)
        await chat.press("Allow")
        await expect(page.get_by_text("Nothing waits for your decision here.")).to_be_visible()
        assert (await wait_ended(ann, turn))["status"] == "succeeded"

    async def test_a_page_of_a_call_that_is_not_yours_says_nothing(self, harness: Harness) -> None:
        operator = await harness.server.operator()
        ann = await harness.server.user(operator, "ann")
        _, turn = await ask(ann, harness, Call("pay", {"amount": 5}), agent_id=await make_agent(harness))
        page = await harness.open_page(f"/turns/{turn}")
        await expect(page.get_by_text("Nothing waits for your decision here.")).to_be_visible()
        await expect(page.locator(".wait-card")).to_have_count(0)


class TestTheFormOfAnAgent:
    async def test_it_sets_which_tools_ask_and_who_is_asked(self, harness: Harness) -> None:
        agent = await make_agent(harness, tools=["pay", CLIENT_TOOL])
        page = await harness.open_page("/settings/agents")
        await page.get_by_role("button", name="Edit Clerk").click()
        await page.get_by_label("Ask a person before pay runs").check()
        await page.get_by_label("Who is asked").select_option(label="An admin of the workspace")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("button", name="Edit Clerk")).to_be_visible()
        saved = await (await harness.server.operator()).read(f"/v1/agents/{agent}")
        assert saved["approvers"] == ["admin"]
        assert saved["tools"][0] == {"type": "native", "name": "pay", "approval": "always"}
        assert saved["tools"][1]["type"] == "client"


class TestClientTools:
    async def test_a_turn_that_waits_for_an_app_says_so_and_can_be_stopped(self, harness: Harness) -> None:
        chat, turn = await open_waiting(harness, Call("battery", {}), tools=[CLIENT_TOOL])
        await expect(chat.card).to_contain_text("must answer: battery")
        await expect(chat.conversations.get_by_text("Waits for an app")).to_be_visible()
        await check_with_axe(chat.page)
        await chat.card.get_by_role("button", name="Stop the answer").click()
        await expect(chat.card).to_have_count(0)
        assert (await wait_ended(await harness.api(), turn))["status"] == "cancelled"

    async def test_it_goes_on_when_the_app_answers(self, harness: Harness) -> None:
        chat, turn = await open_waiting(harness, Call("battery", {}), tools=[CLIENT_TOOL])
        await expect(chat.card).to_be_visible()
        client = await harness.api()
        [call] = (await client.read(f"/v1/turns/{turn}"))["waiting_for"]["calls"]
        await client.post(f"/v1/turns/{turn}/results", json={"results": [{"call_id": call["id"], "result": 80}]})
        await chat.wait_settled()
        await expect(chat.answers).to_contain_text("It is done.")


class TestSteering:
    async def writing(self, harness: Harness) -> WaitPage:
        """An answer whose tool runs until `lookup_allowed` is set."""
        harness.scripts.say("Let me look.", Call("lookup", {"place": "Bern"}))
        chat = await WaitPage.open(harness)
        await chat.send("How is the weather?")
        await expect(chat.page.locator(".step.is-running")).to_be_visible()
        return chat

    async def test_words_reach_the_model_and_stand_at_their_place(self, harness: Harness) -> None:
        chat = await self.writing(harness)
        harness.scripts.say("Il pleut.")
        await chat.message_box.fill("In French, please.")
        await chat.page.get_by_role("button", name="Steer this answer").click()
        await expect(chat.page.get_by_text("Steers this answer: the assistant reads it")).to_be_visible()
        await expect(chat.message_box).to_have_value("")
        await chat.page.reload()
        await expect(chat.page.get_by_text("Steers this answer: the assistant reads it")).to_be_visible()
        harness.lookup_allowed.set()
        await chat.wait_settled()
        steered = chat.answers.get_by_role("group", name="You, while the answer was written")
        await expect(steered).to_have_text("In French, please.")
        await expect(chat.page.get_by_text("In French, please.")).to_have_count(1)
        assert "In French, please." in repr(harness.scripts.requests[-1].all_messages)
        order = "article => [...article.children].map((each) => each.className.split(' ')[0])"
        before = await chat.answers.evaluate(order)
        assert before.index("steps") < before.index("steered")
        await chat.page.reload()
        await expect(steered).to_have_text("In French, please.")
        await chat.wait_settled()
        assert await chat.answers.evaluate(order) == before
        await expect(chat.questions).to_have_count(1)

    async def test_alt_enter_steers(self, harness: Harness) -> None:
        chat = await self.writing(harness)
        harness.scripts.say("Il pleut.")
        await chat.message_box.fill("In French, please.")
        await chat.message_box.press("Alt+Enter")
        await expect(chat.page.get_by_text("Steers this answer: the assistant reads it")).to_be_visible()
        harness.lookup_allowed.set()
        await chat.wait_settled()
        await expect(chat.answers.locator(".steered")).to_have_text("In French, please.")

    async def test_words_for_a_turn_that_ends_before_are_the_next_turn(self, harness: Harness) -> None:
        go_on = asyncio.Event()
        harness.scripts.say("All that ", Until(go_on.wait), "there is.")
        chat = await WaitPage.open(harness)
        await chat.send("Tell me.")
        await expect(chat.answers).to_contain_text("All that")
        harness.scripts.say("En français.")
        await chat.message_box.fill("In French, please.")
        await chat.message_box.press("Alt+Enter")
        await expect(chat.page.get_by_text("Steers this answer: the assistant reads it")).to_be_visible()
        go_on.set()
        await chat.wait_settled(2)
        await expect(chat.questions.last).to_contain_text("In French, please.")
        await expect(chat.answers.last).to_contain_text("En français.")

    async def test_words_that_are_refused_can_be_sent_otherwise(self, harness: Harness) -> None:
        chat = await self.writing(harness)
        refuse = "**/steer"
        problem = {"code": "internal", "detail": "Something broke."}
        await chat.page.route(refuse, lambda route: route.fulfill(status=500, json=problem))
        await chat.message_box.fill("In French, please.")
        await chat.message_box.press("Alt+Enter")
        await expect(chat.questions.get_by_role("alert")).to_contain_text("Something broke.")
        await chat.page.reload()
        await expect(chat.questions.get_by_role("alert")).to_contain_text("Something broke.")
        await chat.page.get_by_role("button", name="Try again").click()
        await expect(chat.page.get_by_text("Queued")).to_be_visible()
        harness.lookup_allowed.set()
        await chat.wait_settled(2)
        await expect(chat.questions.last).to_contain_text("In French, please.")

    async def test_a_turn_that_waits_can_be_steered(self, harness: Harness) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}))
        await expect(chat.card).to_be_visible()
        await chat.message_box.fill("Be brief.")
        await chat.message_box.press("Alt+Enter")
        await expect(chat.page.get_by_text("Steers this answer: the assistant reads it")).to_be_visible()
        await chat.press("Allow")
        await chat.wait_settled()
        await expect(chat.answers.locator(".steered")).to_have_text("Be brief.")

    async def test_files_cannot_steer(self, harness: Harness) -> None:
        chat = await self.writing(harness)
        await chat.message_box.fill("Look at this.")
        await expect(chat.page.get_by_role("button", name="Steer this answer")).to_be_visible()
        picked = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"notes"}
        await chat.page.locator(".composer input[type=file]").set_input_files(picked)  # type: ignore[arg-type]
        await expect(chat.page.locator("[data-state=done]")).to_be_visible()
        await expect(chat.page.get_by_role("button", name="Steer this answer")).to_have_count(0)
        await chat.message_box.press("Alt+Enter")
        await expect(chat.page.get_by_text("Files cannot steer an answer.")).to_be_visible()
        await expect(chat.message_box).to_have_value("Look at this.")


class TestAccessibility:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    async def test_axe_finds_nothing_serious_on_a_card(self, harness: Harness, scheme: Any) -> None:
        chat, _ = await open_waiting(harness, Call("pay", {"amount": 5}), Call("run_command", {"command": "ls"}))
        page: Page = chat.page
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await chat.call("pay").get_by_role("button", name="Deny").click()
        await chat.call("run_command").get_by_role("button", name="Edit arguments").click()
        await chat.card.get_by_role("textbox", name="Arguments").fill("{")
        await chat.message_box.fill("And?")
        await page.wait_for_timeout(200)
        await check_with_axe(page)
        await chat.call("pay").get_by_role("button", name="Deny").click()
        await expect(chat.call("pay")).to_contain_text("Denied")
        await page.wait_for_timeout(200)
        await check_with_axe(page)
