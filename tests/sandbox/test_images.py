"""Images of sandboxes: prepared by the operator, chosen by agents within what the operator allows, seen by boxes."""

import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.server_process import TURNKEEP, environment, run_turnkeep, serving
from turnkeep.client import Turnkeep
from turnkeep.errors import InvalidRequest
from turnkeep_client.agents import RunFailed

PACKAGE = "print_moon"
PYTHON = 'use python {"code": "from print_moon import WORDS; print(WORDS)"}'
CHART = """
import matplotlib.pyplot as plot
import numpy
import pandas

table = pandas.read_csv("assets/moons.csv")
plot.bar(table["planet"], table["moons"])
plot.title(f"{int(numpy.sum(table['moons']))} moons")
plot.savefig("assets/chart.png")
"""


def make_wheel(folder: Path, words: str, version: str) -> None:
    """A package with one module and one command, without any build."""
    info = f"{PACKAGE}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{PACKAGE}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{PACKAGE}.py", f"WORDS = {words!r}\ndef main():\n    print(WORDS)\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\nprint-moon = {PACKAGE}:main\n")
        wheel.writestr(f"{info}/RECORD", "")


@contextmanager
def images_folder() -> Iterator[Path]:
    """One that the boxes of root can reach; they cannot reach the folders of pytest."""
    with TemporaryDirectory(prefix="turnkeep-images-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Site:
    """A server with its runner, and the operator's command line."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.folder = folder
        self.images = images
        self.env = environment(
            folder,
            TURNKEEP_SANDBOX_IMAGES="moons: print-moon; empty: print-moon",
            TURNKEEP_SANDBOX_IMAGES_DIR=str(self.images),
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(folder),
            PIP_CONFIG_FILE=os.devnull,
        )
        make_wheel(folder, "the moon is bright", "1.0")

    def operator(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run_turnkeep("images", *words, env=self.env)

    def connect(self) -> Turnkeep:
        return Turnkeep(data_dir=self.folder / "data")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with images_folder() as images:
        made = Site(tmp_path_factory.mktemp("images"), images)
        done = made.operator("prepare", "moons")
        assert done.returncode == 0, done.stderr
        with serving(made.folder, made.env):
            yield made


class TestTheOperator:
    def test_sees_what_is_prepared(self, site: Site) -> None:
        [image] = map(json.loads, site.operator("list", "--json").stdout.splitlines())
        assert (image["name"], image["packages"]) == ("moons", ["print-moon"])

    def test_keeps_the_image_when_a_new_one_cannot_be_made(self, site: Site) -> None:
        before = (site.images / "moons" / "image.json").read_bytes()
        done = site.operator("prepare", "moons", "no-such-package")
        assert done.returncode == 1
        assert "no-such-package" in done.stderr
        assert (site.images / "moons" / "image.json").read_bytes() == before
        assert [path.name for path in site.images.iterdir()] == ["moons"]

    @pytest.mark.parametrize("words", [("Moons", "x"), ("moons", "--index-url=http://x"), ("moons", "./x"), ("other",)])
    def test_is_told_what_a_name_may_be(self, site: Site, words: tuple[str, ...]) -> None:
        done = site.operator("prepare", "--", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("turnkeep: ")

    def test_removes_one(self, site: Site) -> None:
        assert site.operator("prepare", "spare", "print-moon").returncode == 0
        assert site.operator("remove", "spare").returncode == 0
        assert not (site.images / "spare").exists()
        assert site.operator("remove", "spare").returncode == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="only the boxes of root have user ids of their own")
    def test_is_told_of_a_folder_that_boxes_cannot_reach(self, site: Site, tmp_path: Path) -> None:
        (tmp_path / "closed").mkdir(mode=0o700)
        done = site.operator("prepare", "moons", "--images-dir", str(tmp_path / "closed" / "images"))
        assert done.returncode == 2
        assert "chmod o+x" in done.stderr


class TestAnAgent:
    def test_gets_the_image_that_has_its_packages(self, site: Site) -> None:
        with site.connect() as turnkeep:
            agent = turnkeep.agents.create(
                "Moons", model="demo", sandbox=True, environment={"packages": ["Print_Moon"]}
            )
            assert agent.environment == {"image": "moons", "packages": ["Print_Moon"]}
            assert "the moon is bright" in turnkeep.agents.run(agent.id, PYTHON).result()
            shell = 'use shell {"command": "print-moon && python3 -c \'import print_moon\' && touch /opt/packages/x"}'
            said = turnkeep.agents.run(agent.id, shell).result()
            assert "the moon is bright" in said
            assert "Read-only file system" in said

    def test_without_one_has_no_packages(self, site: Site) -> None:
        with site.connect() as turnkeep:
            agent = turnkeep.agents.create("Plain", model="demo", sandbox=True)
            assert "No module named" in turnkeep.agents.run(agent.id, PYTHON).result()

    @pytest.mark.parametrize(
        "environment,words",
        [
            ({"image": "other"}, "`environment.image` cannot be 'other'"),
            ({"packages": ["numpy", "print-moon"]}, "No image has all of numpy, print-moon"),
            ({"image": "moons", "packages": ["numpy"]}, "No image has all of numpy"),
            ({"image": "../moons"}, "`environment.image` cannot be '../moons'"),
        ],
    )
    def test_may_not_choose_what_the_operator_does_not_allow(
        self, site: Site, environment: dict[str, object], words: str
    ) -> None:
        with site.connect() as turnkeep, pytest.raises(InvalidRequest) as refused:
            turnkeep.agents.create("Refused", model="demo", sandbox=True, environment=environment)
        assert words in refused.value.detail
        assert "Agents may choose: moons (print-moon); empty (print-moon)." in refused.value.detail

    @pytest.mark.skipif(os.geteuid() != 0, reason="only the boxes of root have user ids of their own")
    def test_is_told_of_an_image_that_boxes_cannot_reach(self, site: Site) -> None:
        with site.connect() as turnkeep:
            agent = turnkeep.agents.create("Late", model="demo", sandbox=True, environment={"image": "moons"})
            site.images.chmod(0o700)
            try:
                with pytest.raises(RunFailed, match="Boxes cannot reach the image"):
                    turnkeep.agents.run(agent.id, PYTHON).result()
            finally:
                site.images.chmod(0o755)

    def test_is_told_of_an_image_that_is_not_prepared(self, site: Site) -> None:
        with site.connect() as turnkeep:
            agent = turnkeep.agents.create("Early", model="demo", sandbox=True, environment={"image": "empty"})
            with pytest.raises(RunFailed, match="turnkeep images prepare empty"):
                turnkeep.agents.run(agent.id, PYTHON).result()


@pytest.mark.nightly
def test_a_csv_becomes_a_chart(tmp_path: Path) -> None:
    """With the image that agents may choose by default, whose packages come from the package index."""
    with images_folder() as images:
        env = environment(tmp_path, TURNKEEP_SANDBOX_IMAGES_DIR=str(images))
        prepared = subprocess.run(
            [*TURNKEEP, "images", "prepare", "science"],
            env=env,
            capture_output=True,
            text=True,
            timeout=1_800,
            check=False,
        )
        assert prepared.returncode == 0, prepared.stderr
        draw_chart(tmp_path, env)


def draw_chart(folder: Path, env: dict[str, str]) -> None:
    (folder / "moons.csv").write_text("planet,moons\nEarth,1\nMars,2\nJupiter,95\n")
    with serving(folder, env), Turnkeep(data_dir=folder / "data") as turnkeep:
        agent = turnkeep.agents.create(
            "Analyst", model="demo", sandbox=True, environment={"packages": ["pandas", "matplotlib"]}
        )
        assert agent.environment is not None
        assert agent.environment["image"] == "science"
        file = turnkeep.files.upload(folder / "moons.csv")
        running = turnkeep.agents.run(agent.id, f"use python {json.dumps({'code': CHART})}", attachment_ids=[file.id])
        running.result()
        files = turnkeep.turns.get(running.turn_id or "").files
        [chart] = [one for one in files if one.name == "chart.png"]
        saved = Path(turnkeep.files.download(chart.id, folder / "chart.png"))
    assert saved.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert saved.stat().st_size > 5_000
