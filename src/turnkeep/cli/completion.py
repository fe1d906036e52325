"""`turnkeep completion`: the script with which a shell completes commands and options."""

import os
from typing import Annotated, Literal

import typer


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell: `echo $SHELL` tells it.")],
) -> None:
    """Print what a shell needs to complete commands and options. `turnkeep --install-completion` installs it.

    **Examples**

    - `echo 'eval "$(turnkeep completion bash)"' >> ~/.bashrc`

    - `eval "$(turnkeep completion zsh)"`

    - `turnkeep completion fish > ~/.config/fish/completions/turnkeep.fish`
    """
    from turnkeep.cli.main import COMPLETE_VARIABLE, main

    # Typer prints the completion script through the same variable by which a shell asks for completions.
    os.environ[COMPLETE_VARIABLE] = f"source_{shell}"
    main([])
