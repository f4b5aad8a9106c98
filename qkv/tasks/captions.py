"""The captions task: a sentence about an image. An encoder reads its patches, a decoder generates, as in translation
(Vinyals et al. 2015 had a convolutional and a recurrent half; here both are Transformers)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import IGNORED, Batch, Loss, pad
from qkv.config import ModelConfig, Recipe
from qkv.config.usage import Usage
from qkv.convert.files import write_text
from qkv.data.batching import Unusable
from qkv.data.schema import CAPTION, IMAGE, Schema
from qkv.data.sources import Record
from qkv.engine.pack import pack
from qkv.errors import ConfigError, QkvError
from qkv.evaluate.scores import Score, bleu, score
from qkv.generate.beam import BeamParams
from qkv.generate.continuous_batching import GenerativeNetwork
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.search import beam_search
from qkv.generate.sequence import Hypothesis
from qkv.generate.translate import Translation, TranslationParams, suppressed_tokens, with_n_best
from qkv.models.output import Output
from qkv.objectives import translation
from qkv.shared_work import shared_map, shared_sums
from qkv.tasks.base import Say, Words
from qkv.tasks.images import PictureTask, open_images, slices
from qkv.tasks.translation import HYPOTHESIS, REFERENCE, beam_of, decoding_defaults, describe_search, one_line, settings
from qkv.tasks.vocabulary import end_only, given_tokenizer, learn_tokenizer
from qkv.text.tokenizer import Tokenizer

BEAM, GREEDY = BeamParams(), BeamParams(1)


# --- what a captioner does


def check(c: ModelConfig) -> None:
    """Say that a model cannot describe pictures."""
    if c.image_size is None or c.family != "encoder-decoder":
        raise QkvError(
            'to describe images a model must be trained with task = "captions"; this one is of family '
            f"{c.family!r}" + ("" if c.image_size else " and reads text")
        )


class Captioner:
    """Generate captions with an encoder-decoder: images in, sentences out."""

    def __init__(self, c: ModelConfig, network: GenerativeNetwork, tokenizer: Tokenizer):
        check(c)
        self.config, self.network, self.tokenizer = c, network, tokenizer

    def describe(
        self, given: Sequence[Any], beam: BeamParams = BEAM, max_length: int | None = None
    ) -> list[Translation]:
        """Return a caption for each image: paths, Pillow images or arrays of uint8."""
        parts = slices(given, self.config)
        return [one for some in parts for one in self.batch(open_images(some, self.config), beam, max_length)]

    def batch(self, images: Tensor, beam: BeamParams, max_length: int | None) -> list[Translation]:
        """Describe a batch of images (B, C, H, W)."""
        c = self.config
        inputs = torch.full((len(images), 1), c.first_id or 0)
        batch = Batch(inputs, images=images).to(next(self.network.parameters()).device)
        longest = min(max_length or c.max_length, c.max_length)
        found = beam_search(
            self.network, batch, longest, c.eos_ids, beam, LogitsProcessor(c.eos_ids, suppressed_tokens(c))
        )
        return [with_n_best([self.written(h) for h in own]) for own in found]

    def written(self, h: Hypothesis) -> Translation:
        tokens = [self.tokenizer.backend.id_to_token(token) or "" for token in h.ids]
        text = self.tokenizer.decode(h.ids[:-1] if h.ended else h.ids)
        return Translation(text, h.score, h.log_prob, tokens, h.log_probs)


# --- how one is trained


class CaptionsTask(PictureTask):
    """Pictures with a caption each, cross-entropy of its words, the share of captions that are exactly right."""

    name, noun, hub_tag = "captions", "an image captioner", "image-to-text"
    schema = Schema(
        "captions", (IMAGE, CAPTION), "give one table with paths and captions (.tsv, .csv, .jsonl)", n_files=2
    )
    metric, how, writes = "exact", "greedy", True
    unit = "target tokens"

    @classmethod
    def possible(cls, recipe: Recipe) -> None:
        cls.readable(recipe)
        if recipe.model.family != "encoder-decoder":
            raise ConfigError(
                f"task = 'captions' needs a model of family 'encoder-decoder', not {recipe.model.family!r}"
            )

    @classmethod
    def prepare(cls, recipe: Recipe, say: Say) -> Words:
        """A vocabulary from the captions; no image is opened for it."""
        assert recipe.data is not None
        corpora = [corpus.source for corpus in cls.corpora(recipe)]
        tokenizer = given_tokenizer(recipe) or learn_tokenizer(
            corpora, lambda record: [record[1]], recipe.data, say, nouns="captions"
        )
        return Words(end_only(tokenizer), tokenizer)

    def __init__(self, recipe: Recipe, config: ModelConfig, words: Words):
        super().__init__(recipe, config, words)
        assert words.target is not None
        self.tokenizer = words.target
        self.most = min(self.data.max_length, config.max_length - 1)
        self.open()

    # --- learning

    def examples(self, records: Sequence[Record]) -> list[Any]:
        rows = self.tokenizer.plain([caption for _, caption in records])
        return [self.example(table, row) for (table, _), row in zip(records, rows, strict=True)]

    def example(self, table: Any, row: list[int]) -> Any:
        if not row:
            return Unusable("an empty caption")
        return (
            Unusable(f"a caption of more than {self.most} tokens") if len(row) > self.most else (table, array("i", row))
        )

    def length(self, example: Any) -> int:
        return max(super().length(example), len(example[1]) + 1)

    def collate(self, examples: list[Any]) -> Batch:
        return self.forced(self.varied([table for table, _ in examples]), [list(row) for _, row in examples])

    def forced(self, images: Tensor, rows: list[list[int]]) -> Batch:
        """Captions shifted right behind the start token, as in translation."""
        c = self.config
        assert c.first_id is not None
        inputs, mask = pad([[c.first_id, *row] for row in rows], c.pad_id)
        targets, _ = pad([[*row, c.eos_ids[0]] for row in rows], IGNORED)
        return Batch(inputs, mask, targets, images=images)

    def objective(self, output: Output, batch: Batch) -> Loss:
        return translation(output, batch, self.recipe.train.label_smoothing)

    # --- asking

    def evaluate(self, network: Any) -> dict[str, float]:
        """Captions that are right word for word, in per cent; BLEU; the loss per token."""
        written, wanted = self.write(network, self.valid, GREEDY), [r[1] for r in self.valid]
        return {"exact": exact(written, wanted), "bleu": bleu(written, wanted), "loss": self.loss(network)}

    def write(
        self, network: Any, records: Sequence[Record], beam: BeamParams, max_length: int | None = None
    ) -> list[str]:
        """Describe the images of some records, shared by the workers."""
        captioner = Captioner(self.config, network, self.tokenizer)
        describe = lambda some: [one.text for one in captioner.describe([r[0] for r in some], beam, max_length)]  # noqa: E731
        return [text for texts in shared_map(describe, slices(records, self.config)) for text in texts]

    @torch.no_grad()
    def loss(self, network: nn.Module) -> float:
        device = next(network.parameters()).device

        def compute(records: Sequence[Record]) -> tuple[float, int]:
            images = open_images([r[0] for r in records], self.config)
            rows = [row[: self.config.max_length - 1] for row in self.tokenizer.plain([r[1] for r in records])]
            batch = self.forced(images, rows).to(device)
            found = translation(network(batch), batch, smoothing=0.0)
            return found.sum.item(), found.count

        total, count = shared_sums(compute, slices(self.valid, self.config))
        return total / max(count, 1)

    def test(self, network: Any, folder: Path, say: Say) -> dict[str, Any] | None:
        """Described with the recipe's search, in files of one caption per line, and scored."""
        if self.data.test is None:
            return None
        records, decode = self.held(self.data.test, "test"), self.recipe.decode
        for reason, count in self.left_out.items():
            say(f"left out of the test set: {count:,} {reason}")
        network = pack(network) if next(network.parameters()).device.type == "cpu" else network
        found = self.write(network, records, beam_of(decode), decode.max_length)
        written, wanted = list(map(one_line, found)), [one_line(r[1]) for r in records]
        for name, texts in ((REFERENCE, wanted), (HYPOTHESIS, written)):
            write_text(folder / name, "".join(text + "\n" for text in texts))
        scores = [
            Score("exact", exact(written, wanted), ""),
            *score(written, wanted),
        ]
        return {"examples": len(records), "left_out": dict(self.left_out), "how": describe_search(decode),
                **settings(decode),
                "scores": [one.to_json() for one in scores]}  # fmt: skip

    # --- telling

    def usage(self) -> Usage:
        decode = self.recipe.decode
        how = TranslationParams(beam_of(decode), decode.max_length)
        return super().usage().model_copy(update={"decoding": decoding_defaults(how)})

    def use(self, folder: str) -> tuple[str, str]:
        return f"qkv describe {folder} picture.png", 'model.describe(["picture.png"])'


def exact(written: Sequence[str], wanted: Sequence[str]) -> float:
    """How many texts are right to the last word, in per cent."""
    return 100 * sum(a == b for a, b in zip(written, wanted, strict=True)) / len(wanted)
