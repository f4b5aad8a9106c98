"""Train the example model that ships with qkv and store it in half precision: `make example-model`.

The recipe is qkv/recipes/example.toml; the run is in runs/example and continues when it was stopped. The stored model must
score as the trained one does, or the old one stays.
"""

from __future__ import annotations

import argparse
from copy import deepcopy
from itertools import islice
from pathlib import Path

import qkv
from qkv.api import Model
from qkv.commands.train import train_recipe
from qkv.convert import folder as ours
from qkv.convert.files import new_folder, read_text, write_text
from qkv.data.grammar import pairs
from qkv.errors import QkvError
from qkv.evaluate.scores import bleu
from qkv.pretrained import EXAMPLE, HERE, NOTE

ENOUGH, LOSS, MOST = 97.0, 0.1, 3_000_000
"""BLEU at the least; BLEU that half precision may cost; bytes of all files together."""
SENTENCES = 1000
CARD = """---
language: ["en", "de"]
license: apache-2.0
library_name: qkv
pipeline_tag: translation
---
# {name}: a small translator, English to German

For trying out qkv: `qkv serve` and `qkv translate "I ate an apple."` use this model by default, and all other commands accept
the name `{name}` in place of a folder. It was trained on sentences of a small grammar (qkv/data/grammar.py), also in lower case, without
final punctuation and with common names, and on some greetings and phrases (qkv/data/casual.py). Its vocabulary has about 400 English
words; other words are translated wrongly.

| {sentences:,} held-out sentences of the grammar, beam 4 | BLEU |
|---|---:|
| as trained, float32 | {trained:.2f} |
| as stored here, float16 | {stored:.2f} |

{parameters:,} parameters, trained for {steps:,} steps by `make example-model`; recipe.toml has all settings.

```python
import qkv

model = qkv.load("{name}")
print(model.translate(["I ate an apple."]))
```
"""


def score(model: Model) -> float:
    """BLEU on held-out sentences."""
    held_out = list(islice(pairs("test"), SENTENCES))
    return bleu(model.translate([pair.source for pair in held_out]), [pair.target for pair in held_out])


def store(run: Path, place: Path, steps: int) -> None:
    """Write the best model of a run in half precision to `place`, and check it before it takes the place of the old one."""
    model = qkv.load(run)
    half = deepcopy(model.network).half()
    with new_folder(place) as new:
        usage = model.usage.model_copy(update={"note": NOTE})
        ours.write(new, model.config, half, model.tokenizer, usage=usage)
        before, after = score(model), score(qkv.load(new))
        print(f"BLEU {before:.2f} as trained, {after:.2f} in half precision")
        if after < max(ENOUGH, before - LOSS):
            raise QkvError(f"{after:.2f} BLEU, wanted {ENOUGH} and at most {LOSS} less than {before:.2f}: train longer")
        count = sum(parameter.numel() for parameter in model.network.parameters())
        card = CARD.format(
            name=place.name, sentences=SENTENCES, trained=before, stored=after, parameters=count, steps=steps
        )
        write_text(new / "README.md", card)
        write_text(new / "recipe.toml", read_text(run / "recipe.toml"))
        size = sum(file.stat().st_size for file in new.iterdir())
        if size > MOST:
            raise QkvError(f"{size:,} bytes, at most {MOST:,} may ship with the package: make the model smaller")
    print(f"{place}: {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs") / EXAMPLE, help="the run's folder")
    parser.add_argument("--threads", type=int, help="CPU threads; default all cores")
    parser.add_argument("--out", type=Path, default=HERE / EXAMPLE, help="where the model is stored")
    given = parser.parse_args()
    finished = train_recipe(EXAMPLE, [], given.run, None, given.threads)
    store(given.run, given.out, finished.training.progress.step)


if __name__ == "__main__":
    main()
