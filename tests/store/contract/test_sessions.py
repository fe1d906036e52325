"""Sessions of the page, and links that invite a person: each known by a hash, each with an end."""

import asyncio
import secrets

import pytest
from msgspec import structs

from tests.store.databases import Database
from tests.store.factories import Tenant, a_tenant, save_member
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import UserId, new_invite_id, new_session_id, new_user_id
from turnkeep.model.principals import Principal
from turnkeep.model.sessions import NewSession, PageSession, SigninMethod
from turnkeep.store.ports import Store


def a_session(*, method: SigninMethod = "link", browser: str = "Chromium", seconds: float = 60) -> NewSession:
    return NewSession(secret_hash=secrets.token_bytes(32), method=method, browser=browser, seconds=seconds)


def user_of(principal: Principal) -> UserId:
    assert principal.user_id is not None
    return principal.user_id


async def sign_in(store: Store, principal: Principal, new: NewSession | None = None) -> tuple[bytes, PageSession]:
    new = new or a_session()
    return new.secret_hash, await store.add_session(principal.org_id, user_of(principal), new)


class TestSessions:
    async def test_one_look_up_finds_session_user_and_workspace(
        self, store: Store, tenant: Tenant, database: Database
    ) -> None:
        cookie, made = await sign_in(store, tenant.ann, a_session(method="oidc", browser="Firefox\n\0 on Linux"))
        assert (made.method, made.browser, made.user_id) == ("oidc", "Firefox on Linux", tenant.ann.user_id)
        assert (made.created_at, made.last_used_at) == (database.now, database.now)
        assert made.expires_at == database.now + 60_000
        found = await store.signed_in(cookie)
        assert found is not None
        assert (found.session, found.workspace) == (made, tenant.workspace)
        assert (found.member.id, found.member.external_id, found.member.is_disabled) == (
            tenant.ann.user_id,
            "ann",
            False,
        )

    async def test_an_unknown_cookie_finds_nothing(self, store: Store, tenant: Tenant) -> None:
        await sign_in(store, tenant.ann)
        assert await store.signed_in(secrets.token_bytes(32)) is None
        assert await store.signed_in(b"") is None

    async def test_it_ends_by_itself(self, store: Store, tenant: Tenant, database: Database) -> None:
        cookie, _ = await sign_in(store, tenant.ann)
        await database.advance(seconds=59.999)
        assert await store.signed_in(cookie) is not None
        await database.advance(seconds=0.001)
        assert await store.signed_in(cookie) is None
        assert await store.sessions(tenant.org.id, user_of(tenant.ann)) == []

    async def test_its_last_use_is_noted(self, store: Store, tenant: Tenant, database: Database) -> None:
        cookie, made = await sign_in(store, tenant.ann)
        await database.advance(seconds=5)
        await store.use_session(made.id)
        found = await store.signed_in(cookie)
        assert found is not None
        assert found.session.last_used_at == made.created_at + 5_000

    async def test_each_user_has_their_own_newest_first(self, store: Store, tenant: Tenant) -> None:
        _, first = await sign_in(store, tenant.ann)
        _, second = await sign_in(store, tenant.ann)
        await sign_in(store, tenant.bob)
        other = await a_tenant(store, "Other")
        assert await store.sessions(tenant.org.id, user_of(tenant.ann)) == [second, first]
        assert await store.sessions(other.org.id, user_of(tenant.ann)) == []

    async def test_one_can_be_ended(self, store: Store, tenant: Tenant) -> None:
        cookie, made = await sign_in(store, tenant.ann)
        other_cookie, _ = await sign_in(store, tenant.ann)
        ann, bob = user_of(tenant.ann), user_of(tenant.bob)
        with pytest.raises(NotFound):
            await store.end_session(tenant.org.id, bob, made.id)
        assert await store.signed_in(cookie) is not None
        await store.end_session(tenant.org.id, ann, made.id)
        assert await store.signed_in(cookie) is None
        assert await store.signed_in(other_cookie) is not None
        for gone in (made.id, new_session_id()):
            with pytest.raises(NotFound):
                await store.end_session(tenant.org.id, ann, gone)

    async def test_all_but_one_can_be_ended(self, store: Store, tenant: Tenant) -> None:
        signed = [await sign_in(store, tenant.ann) for _ in range(3)]
        bobs, _ = await sign_in(store, tenant.bob)
        ann = user_of(tenant.ann)
        await store.end_sessions(tenant.org.id, ann, kept=signed[1][1].id)
        assert [await store.signed_in(cookie) is not None for cookie, _ in signed] == [False, True, False]
        await store.end_sessions(tenant.org.id, ann)
        assert await store.sessions(tenant.org.id, ann) == []
        assert await store.signed_in(bobs) is not None

    async def test_a_cookie_ends_its_session(self, store: Store, tenant: Tenant) -> None:
        cookie, _ = await sign_in(store, tenant.ann)
        await store.end_session_by_hash(secrets.token_bytes(32))
        assert await store.signed_in(cookie) is not None
        await store.end_session_by_hash(cookie)
        assert await store.signed_in(cookie) is None

    async def test_only_a_user_can_be_signed_in(self, store: Store, tenant: Tenant) -> None:
        other = await a_tenant(store, "Other")
        for org_id, user_id in ((tenant.org.id, new_user_id()), (other.org.id, user_of(tenant.ann))):
            with pytest.raises(NotFound):
                await store.add_session(org_id, user_id, a_session())
        with pytest.raises(InvalidRequest):
            await store.add_session(
                tenant.org.id,
                user_of(tenant.ann),
                NewSession(secret_hash=b"", method="link", browser="", seconds=1),
            )

    async def test_it_goes_with_its_workspace(self, store: Store, tenant: Tenant) -> None:
        lab = await store.create_workspace(tenant.org.id, "Lab")
        member = await store.ensure_member(tenant.org.id, lab.id, "ann")
        new = a_session()
        await store.add_session(tenant.org.id, member.id, new)
        await store.add_invite(tenant.org.id, member.id, secrets.token_bytes(32), seconds=60)
        await store.delete_workspace(tenant.org.id, lab.id)
        assert await store.signed_in(new.secret_hash) is None


class TestInvites:
    async def test_one_signs_the_user_in_once(self, store: Store, tenant: Tenant, database: Database) -> None:
        link = secrets.token_bytes(32)
        made = await store.add_invite(tenant.org.id, user_of(tenant.ann), link, seconds=60)
        assert (made.user_id, made.expires_at, made.used_at) == (tenant.ann.user_id, database.now + 60_000, None)
        assert await store.invites(tenant.org.id, tenant.workspace.id) == [made]
        new = a_session(method="invite")
        session = await store.spend_invite(link, new)
        assert session is not None
        assert (session.user_id, session.method, session.browser) == (tenant.ann.user_id, "invite", "Chromium")
        found = await store.signed_in(new.secret_hash)
        assert found is not None
        assert found.session == session
        assert await store.spend_invite(link, a_session()) is None
        assert await store.invites(tenant.org.id, tenant.workspace.id) == []

    async def test_of_many_at_once_exactly_one_is_let_in(self, store: Store, tenant: Tenant) -> None:
        link = secrets.token_bytes(32)
        await store.add_invite(tenant.org.id, user_of(tenant.ann), link, seconds=60)
        answers = await asyncio.gather(*(store.spend_invite(link, a_session()) for _ in range(50)))
        assert sum(answer is not None for answer in answers) == 1
        assert len(await store.sessions(tenant.org.id, user_of(tenant.ann))) == 1

    async def test_not_after_its_end(self, store: Store, tenant: Tenant, database: Database) -> None:
        link = secrets.token_bytes(32)
        await store.add_invite(tenant.org.id, user_of(tenant.ann), link, seconds=60)
        await database.advance(seconds=60)
        assert await store.invites(tenant.org.id, tenant.workspace.id) == []
        assert await store.spend_invite(link, a_session()) is None

    async def test_not_after_it_was_deleted(self, store: Store, tenant: Tenant) -> None:
        link = secrets.token_bytes(32)
        made = await store.add_invite(tenant.org.id, user_of(tenant.ann), link, seconds=60)
        other = await a_tenant(store, "Other")
        with pytest.raises(NotFound):
            await store.delete_invite(other.org.id, other.workspace.id, made.id)
        await store.delete_invite(tenant.org.id, tenant.workspace.id, made.id)
        assert await store.spend_invite(link, a_session()) is None
        for gone in (made.id, new_invite_id()):
            with pytest.raises(NotFound):
                await store.delete_invite(tenant.org.id, tenant.workspace.id, gone)

    async def test_a_disabled_user_is_not_let_in_and_the_link_stays(self, store: Store, tenant: Tenant) -> None:
        link = secrets.token_bytes(32)
        await store.add_invite(tenant.org.id, user_of(tenant.ann), link, seconds=60)
        member = await store.member(tenant.org.id, tenant.workspace.id, "ann")
        await save_member(store, tenant.org.id, structs.replace(member, is_disabled=True))
        assert await store.spend_invite(link, a_session()) is None
        await save_member(store, tenant.org.id, member)
        assert await store.spend_invite(link, a_session()) is not None

    async def test_only_a_user_can_be_invited(self, store: Store, tenant: Tenant) -> None:
        with pytest.raises(NotFound):
            await store.add_invite(tenant.org.id, new_user_id(), secrets.token_bytes(32), seconds=60)


class TestNames:
    async def test_a_given_name_is_stored_and_none_leaves_it(self, store: Store, tenant: Tenant) -> None:
        where = (tenant.org.id, tenant.workspace.id)
        assert (await store.ensure_member(*where, "zoe", name="Zoë")).name == "Zoë"
        assert (await store.ensure_member(*where, "zoe", role="admin")).name == "Zoë"
        assert (await store.ensure_member(*where, "zoe", name="Zoë B.")).name == "Zoë B."
