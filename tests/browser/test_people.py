"""People on the page, with a real identity provider: they come, are shown, are sent away, and come back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.api.harness import ApiServer, Client, settings_for
from tests.browser.harness import ChatPage, Harness
from tests.browser.identity_provider import ProviderProcess, running_provider
from tests.ports import free_ports
from turnkeep.api.identity.authentication import COOKIE
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.config import Settings
from turnkeep.providers.scripted import Until


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderProcess]:
    with running_provider() as running:
        yield running


def settings_of(folder: Path, issuer: str, **changes: Any) -> Settings:
    return settings_for(
        folder,
        oidc_issuer=issuer,
        oidc_client_id="turnkeep",
        oidc_client_secret="secret",
        oidc_name="Example Ltd",
        oidc_allowed_groups=("staff", "owners"),
        oidc_admin_groups=("owners",),
        **changes,
    )


@pytest_asyncio.fixture(loop_scope="session")
async def team(built_page: Path, browser: Browser, tmp_path: Path, provider: ProviderProcess) -> AsyncIterator[Harness]:
    """A server with that provider, and a browser that nobody is signed in with."""
    async with ApiServer.start(settings_of(tmp_path, provider.issuer)) as server:
        context = await browser.new_context(viewport={"width": 1280, "height": 820})
        harness = Harness(server, context)
        await allow_provider(harness, provider)
        try:
            yield harness
            harness.check_no_problems()
        finally:
            await context.close()


async def another_browser(team: Harness) -> Harness:
    browser = team.context.browser
    assert browser is not None
    other = Harness(team.server, await browser.new_context(viewport={"width": 1280, "height": 820}))
    other.known_servers = team.known_servers
    return other


async def allow_provider(team: Harness, provider: ProviderProcess) -> None:
    """The page leads to the provider, whose own page asks for a style sheet on the internet. It gets none."""
    team.known_servers.append(provider.issuer)
    known = tuple(team.known_servers)
    await team.context.route(lambda url: not url.startswith(known), lambda route: route.fulfill(body=""))


async def sign_in(team: Harness, provider: ProviderProcess, subject: str, path: str = "/") -> Page:
    page = await team.context.new_page()
    await page.goto(f"{team.server.url}{path}")
    await page.get_by_role("link", name="Sign in with Example Ltd").click()
    await provider.agree(page, subject)
    return page


async def as_user(team: Harness, external_id: str) -> Client:
    operator = await team.server.operator()
    return await team.server.client(operator.key, turnkeep_user=external_id)


class TestTheProvider:
    async def test_a_person_comes_back_to_the_address_that_they_opened(
        self, team: Harness, provider: ProviderProcess
    ) -> None:
        ann = provider.add_person("ann", name="Ann Example", groups=["staff"])
        team.scripts.say("We open at nine.")
        answer = await (await as_user(team, ann)).ask("When?")
        path = f"/c/{answer['conversation_id']}"
        page = await sign_in(team, provider, "ann", path)
        await expect(page.get_by_text("We open at nine.")).to_be_visible()
        assert urlsplit(page.url).path == path
        await expect(page.get_by_role("link", name="Ann Example")).to_be_visible()
        await page.goto(f"{team.server.url}/settings/account")
        facts = page.locator(".facts")
        await expect(facts).to_contain_text("Ann Example")
        await expect(facts).to_contain_text(ann)
        await expect(facts).to_contain_text("Member")
        await expect(page.get_by_role("link", name="People")).to_have_count(0)
        await expect(page.locator(".item")).to_contain_text("at the identity provider")

    async def test_the_group_of_admins_makes_an_admin(self, team: Harness, provider: ProviderProcess) -> None:
        provider.add_person("olga", name="Olga", groups=["owners"])
        page = await sign_in(team, provider, "olga", "/settings/people")
        await expect(page.get_by_label("Role of Olga")).to_have_value("admin")

    async def test_somebody_of_another_group_is_told_so(self, team: Harness, provider: ProviderProcess) -> None:
        provider.add_person("gus", name="Gus Guest", groups=["guests"])
        page = await sign_in(team, provider, "gus", "/settings/usage")
        await expect(page.get_by_role("heading", name="You cannot sign in")).to_be_visible()
        await expect(page.get_by_text("Gus Guest, but not in a group")).to_be_visible()
        provider.add_person("gus", name="Gus Guest", groups=["staff"])
        await page.get_by_role("link", name="Sign in again").click()
        await provider.agree(page, "gus")
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        assert urlsplit(page.url).path == "/settings/usage"

    async def test_somebody_who_says_no_is_told_how_to_go_on(self, team: Harness, provider: ProviderProcess) -> None:
        page = await team.context.new_page()
        await page.goto(team.server.url)
        await page.get_by_role("link", name="Sign in with Example Ltd").click()
        await page.get_by_role("button", name="Deny").click()
        await expect(page.get_by_role("heading")).to_contain_text("sign")
        await page.get_by_role("link", name="To the page").click()
        await expect(page.get_by_role("link", name="Sign in with Example Ltd")).to_be_visible()

    async def test_a_forged_or_replayed_answer_signs_nobody_in(self, team: Harness, provider: ProviderProcess) -> None:
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        answers: list[str] = []
        team.context.on(
            "request", lambda request: answers.append(request.url) if "/oidc/callback?" in request.url else None
        )
        page = await sign_in(team, provider, "ann")
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        [answer] = [url for url in answers if "/oidc/callback?" in url]
        await team.context.clear_cookies()
        for address in (answer, answer.replace("state=", "state=x"), f"{team.server.url}/signin/oidc/callback?code=x"):
            await page.goto(address)
            await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
        assert COOKIE not in {cookie.get("name") for cookie in await team.context.cookies()}

    async def test_a_provider_that_is_away_is_named(self, built_page: Path, browser: Browser, tmp_path: Path) -> None:
        issuer = f"http://localhost:{free_ports(1)[0]}"
        async with ApiServer.start(settings_of(tmp_path, issuer)) as server:
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(f"{server.url}/settings/usage")
            await page.get_by_role("link", name="Sign in with Example Ltd").click()
            await expect(page.get_by_role("heading", name="Sign-in does not work now")).to_be_visible()
            await expect(page.get_by_text("Example Ltd does not answer")).to_be_visible()
            again = page.get_by_role("link", name="Sign in again")
            assert await again.get_attribute("href") == "/signin/oidc?return_to=%2Fsettings%2Fusage"
            await context.close()

    async def test_sign_out_leaves_nothing_and_offers_that_of_the_provider(
        self, team: Harness, provider: ProviderProcess
    ) -> None:
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        page = await sign_in(team, provider, "ann")
        await page.get_by_label("Message", exact=True).fill("A secret draft")
        await page.get_by_role("link", name="Ann Example").click()
        await page.get_by_role("button", name="Sign out", exact=True).click()
        await expect(page.get_by_text("You are signed out.")).to_be_visible()
        link = page.get_by_role("link", name="Sign out at the identity provider too")
        assert (await link.get_attribute("href") or "").startswith(f"{provider.issuer}/oauth2/end_session?")
        assert COOKIE not in {cookie.get("name") for cookie in await team.context.cookies()}
        stored: str = await page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        assert "secret" not in stored
        provider.add_person("bob", name="Bob", groups=["staff"])
        await page.get_by_role("link", name="Sign in with Example Ltd").click()
        await provider.agree(page, "bob")
        await expect(page.get_by_role("link", name="Bob")).to_be_visible()
        await expect(page.get_by_label("Message", exact=True)).to_have_value("")


class TestSessions:
    async def test_one_that_is_ended_elsewhere_asks_for_a_sign_in_and_loses_nothing(
        self, team: Harness, provider: ProviderProcess
    ) -> None:
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        page = await sign_in(team, provider, "ann")
        chat = ChatPage(page)
        await chat.send("Hello?")
        await chat.wait_settled()
        place = urlsplit(page.url).path
        other = await another_browser(team)
        elsewhere = await sign_in(other, provider, "ann", "/settings/account")
        await expect(elsewhere.locator(".item")).to_have_count(2)
        await elsewhere.get_by_role("button", name="End the session of").click()
        await elsewhere.get_by_role("button", name="Yes").click()
        await expect(elsewhere.locator(".item")).to_have_count(1)
        await chat.message_box.fill("Typed before I knew")
        await chat.message_box.press("Enter")
        dialog = page.get_by_role("dialog", name="Your session has ended")
        await expect(dialog).to_be_visible()
        await dialog.get_by_role("link", name="Sign in with Example Ltd").click()
        await provider.agree(page, "ann")
        # The page may hear of the end by another request before Enter is pressed. Then the words are still a draft.
        sent = chat.questions.get_by_text("Typed before I knew")
        await expect(sent.or_(chat.message_box.and_(page.locator("textarea:not(:placeholder-shown)")))).to_be_visible()
        if await chat.message_box.input_value():
            await expect(chat.message_box).to_have_value("Typed before I knew")
            await chat.message_box.press("Enter")
        await expect(sent).to_be_visible()
        await chat.wait_settled(2)
        assert urlsplit(page.url).path == place
        assert len(await page.locator("article", has_text="Typed before I knew").all()) == 1
        await other.context.close()

    async def test_a_draft_survives_the_sign_in(self, team: Harness, provider: ProviderProcess) -> None:
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        page = await sign_in(team, provider, "ann")
        await page.get_by_label("Message", exact=True).fill("Half a sentence")
        await self.end_all(team)
        dialog = page.get_by_role("dialog", name="Your session has ended")
        await expect(dialog).to_be_visible()
        await dialog.get_by_role("link", name="Sign in with Example Ltd").click()
        await provider.agree(page, "ann")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")

    async def test_a_form_of_the_settings_stays_while_the_user_signs_in_in_another_tab(
        self, team: Harness, provider: ProviderProcess
    ) -> None:
        provider.add_person("olga", name="Olga", groups=["owners"])
        page = await sign_in(team, provider, "olga", "/settings/keys")
        await page.get_by_label("Name", exact=True).fill("half typed")
        await self.end_all(team)
        await page.get_by_role("button", name="New key").click()
        dialog = page.get_by_role("dialog", name="Your session has ended")
        async with team.context.expect_page() as opened:
            await dialog.get_by_role("link", name="Sign in with Example Ltd").click()
        tab = await opened.value
        await provider.agree(tab, "olga")
        await expect(tab.get_by_role("heading", name="Settings")).to_be_visible()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_label("Name", exact=True)).to_have_value("half typed")
        await page.get_by_role("button", name="New key").click()
        await expect(page.get_by_text("shown only once")).to_be_visible()

    async def test_one_tab_signs_the_others_out(self, team: Harness, provider: ProviderProcess) -> None:
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        first = await sign_in(team, provider, "ann")
        second = await team.context.new_page()
        await second.goto(f"{team.server.url}/settings/account")
        await second.get_by_role("button", name="Sign out", exact=True).click()
        await expect(second.get_by_text("You are signed out.")).to_be_visible()
        await expect(first.get_by_role("dialog", name="Your session has ended")).to_be_visible()

    async def test_an_answer_that_is_being_written_goes_on_after_the_sign_in(
        self, team: Harness, provider: ProviderProcess
    ) -> None:
        gate = asyncio.Event()
        provider.add_person("ann", name="Ann Example", groups=["staff"])
        team.scripts.say("Slowly ", Until(gate.wait), "done.")
        page = await sign_in(team, provider, "ann")
        chat = ChatPage(page)
        await chat.send("Take your time.")
        await expect(chat.answers.get_by_text("Slowly")).to_be_visible()
        await self.end_all(team)
        dialog = page.get_by_role("dialog", name="Your session has ended")
        await expect(dialog).to_be_visible()
        gate.set()
        await dialog.get_by_role("link", name="Sign in with Example Ltd").click()
        await provider.agree(page, "ann")
        await expect(chat.answers.get_by_text("Slowly done.")).to_be_visible()

    async def end_all(self, team: Harness) -> None:
        """End every session, as if it had expired."""
        operator = await team.server.operator()
        for user in (await operator.read("/v1/users"))["data"]:
            assert (await operator.delete(f"/v1/users/{user['id']}/sessions")).status_code == 204


class TestInvites:
    async def test_from_the_link_to_the_end(self, harness: Harness) -> None:
        admin = await harness.open_page("/settings/people")
        await admin.get_by_label("E-mail address or another id").fill("ann@example.com")
        await admin.get_by_label("Name", exact=True).fill("Ann")
        await admin.get_by_role("button", name="Make a link").click()
        link = (await admin.locator(".secret code").text_content()) or ""
        assert link.startswith(f"{harness.server.url}/invite#tki_")
        await admin.get_by_role("button", name="Done").click()
        await expect(admin.get_by_text(link)).to_have_count(0)
        await expect(admin.get_by_text("not used yet")).to_be_visible()

        guest = await another_browser(harness)
        page = await guest.context.new_page()
        await page.goto(link)
        await expect(page.get_by_role("heading", name="You are invited")).to_be_visible()
        await admin.reload()
        await expect(admin.get_by_text("not used yet")).to_be_visible()
        await page.get_by_role("button", name="Accept and sign in").click()
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()
        await expect(page.get_by_role("link", name="Ann")).to_be_visible()
        assert "tki_" not in page.url

        late = await another_browser(harness)
        other = await late.context.new_page()
        await other.goto(link)
        await other.get_by_role("button", name="Accept and sign in").click()
        await expect(other.get_by_role("alert")).to_contain_text("Ask for a new one")
        await late.context.close()

        await admin.reload()
        await expect(admin.get_by_text("not used yet")).to_have_count(0)
        await admin.get_by_role("button", name="Sessions of Ann").click()
        await expect(admin.get_by_text("with an invite")).to_be_visible()
        async with admin.expect_response(lambda response: response.request.method == "PATCH"):
            await admin.get_by_label("Role of Ann").select_option("admin")
        await page.reload()
        await expect(page.get_by_role("link", name="Ann")).to_contain_text("Admin")
        await admin.get_by_role("button", name="Disable Ann").click()
        await admin.get_by_role("button", name="Yes").click()
        await expect(admin.get_by_role("button", name="Enable Ann")).to_be_visible()
        await page.get_by_label("Message", exact=True).fill("Am I still here?")
        await page.get_by_label("Message", exact=True).press("Enter")
        await expect(page.get_by_role("dialog", name="Your session has ended")).to_be_visible()
        await guest.context.close()

    async def test_one_is_taken_back(self, harness: Harness) -> None:
        client = await harness.api()
        link = (await client.post("/v1/invites", json={"user": "bob"})).json()["url"]
        admin = await harness.open_page("/settings/people")
        await admin.get_by_role("button", name="Take back the invite of bob").click()
        await admin.get_by_role("button", name="Yes").click()
        await expect(admin.get_by_text("not used yet")).to_have_count(0)
        guest = await another_browser(harness)
        page = await guest.context.new_page()
        await page.goto(link)
        await page.get_by_role("button", name="Accept and sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not valid any more")
        await guest.context.close()

    async def test_a_link_that_was_cut_off_says_so(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/invite#tki_")
        await expect(page.get_by_text("not complete")).to_be_visible()


class TestTheLocalLink:
    async def test_a_pasted_link_signs_in_at_the_same_address(self, harness: Harness) -> None:
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/settings/tables")
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await page.get_by_label("Or paste the link here").fill("https://example.org/")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not a sign-in link")
        await page.get_by_label("Or paste the link here").fill(f"{harness.server.url}/signin?token={'x' * 32}")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("not valid any more")
        token = SigninLinks.of(harness.server.runtime.settings).make()
        await page.get_by_label("Or paste the link here").fill(f"{harness.server.url}/signin?token={token}")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Settings")).to_be_visible()
        await expect(page.get_by_text("There are no tables yet.")).to_be_visible()
        assert urlsplit(page.url).path == "/settings/tables"
        await expect(page.get_by_role("link", name="Operator")).to_be_visible()

    async def test_a_link_that_is_opened_leads_back_to_the_address_that_asked_for_a_sign_in(
        self, harness: Harness
    ) -> None:
        page = await harness.context.new_page()
        await page.goto(f"{harness.server.url}/settings/tables")
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        token = SigninLinks.of(harness.server.runtime.settings).make()
        await page.goto(f"{harness.server.url}/signin?token={token}")
        await expect(page.get_by_text("There are no tables yet.")).to_be_visible()
        assert urlsplit(page.url).path == "/settings/tables"
        # Only once: the address of the page counts later.
        await page.goto(harness.server.url)
        await expect(page.get_by_label("Message", exact=True)).to_be_visible()

    @pytest.mark.parametrize("query", ["", "?token=", "?token=no", f"?token={'x' * 300}", "?token=no&utm_source=mail"])
    async def test_one_that_does_not_work_is_a_page_with_words(self, harness: Harness, query: str) -> None:
        page = await harness.context.new_page()
        response = await page.goto(f"{harness.server.url}/signin{query}")
        assert response is not None
        assert response.status == 401
        await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
        await expect(page.get_by_text("This sign-in link is not valid any more.")).to_be_visible()
        await page.get_by_role("link", name="To the page").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

    async def test_what_was_asked_in_the_terminal_is_on_the_page(self, harness: Harness) -> None:
        operator = await harness.server.operator()
        terminal = await harness.server.client(operator.key, turnkeep_user="local")
        await terminal.ask("Asked in the terminal")
        chat = await ChatPage.open(harness)
        await expect(chat.conversations.get_by_text("Asked in the terminal")).to_be_visible()
