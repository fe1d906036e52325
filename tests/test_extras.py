"""Extras: the server runs without any of them, and names the one that is missing when it is needed."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.server_process import environment, serving
from turnkeep.client import Turnkeep

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = ("docx", "lxml", "obstore", "openpyxl", "opentelemetry", "pptx", "pypdf", "redis")

WITHOUT_EXTRAS = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
TURNKEEP = (sys.executable, "-c", f"{WITHOUT_EXTRAS}\nfrom turnkeep.cli.main import main; main()")


def package(requirement: str) -> str:
    return re.split(r"[\[>]", requirement)[0]


def run(*arguments: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [*TURNKEEP, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


class TestTheDeclaration:
    def test_all_is_every_other_extra(self) -> None:
        [all_of_them] = EXTRAS["all"]
        named = re.fullmatch(r"turnkeep\[(.*)\]", all_of_them)
        assert named is not None
        assert set(named[1].split(",")) == set(EXTRAS) - {"all"}

    def test_no_extra_is_a_dependency_of_the_server(self) -> None:
        optional = {package(one) for name, extra in EXTRAS.items() if name != "all" for one in extra}
        assert optional.isdisjoint(map(package, PROJECT["dependencies"]))

    @pytest.mark.parametrize("extra", ["documents", "redis", "s3", "sandbox"])
    def test_make_run_installs_it(self, extra: str) -> None:
        locked = (ROOT / "requirements" / "run.txt").read_text()
        for one in EXTRAS[extra]:
            assert f"\n{package(one)}==" in locked, one


class TestWithoutExtras:
    def test_the_server_starts_and_keeps_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.server_process.TURNKEEP", TURNKEEP)
        env = environment(tmp_path, TURNKEEP_SANDBOX_URL="off")
        note = tmp_path / "note.txt"
        note.write_text("saffron")
        with serving(tmp_path, env) as server:
            with Turnkeep(server.url, data_dir=tmp_path / "data") as turnkeep:
                uploaded = turnkeep.files.upload(note)
                fetched = turnkeep.files.download(uploaded.id, tmp_path / "fetched.txt")
            assert Path(fetched).read_text() == "saffron"
            assert server.stop() == 0

    @pytest.mark.parametrize(
        "extra,setting",
        [("redis", {"TURNKEEP_REDIS_URL": "redis://127.0.0.1:9"}), ("s3", {"TURNKEEP_FILES_URL": "s3://bucket"})],
    )
    def test_a_setting_that_needs_one_says_so_at_the_start(
        self, tmp_path: Path, extra: str, setting: dict[str, str]
    ) -> None:
        done = run("serve", "--port", "0", env=environment(tmp_path, TURNKEEP_SANDBOX_URL="off", **setting))
        assert done.returncode == 2
        assert f"turnkeep[{extra}]" in done.stderr
        assert "Traceback" not in done.stderr

    def test_the_doctor_names_what_is_missing(self, tmp_path: Path) -> None:
        settings = {"TURNKEEP_REDIS_URL": "redis://127.0.0.1:9", "TURNKEEP_FILES_URL": "s3://bucket"}
        done = run("doctor", "--json", env=environment(tmp_path, TURNKEEP_PORT="9", **settings))
        found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
        assert "turnkeep[redis]" in found["redis"]["todo"]
        assert "turnkeep[s3]" in found["bucket"]["todo"]
        assert (found["extras"]["state"], "turnkeep[documents]" in found["extras"]["todo"]) == ("warn", True)

    def test_the_doctor_names_a_tracer_that_is_configured(self, tmp_path: Path) -> None:
        env = environment(tmp_path, TURNKEEP_PORT="9", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
        found = {one["name"]: one for one in json.loads(run("doctor", "--json", env=env).stdout)["checks"]}
        assert (found["extras"]["state"], "turnkeep[otel]" in found["extras"]["todo"]) == ("fail", True)

    @pytest.mark.parametrize("kind", ["pdf", "docx", "xlsx", "pptx"])
    def test_a_document_is_not_readable_and_says_what_to_install(self, kind: str) -> None:
        script = f"{WITHOUT_EXTRAS}\nfrom turnkeep.knowledge.extraction import main; main()"
        done = subprocess.run([sys.executable, "-c", script, kind], input=b"PK", capture_output=True, check=True)
        assert json.loads(done.stdout) == {
            "problem": "it is not readable: install turnkeep[documents]",
            "extra": "documents",
        }

    def test_a_text_is_read(self) -> None:
        script = f"{WITHOUT_EXTRAS}\nfrom turnkeep.knowledge.extraction import main; main()"
        done = subprocess.run([sys.executable, "-c", script, "text"], input=b"saffron", capture_output=True, check=True)
        assert json.loads(done.stdout) == {"text": "saffron"}
