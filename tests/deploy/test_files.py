"""The files in `deploy/`, checked by the linters and schemas of their formats, without a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from turnkeep.config import KNOWN_NAMES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "turnkeep"
BIN = Path(sys.executable).parent
OLDEST, NEWEST = "1.27", "1.35"
"""Releases of Kubernetes whose schemas the chart is checked with."""
VALUES: dict[str, Any] = {
    "publicUrl": "https://chat.example.com",
    "existingSecret": "turnkeep",
    "settings": {"TURNKEEP_FILES_URL": "s3://turnkeep", "TURNKEEP_RETENTION_DAYS": 30},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "chat-tls"},
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"team": "chat"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "chat", "operator": "Exists"}],
}


def run(*words: str | Path, **changes: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "HELM_CONFIG_HOME": "/nonexistent", **changes}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=env, cwd=ROOT)


class TestTheContainerfile:
    def test_hadolint_finds_nothing(self) -> None:
        done = run(BIN / "hadolint", "--failure-threshold", "style", DEPLOY / "Containerfile")
        assert done.returncode == 0, done.stdout

    def test_it_runs_as_a_user_without_rights_and_reports_its_health(self) -> None:
        text = (DEPLOY / "Containerfile").read_text("utf-8")
        final = text[text.rindex("\nFROM ") :]
        assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
        assert "HEALTHCHECK" in final
        assert "pip" not in final


class TestTheComposeFile:
    def test_it_fits_the_schema_of_compose(self) -> None:
        done = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_it_has_two_servers_behind_nginx_and_what_they_need(self) -> None:
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
        assert set(services) == {"server1", "server2", "nginx", "postgres", "redis", "bucket"}
        assert [name for name, service in services.items() if "ports" in service] == ["nginx"]
        for service in services.values():
            assert "networks" in service
            for other in service.get("depends_on", {}):
                assert "healthcheck" in services[other] or other.startswith("server")

    def test_it_sets_only_settings_that_exist(self) -> None:
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
        assert unknown_settings(services["server1"]["environment"]) == set()


class TestTheUnits:
    @pytest.mark.parametrize("name", ["turnkeep.service", "turnkeep-sandbox.service"])
    def test_systemd_accepts_it(self, name: str, tmp_path: Path) -> None:
        """With programs, files and users of this machine. Where there is no systemd, it is only parsed."""
        text = (DEPLOY / "systemd" / name).read_text("utf-8")
        unit = ConfigParser(strict=True, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(text)
        assert unit["Service"]["Restart"] == "always"
        assert unit["Service"]["NoNewPrivileges"] == "yes"
        if shutil.which("systemd-analyze") is None:
            return
        text = re.sub(r"/opt/turnkeep/bin/turnkeep", "/bin/true", text)
        text = re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.MULTILINE)
        text = re.sub(r"^EnvironmentFile=.*", "", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(text)
        done = run("systemd-analyze", "verify", "--man=no", tmp_path / name)
        own = [line for line in done.stderr.splitlines() if name in line]
        assert (done.returncode, own) == (0, []), done.stderr

    def test_the_runner_gets_a_group_for_memory(self) -> None:
        assert "Delegate=memory pids" in (DEPLOY / "systemd" / "turnkeep-sandbox.service").read_text("utf-8")


class TestTheChart:
    def render(self, tmp_path: Path, values: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "values.yaml").write_text(json.dumps(values))
        return run(BIN / "helm", "template", "chat", CHART, "--values", tmp_path / "values.yaml")

    def manifests(self, tmp_path: Path, values: dict[str, Any]) -> dict[str, Any]:
        done = self.render(tmp_path, values)
        assert done.returncode == 0, done.stderr
        return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}

    def test_helm_lints_it(self, tmp_path: Path) -> None:
        (tmp_path / "values.yaml").write_text(json.dumps(VALUES))
        done = run(BIN / "helm", "lint", "--strict", CHART, "--values", tmp_path / "values.yaml")
        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize("release", [OLDEST, NEWEST])
    @pytest.mark.parametrize(
        "values", [VALUES, {"publicUrl": "http://chat", "existingSecret": "s"}], ids=["all", "few"]
    )
    def test_what_it_renders_fits_the_schemas_of_kubernetes(
        self, tmp_path: Path, values: dict[str, Any], release: str
    ) -> None:
        (tmp_path / "rendered.yaml").write_text(self.render(tmp_path, values).stdout)
        done = run(BIN / "kubernetes-validate", "--strict", "--kubernetes-version", release, tmp_path / "rendered.yaml")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_pod_is_stopped_after_its_calls_may_have_ended(self, tmp_path: Path) -> None:
        pod = self.manifests(tmp_path, VALUES | {"drainSeconds": 90})["Deployment"]["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] >= 90 + 15
        [server] = pod["containers"]
        assert {"name": "TURNKEEP_DRAIN_SECONDS", "value": "90"} in server["env"]
        assert unknown_settings({one["name"] for one in server["env"]}) == set()
        assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert server["securityContext"]["readOnlyRootFilesystem"] is True

    def test_the_ingress_has_the_host_of_the_public_address(self, tmp_path: Path) -> None:
        [rule] = self.manifests(tmp_path, VALUES)["Ingress"]["spec"]["rules"]
        assert rule["host"] == "chat.example.com"
        assert "Ingress" not in self.manifests(tmp_path, VALUES | {"ingress": {"enabled": False}})

    @pytest.mark.parametrize("missing", ["publicUrl", "existingSecret"])
    def test_what_must_be_said_is_asked_for(self, tmp_path: Path, missing: str) -> None:
        done = self.render(tmp_path, {name: value for name, value in VALUES.items() if name != missing})
        assert done.returncode != 0
        assert missing in done.stderr

    def test_its_version_is_that_of_the_server(self) -> None:
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        assert f'\nversion = "{chart["appVersion"]}"\n' in project

    def test_its_schema_is_one(self) -> None:
        jsonschema.Draft7Validator.check_schema(json.loads((CHART / "values.schema.json").read_text("utf-8")))


def unknown_settings(names: Any) -> set[str]:
    return {name for name in names if name.startswith("TURNKEEP_")} - set(KNOWN_NAMES)
