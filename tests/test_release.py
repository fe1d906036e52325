"""`scripts/release`: one version everywhere, and nothing half done. The build itself needs the package registries."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.server_process import environment, serving

ROOT = Path(__file__).parents[1]
FILES = (
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "clients/js/package.json",
    "clients/react/package.json",
    "clients/python/README.md",
    "clients/python/pyproject.toml",
    "deploy/helm/turnkeep/Chart.yaml",
    "scripts/release",
    "scripts/whole-links",
    "src/turnkeep/__init__.py",
)


class Checkout:
    """A repository with the files that a release changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / "scripts/release").chmod(0o755)
        for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All"]):
            self.git(*words)

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
        return subprocess.run(
            ["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout

    def release(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [str(self.folder / "scripts/release"), *words]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_version_is_the_same_everywhere(checkout: Checkout) -> None:
    done = checkout.release("9.8.7", "--only-version")
    assert done.returncode == 0, done.stderr
    assert '\nversion = "9.8.7"\n' in checkout.read("pyproject.toml")
    assert '"turnkeep-client==9.8.7"' in checkout.read("pyproject.toml")
    assert '\nversion = "9.8.7"\n' in checkout.read("clients/python/pyproject.toml")
    assert json.loads(checkout.read("clients/js/package.json"))["version"] == "9.8.7"
    react = json.loads(checkout.read("clients/react/package.json"))
    assert (react["version"], react["dependencies"]["@turnkeep/client"]) == ("9.8.7", "9.8.7")
    assert '__version__ = "9.8.7"' in checkout.read("src/turnkeep/__init__.py")
    assert 'appVersion: "9.8.7"' in checkout.read("deploy/helm/turnkeep/Chart.yaml")
    assert "## [Unreleased]\n\n## [9.8.7] - 20" in checkout.read("CHANGELOG.md")
    assert checkout.git("tag") == ""


def test_npm_gets_a_version_before_a_release_in_its_own_words(checkout: Checkout) -> None:
    assert checkout.release("9.8.7rc2", "--only-version").returncode == 0
    assert '\nversion = "9.8.7rc2"\n' in checkout.read("clients/python/pyproject.toml")
    assert json.loads(checkout.read("clients/js/package.json"))["version"] == "9.8.7-rc.2"


@pytest.mark.parametrize("words", [(), ("1.2",), ("v1.2.3",), ("1.2.3", "--now")])
def test_a_wrong_call_is_refused(checkout: Checkout, words: tuple[str, ...]) -> None:
    assert checkout.release(*words).returncode == 2
    assert checkout.git("status", "--porcelain") == ""


def test_changes_that_are_not_committed_are_refused(checkout: Checkout) -> None:
    (checkout.folder / "LICENSE").write_text("other")
    done = checkout.release("9.8.7", "--only-version")
    assert (done.returncode, "not committed" in done.stderr) == (1, True)


def test_a_version_that_exists_and_a_release_without_news_are_refused(checkout: Checkout) -> None:
    checkout.git("tag", "v9.8.7")
    assert "exists" in checkout.release("9.8.7").stderr
    assert checkout.release("9.8.8", "--only-version").returncode == 0
    checkout.git("commit", "--quiet", "--all", "--message", "Release")
    assert "nothing under [Unreleased]" in checkout.release("9.8.9").stderr


def test_the_readme_has_whole_links_on_a_package_index(checkout: Checkout) -> None:
    subprocess.run(
        [
            sys.executable,
            checkout.folder / "scripts/whole-links",
            checkout.folder,
            "https://example.com/turnkeep",
            "v1",
        ],
        check=True,
        timeout=60,
    )
    readme = checkout.read("README.md")
    assert "](https://example.com/turnkeep/blob/v1/docs/howto/deploy.md)" in readme
    assert (
        "![An answer with steps, a table, a formula, code and two sources](https://example.com/turnkeep/raw/" in readme
    )
    assert "](docs/" not in readme
    assert "](#what-to-install)" in readme
    for name in ("pyproject.toml", "clients/python/pyproject.toml"):
        assert 'Homepage = "https://example.com/turnkeep"' in checkout.read(name)


def test_a_server_of_a_wheel_without_the_page_says_so(tmp_path: Path) -> None:
    # A clean clone has no built page, and pip shows nothing of a build that succeeds.
    clone, wheels, installed = (tmp_path / name for name in ("clone", "wheels", "installed"))
    names = subprocess.run(["git", "ls-files", "-z", "src", *FILES], cwd=ROOT, capture_output=True, check=True).stdout
    for name in names.decode().strip("\0").split("\0"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet"]
    pip += ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, clone]
    subprocess.run(pip, check=True, timeout=120)
    [package] = wheels.iterdir()
    zipfile.ZipFile(package).extractall(installed)
    env = environment(tmp_path, PYTHONPATH=str(installed), TURNKEEP_SANDBOX_URL="off")
    with serving(tmp_path, env) as server:
        assert "page       none: this installation was built without it" in server.printed
