"""Images: folders with Python packages that the operator prepares, and that boxes of bubblewrap see read-only.

An image is made by pip from wheels, for the Python that boxes have, and then only read. A user cannot install anything:
no box has a network, and the folder belongs to the operator. While a new edition is made, boxes use the one before.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest, Unavailable
from turnkeep.sandbox.boxes.ports import BoxUnavailable

PIP_SECONDS = 1_800


class PreparedImage(Struct, frozen=True, kw_only=True):
    """What `image.json` in the folder of an image says. `python` is the interpreter that its packages are for."""

    name: str
    packages: tuple[str, ...]
    python: str


class ImageFolder:
    """All images of this machine."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()).absolute()

    def packages_of(self, name: str, python: Path) -> Path:
        """The folder with the packages of an image. Raises BoxUnavailable if it is not prepared for that Python."""
        image = self._read(name)
        if image is None:
            raise BoxUnavailable(
                f"The sandbox runner has no image {name!r}. Its operator makes it: `turnkeep images prepare {name}`."
            )
        if image.python != str(python):
            raise BoxUnavailable(
                f"The image {name!r} was made for {image.python}, and boxes now have {python}. The operator of the "
                f"sandbox runner makes it anew with `turnkeep images prepare {name}`."
            )
        closed = self._closed_folder()
        if closed is not None:
            raise BoxUnavailable(f"Boxes cannot reach the image {name!r}, because only its owner may open {closed}.")
        return self.folder / name / "packages"

    def list(self) -> list[PreparedImage]:
        """By name."""
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []
        return [image for name in names if not name.startswith(".") and (image := self._read(name)) is not None]

    def prepare(self, name: str, packages: Sequence[str], python: Path) -> PreparedImage:
        """Install the packages, and put them in the place of the image before. If this fails, that one stays.

        Raises Unavailable with the words of pip, and InvalidRequest if boxes could not read the folder.
        """
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        closed = self._closed_folder()
        if closed is not None:
            raise InvalidRequest(
                f"Boxes cannot reach {self.folder}, because only its owner may open {closed}. Choose another folder "
                f"with TURNKEEP_SANDBOX_IMAGES_DIR (--images-dir), or run `chmod o+x {closed}`."
            )
        image = PreparedImage(name=name, packages=tuple(packages), python=str(python))
        new = self.folder / f".{name}-new-{secrets.token_hex(4)}"
        new.mkdir(mode=0o755)
        try:
            install(packages, new / "packages", python)
            (new / "image.json").write_bytes(msgspec.json.encode(image))
            _let_all_read(new)
            self._replace(name, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        return image

    def remove(self, name: str) -> bool:
        """Whether there was one. A box that has it must not be running."""
        there = self._read(name) is not None
        for path in (self.folder / name, *self.folder.glob(f".{name}-old-*")):
            shutil.rmtree(path, ignore_errors=True)
        return there

    def _replace(self, name: str, new: Path) -> None:
        """Boxes that run now keep the edition that they have: it is removed when the next one is made."""
        for path in self.folder.glob(f".{name}-old-*"):
            shutil.rmtree(path, ignore_errors=True)
        place = self.folder / name
        if place.exists():
            place.rename(self.folder / f".{name}-old-{secrets.token_hex(4)}")
        new.rename(place)

    def _read(self, name: str) -> PreparedImage | None:
        try:
            return msgspec.json.decode((self.folder / name / "image.json").read_bytes(), type=PreparedImage)
        except (OSError, msgspec.MsgspecError):
            return None

    def _closed_folder(self) -> Path | None:
        """A folder on the way that keeps boxes out. The boxes of root have user ids of their own."""
        if os.geteuid() != 0:
            return None
        return next((path for path in (self.folder, *self.folder.parents) if not path.stat().st_mode & 0o001), None)


def default_folder() -> Path:
    """For root it is not the home, which boxes cannot reach."""
    if os.geteuid() == 0:
        return Path("/var/lib/turnkeep/images")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "turnkeep" / "images"


def install(packages: Sequence[str], target: Path, python: Path) -> None:
    """Install packages into an empty folder, from wheels alone: nothing is built, so no code of a package runs."""
    target.mkdir(mode=0o755)
    if not packages:
        return
    command = [
        *(sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input", "--quiet"),
        *("install", "--only-binary", ":all:", "--target", str(target), "--", *packages),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(f"pip did not end within {PIP_SECONDS} seconds.") from exc
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        raise Unavailable(f"pip could not install {' '.join(packages)}: {' '.join(errors)[:1000]}")


def _let_all_read(folder: Path) -> None:
    """Whatever the umask was. Nothing in an image is secret."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))
