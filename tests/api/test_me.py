"""`GET /v1/me`: who the caller is."""

from pathlib import Path

import pytest

from tests.api.harness import ApiServer, Client, settings_for
from turnkeep.config import Settings


class TestMe:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, max_file_bytes=1_000, max_files_per_message=3)

    async def test_tells_a_user_their_role_and_the_limits(self, server: ApiServer, service: Client) -> None:
        for role in ("member", "admin"):
            user = await server.user(service, f"a {role}", role=role)
            me = await user.read("/v1/me")
            assert me["role"] == role
            assert me["user_id"].startswith("user_")
            assert (me["max_file_bytes"], me["max_files_per_message"]) == (1_000, 3)

    async def test_names_the_model_of_the_workspace_before_that_of_the_server(self, service: Client) -> None:
        me = await service.read("/v1/me")
        assert (me["role"], me["user_id"], me["model"]) == ("service", None, "scripted")
        change = {"model": "scripted/other"}
        response = await service.patch(f"/v1/workspaces/{me['workspace_id']}", json=change)
        assert response.status_code == 200, response.text
        assert (await service.read("/v1/me"))["model"] == "scripted/other"
