"""Keys' limits, workspaces, usage and models."""

from tests.api.conftest import both
from tests.api.harness import STREAM, ApiServer, Client, code_of
from turnkeep.api.identity.rate_limits import RateLimiter


class TestRateLimits:
    @both
    async def test_requests_per_minute_count_per_key(self, server: ApiServer, service: Client) -> None:
        limits = {"name": "slow", "requests_per_minute": 2}
        slow = await server.client((await service.post("/v1/keys", json=limits)).json()["key"])
        headers = {"idempotency-key": "once"}
        first = await slow.ask("Hi", headers=headers)
        assert (await slow.get("/v1/usage")).status_code == 200
        refused = await slow.get("/v1/usage")
        assert code_of(refused) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert code_of(await slow.post("/v1/turns", json={"message": "?"}, headers=STREAM)) == (429, "rate_limited")
        assert (await service.get("/v1/usage")).status_code == 200
        # A repeat is looked up before the limit.
        assert (await slow.ask("Hi", headers=headers))["turn"]["id"] == first["turn"]["id"]
        other = await slow.post("/v1/turns", json={"message": "Ho"}, headers=headers)
        assert code_of(other) == (409, "idempotency_conflict")
        fresh = await slow.post("/v1/turns", json={"message": "Ho"}, headers={"idempotency-key": "new"})
        assert code_of(fresh) == (429, "rate_limited")

    @both
    async def test_are_shared_with_the_keys_and_tokens_that_a_key_made(
        self, server: ApiServer, service: Client
    ) -> None:
        limits = {"name": "slow", "requests_per_minute": 6}
        slow = await server.client((await service.post("/v1/keys", json=limits)).json()["key"])
        made = [
            await server.client((await slow.post("/v1/keys", json={"name": "more"})).json()["key"]) for _ in range(2)
        ]
        user = await server.user(made[0])
        statuses = [(await caller.get("/v1/me")).status_code for caller in (*made, user, *made, slow)]
        assert statuses == [200, 200, 200, 429, 429, 429], "three requests made the keys and the token"

    def test_a_request_that_is_refused_counts_for_no_key(self) -> None:
        limiter = RateLimiter(clock=lambda: 0.0)
        assert limiter.take([("made", 5), ("maker", 1)]) is None
        assert [limiter.take([("made", 5), ("maker", 1)]) is None for _ in range(9)] == [False] * 9
        assert [limiter.take([("made", 5)]) is None for _ in range(5)] == [True, True, True, True, False]

    def test_a_bucket_fills_evenly(self) -> None:
        now = 0.0
        limiter = RateLimiter(clock=lambda: now)
        assert [limiter.take([("k", 2)]) is None for _ in range(3)] == [True, True, False]
        now = 29.0
        refusal = limiter.take([("k", 2)])
        assert refusal is not None
        assert refusal.retry_after_seconds == 1
        now = 31.0
        assert limiter.take([("k", 2)]) is None
        assert limiter.take([("other", 1)]) is None


class TestQuotas:
    @both
    async def test_limits_of_workspace_user_and_key(self, server: ApiServer, service: Client, user: Client) -> None:
        workspace = (await service.read("/v1/workspaces"))["data"][0]["id"]
        path = f"/v1/workspaces/{workspace}"
        changed = await service.patch(path, json={"user_monthly_message_limit": 1, "monthly_message_limit": 2})
        assert changed.json()["user_monthly_message_limit"] == 1
        await user.ask()
        assert code_of(await user.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")
        await (await server.user(service, "bob")).ask()
        assert code_of(await service.post("/v1/turns", json={"message": "?"})) == (429, "quota_exceeded")
        usage = await user.read("/v1/usage")
        assert usage["messages"] == usage["limit"] == 1
        assert (await service.patch(path, json={"monthly_message_limit": None})).json()["monthly_message_limit"] is None
        await service.ask()

    @both
    async def test_usage_shows_a_limited_key_how_much_of_its_limit_is_left(
        self, server: ApiServer, service: Client
    ) -> None:
        made = (await service.post("/v1/keys", json={"name": "small", "monthly_message_limit": 3})).json()
        limited = await server.client(made["key"])
        await service.ask()
        await limited.ask()
        usage = await limited.read("/v1/usage")
        assert (usage["messages"], usage["limit"]) == (2, None), "of the workspace"
        assert usage["key"] == {"messages": 1, "limit": 3}

    async def test_usage_counts_posts_by_source_and_sums_tokens(self, service: Client, user: Client) -> None:
        first = await user.ask()
        await user.post(f"/v1/conversations/{first['conversation_id']}/turns/{first['turn']['id']}/regenerate")
        usage = await user.read("/v1/usage")
        assert set(usage) >= {"month", "messages", "by_source", "input_tokens", "output_tokens", "limit", "key", "user"}
        assert usage["messages"] == 2
        assert usage["by_source"] == {"ui": 2, "api": 0}, "a token is made for a page, unless it says otherwise"
        assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)
        assert usage["key"] is None, "the limits of keys are for those who have them"
        assert (await service.read("/v1/usage"))["messages"] == 2
        assert (await user.read("/v1/usage", params={"month": "2001-01"}))["messages"] == 0
        assert code_of(await user.get("/v1/usage", params={"month": "2001-13"})) == (422, "invalid_request")


class TestWorkspaces:
    @both
    async def test_one_that_holds_conversations_cannot_be_deleted(self, server: ApiServer, service: Client) -> None:
        made = (await service.post("/v1/workspaces", json={"name": "W", "monthly_message_limit": 5})).json()
        assert made["monthly_message_limit"] == 5
        path = f"/v1/workspaces/{made['id']}"
        await service.ask(headers={"turnkeep-workspace": made["id"]})
        refused = await service.delete(path)
        assert code_of(refused) == (409, "conflict")
        assert refused.headers["x-should-retry"] == "false"
        empty = (await service.post("/v1/workspaces", json={"name": "E"})).json()["id"]
        assert (await service.delete(f"/v1/workspaces/{empty}")).status_code == 204
        assert code_of(await service.get(f"/v1/workspaces/{empty}")) == (404, "not_found")
        default = next(one for one in (await service.read("/v1/workspaces"))["data"] if one["is_default"])
        assert code_of(await service.delete(f"/v1/workspaces/{default['id']}")) == (409, "conflict")

    @both
    async def test_an_admin_chooses_who_writes_titles(self, server: ApiServer, service: Client) -> None:
        admin = await server.user(service, "ada", role="admin")
        [own] = (await admin.read("/v1/workspaces"))["data"]
        assert own["title_model"] is None
        path = f"/v1/workspaces/{own['id']}"
        for model in ("off", "scripted", None):
            assert (await admin.patch(path, json={"title_model": model})).json()["title_model"] == model
            assert (await admin.read(path))["title_model"] == model
        for wrong in ("nowhere/x", "", 5):
            assert code_of(await admin.patch(path, json={"title_model": wrong})) == (422, "invalid_request"), wrong
        assert code_of(await admin.patch(path, json={"model": "off"})) == (422, "invalid_request"), "only of titles"
        member = await server.user(service, "bob")
        assert code_of(await member.patch(path, json={"title_model": "off"})) == (403, "forbidden")
        made = await service.post("/v1/workspaces", json={"name": "Quiet", "title_model": "off"})
        assert made.json()["title_model"] == "off"

    async def test_bad_limits_are_refused(self, service: Client) -> None:
        for limit in (-1, 2**31, "5", 1.5):
            response = await service.post("/v1/workspaces", json={"name": "W", "monthly_message_limit": limit})
            assert code_of(response) == (422, "invalid_request"), limit


class TestPages:
    async def test_short_lists_have_pages_too(self, service: Client) -> None:
        made = [(await service.post("/v1/workspaces", json={"name": f"W{n}"})).json()["id"] for n in range(3)]
        first = await service.read("/v1/workspaces", params={"limit": "3"})
        rest = await service.read("/v1/workspaces", params={"limit": "3", "cursor": first["next_cursor"]})
        assert rest["next_cursor"] is None
        assert {one["id"] for one in first["data"] + rest["data"]} > set(made)
        assert len(first["data"] + rest["data"]) == 4
        assert code_of(await service.get("/v1/workspaces", params={"cursor": "x"})) == (422, "invalid_request")


class TestModels:
    async def test_what_can_be_reached(self, user: Client) -> None:
        assert (await user.read("/v1/models"))["data"] == [{"id": "scripted", "provider": "scripted"}]
