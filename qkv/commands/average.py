"""`qkv average`: average the last checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The model folder to write.")],
    last: Annotated[int, typer.Option("--last", min=2, help="Number of checkpoints to average, newest first.")] = 5,
) -> None:
    """Average the weights of a run's last checkpoints into one model (Vaswani et al. 2017, 6.1).

    Train with train.keep=N to keep N checkpoints.

    [dim]qkv train demo --set train.keep=5[/]
    [dim]qkv average runs/demo averaged --last 5[/]
    [dim]qkv evaluate averaged --source test.en --references test.de[/]
    """
    from qkv.train.average import average_run

    chosen = average_run(folder, out, last)
    print(f"wrote {out}: the mean of {', '.join(c.name for c in chosen)}")
