"""`turnkeep images`: the images of sandboxes on this machine, which is where the runner is."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from turnkeep.cli.output import print_lines, print_table, say
from turnkeep.cli.server_options import AsJson
from turnkeep.config import find_config_file, read_settings
from turnkeep.config.variables import IMAGE_NAME, PACKAGE
from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.sandbox.boxes.bubblewrap import find_python
from turnkeep.sandbox.boxes.images import ImageFolder
from turnkeep.sandbox.settings import read_runner_settings

images = typer.Typer(no_args_is_help=True, help="Prepare, list and remove images for sandboxes.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As agents name it in `environment.image`.")]
Folder = Annotated[
    str | None, typer.Option("--images-dir", help="Where images are kept (TURNKEEP_SANDBOX_IMAGES_DIR).")
]


@images.command()
def prepare(
    name: Name,
    packages: Annotated[
        list[str] | None,
        typer.Argument(help="Python packages. Without any, those that TURNKEEP_SANDBOX_IMAGES lists for the image."),
    ] = None,
    images_dir: Folder = None,
) -> None:
    """Install Python packages into an image, so that boxes of agents with this image have them. Needs a package index.

    An image that exists is replaced when the new one is complete. Only wheels are installed.

    **Examples**

    - `turnkeep images prepare science`

    - `turnkeep images prepare text nltk spacy`
    """
    if not re.fullmatch(IMAGE_NAME, name):
        raise InvalidRequest(f"{name!r} cannot be the name of an image: use small letters, digits and hyphens.")
    allowed = {
        image.name: image.packages
        for image in read_settings(os.environ, None, find_config_file(os.environ)).sandbox_images
    }
    chosen = tuple(packages or allowed.get(name, ()))
    if not chosen:
        raise InvalidRequest(f"Name the packages of {name!r}, or list them in TURNKEEP_SANDBOX_IMAGES.")
    for package in chosen:
        if not re.fullmatch(PACKAGE, package):
            raise InvalidRequest(f"{package!r} is not a package: use a name, or a name and a version (numpy==2.4.0).")
    folder = _folder(images_dir)
    say(f"Installing {', '.join(chosen)} into {folder.folder / name}", flush=True)
    folder.prepare(name, chosen, find_python())
    say(f"Agents use it with `environment`: {{image = {name!r}}}")
    if name not in allowed:
        say(f'First allow it where the server is: TURNKEEP_SANDBOX_IMAGES="{name}: {" ".join(chosen)}"')


@images.command("list")
def list_images(images_dir: Folder = None, as_json: AsJson = False) -> None:
    """List the images that are prepared on this machine.

    **Examples**

    - `turnkeep images list`
    """
    found = _folder(images_dir).list()
    if as_json:
        print_lines(found)
        return
    rows = [(image.name, ", ".join(image.packages), image.python) for image in found]
    print_table(
        ("name", "packages", "for"), rows, nothing="No image is prepared. Make one: turnkeep images prepare science"
    )


@images.command()
def remove(name: Name, images_dir: Folder = None) -> None:
    """Remove an image from this machine. Turns of agents that use it fail until it is prepared again.

    **Examples**

    - `turnkeep images remove text`
    """
    if not re.fullmatch(IMAGE_NAME, name) or not _folder(images_dir).remove(name):
        raise NotFound(f"There is no image {name!r} here.")
    say(f"{name} is removed.")


def _folder(images_dir: str | None) -> ImageFolder:
    if images_dir is not None:
        return ImageFolder(Path(images_dir))
    return ImageFolder(read_runner_settings(os.environ, None, find_config_file(os.environ)).images_dir)
