"""The `qkv` command: one subcommand per file of commands/. Torch is imported only by the subcommands that need it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from qkv.commands import version
from qkv.errors import QkvError, explain

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported: hide warnings of its C++ code
VERBS = (
    "demo split train translate summarize classify tag fill answer embed nearest analogy describe evaluate score compare average "
    "generate chat serve presets params cost plan config check export quantize look lectures ablate scale version"
)
"""Files of commands/ with a function `run`, in the order of the help."""
GROUPS = "data lab tokenizer"
"""Files of commands/ with subcommands."""

app = typer.Typer(
    name="qkv",
    help="The whole Transformer family in one package: train, use, inspect, serve, convert and check models.",
    epilog="Start with: qkv serve · qkv demo · qkv lectures · qkv params gpt2",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in VERBS.split():
    app.command(name)(import_module(f"qkv.commands.{name}").run)
for name in GROUPS.split():
    app.add_typer(import_module(f"qkv.commands.{name}").app, name=name)


def show_version(wanted: bool) -> None:
    if wanted:
        version.run()
        raise typer.Exit


VERSION = typer.Option("--version", callback=show_version, is_eager=True, help="Print versions.")


@app.callback()
def options(show: Annotated[bool, VERSION] = False) -> None:
    pass


def main() -> None:
    """Run the command; errors that the user can correct are one line on stderr and exit code 2."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not (problem := explain(error)):
            raise
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, QkvError) else 2)


if __name__ == "__main__":
    main()
