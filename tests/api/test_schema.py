"""schemathesis over the OpenAPI document: no 5xx, and no answer that the document does not describe."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.harness import OPERATOR_KEY, ApiServer, fake_id, settings_for
from tests.property_tests import examples
from tests.sandbox.scripted_runner import scripted_runner
from turnkeep.api.app import all_endpoints
from turnkeep.api.http.endpoints import Policy
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.identity.tokens import UserTokens
from turnkeep.api.telemetry.metrics import Metrics
from turnkeep.config import Settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = examples(3, at_night=25)
"""For each operation and each way to try it."""

Caller = Literal["token", "service key", "operator", "nobody"]
POLICIES: dict[tuple[str, str], Policy] = {
    (endpoint.method, endpoint.path): endpoint.policy
    for endpoint in all_endpoints(UserTokens(["secret"]), SigninLinks(Path("."), ["secret"]), Metrics())
}
TRIED_WITH = {"service key": {Policy.KEY, Policy.SERVICE}, "operator": {Policy.OPERATOR}}
"""The operations that only these callers may use. To a token they answer 403 alone."""


class ThreadedServer:
    """The server in a loop of its own, since schemathesis calls it from the test's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.url = ""
        self.keys: dict[Caller, str | None] = {"nobody": None}
        self.ids: dict[str, str] = {}

    def __enter__(self) -> "ThreadedServer":
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with (
            scripted_runner() as runner,
            ApiServer.start(self._settings, runner_url=runner.url) as server,
        ):
            service = await server.tenant()
            user = await server.user(service, role="admin")
            answer = await user.ask()
            skills = [{"name": "s", "files": {"SKILL.md": "How to"}}]
            agent = (await user.post("/v1/agents", json={"name": fake_id("agent"), "skills": skills})).json()["id"]
            workspace = (await user.read("/v1/workspaces"))["data"][0]["id"]
            files = f"/v1/conversations/{answer['conversation_id']}/files"
            file = (await user.post(files, files={"file": ("f.txt", b"hello")})).json()["data"][0]["id"]
            page = (await user.post("/v1/pages", json={"title": "P"})).json()["id"]
            table = (await user.post("/v1/tables", json={"name": "T", "columns": [{"name": "c"}]})).json()["id"]
            await user.post(f"/v1/tables/{table}/rows", json={"rows": [{}]})
            self.url = server.url
            self.keys |= {"token": user.key, "service key": service.key, "operator": OPERATOR_KEY}
            self.ids = {
                "page_id": page,
                "table_id": table,
                "row": "1",
                "skill": "s",
                "file_id": file,
                "conversation_id": answer["conversation_id"],
                "turn_id": answer["turn"]["id"],
                "agent_id": agent,
                "workspace_id": workspace,
            }
            self._started.set()
            await self._stop.wait()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def threaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    own = {"database_url": request.getfixturevalue("api_database")} if request.param == "postgres" else {}
    with ThreadedServer(settings_for(tmp_path_factory.mktemp("schema"), **own)) as server:
        yield server


def try_operation(server: ThreadedServer, operation: Any, mode: GenerationMode, caller: Caller) -> None:
    key = server.keys[caller]
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    @hypothesis_settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_real=st.booleans())
    def try_it(case: Any, is_real: bool) -> None:
        # Half of the cases name things that exist, or every answer would be a 404.
        if is_real and case.path_parameters:
            case.path_parameters = {name: server.ids.get(name, value) for name, value in case.path_parameters.items()}
        for name in ("Turnkeep-User", "Turnkeep-Workspace"):
            case.headers.pop(name, None)
        response = case.call(headers=headers, timeout=30)
        # An example may have given the workspace a small limit for its files. The document says 507 for that.
        is_full = response.status_code == 507 and response.json()["code"] == "storage_full"
        checks = CHECKS[1:] if is_full else CHECKS
        case.validate_response(response, checks=checks, headers=headers)

    try_it()


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "caller, mode",
    [
        ("token", GenerationMode.POSITIVE),
        ("token", GenerationMode.NEGATIVE),
        ("service key", GenerationMode.POSITIVE),
        ("service key", GenerationMode.NEGATIVE),
        ("operator", GenerationMode.POSITIVE),
        ("operator", GenerationMode.NEGATIVE),
        ("nobody", GenerationMode.POSITIVE),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.value} values",
)
def test_nothing_answers_what_the_document_does_not_describe(
    threaded: ThreadedServer, caller: Caller, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{threaded.url}/openapi.json")
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # there is nothing to get wrong
        policies = TRIED_WITH.get(caller)
        if policies is not None and POLICIES[operation.method.upper(), operation.path] not in policies:
            continue  # the token of an admin has tried it
        try_operation(threaded, operation, mode, caller)
        tried += 1
    assert tried > (2 if caller in TRIED_WITH else 20)
