"""`turnkeep completion`: the script with which a shell completes commands and options."""

import os
from typing import Annotated, Literal

import typer


def completion(
    context: typer.Context,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell: `echo $SHELL` tells it.")],
) -> None:
    """Print what a shell needs to complete commands and options. `turnkeep --install-completion` installs it.

    **Examples**

    - `echo 'eval "$(turnkeep completion bash)"' >> ~/.bashrc`

    - `eval "$(turnkeep completion zsh)"`

    - `turnkeep completion fish > ~/.config/fish/completions/turnkeep.fish`
    """
    root = context.find_root()
    # Typer prints the script if a variable of the program's name asks for it, before it looks at the arguments. A shell
    # asks for completions through the same variable.
    os.environ[f"_{root.info_name}_COMPLETE".upper()] = f"source_{shell}"
    root.command.main(args=[], prog_name=root.info_name)
