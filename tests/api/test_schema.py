"""schemathesis over the OpenAPI document: no 5xx, and no answer that the document does not describe."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

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

from tests.api.harness import ApiServer, settings_for
from tests.property_tests import examples
from tests.sandbox.scripted_runner import scripted_runner
from turnkeep.config import Settings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = examples(3, at_night=25)
"""For each operation and each way to try it."""


class ThreadedServer:
    """The server in a loop of its own, since schemathesis calls it from the test's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.url = ""
        self.token = ""
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
            user = await server.user(await server.tenant(), role="admin")
            answer = await user.ask()
            skills = [{"name": "s", "files": {"SKILL.md": "How to"}}]
            agent = (await user.post("/v1/agents", json={"name": "A", "skills": skills})).json()["id"]
            workspace = (await user.read("/v1/workspaces"))["data"][0]["id"]
            files = f"/v1/conversations/{answer['conversation_id']}/files"
            file = (await user.post(files, files={"file": ("f.txt", b"hello")})).json()["data"][0]["id"]
            page = (await user.post("/v1/pages", json={"title": "P"})).json()["id"]
            table = (await user.post("/v1/tables", json={"name": "T", "columns": [{"name": "c"}]})).json()["id"]
            await user.post(f"/v1/tables/{table}/rows", json={"rows": [{}]})
            self.url, self.token = server.url, user.key
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


def try_operation(server: ThreadedServer, operation: Any, mode: GenerationMode, *, is_known: bool) -> None:
    headers = {"Authorization": f"Bearer {server.token}"} if is_known else {}

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
    "is_known, mode",
    [(True, GenerationMode.POSITIVE), (True, GenerationMode.NEGATIVE), (False, GenerationMode.POSITIVE)],
    ids=["token", "token and wrong values", "nobody"],
)
def test_nothing_answers_what_the_document_does_not_describe(
    threaded: ThreadedServer, is_known: bool, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(f"{threaded.url}/openapi.json")
    tried = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
            continue  # there is nothing to get wrong
        try_operation(threaded, operation, mode, is_known=is_known)
        tried += 1
    assert tried > 20
