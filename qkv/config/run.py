"""DataConfig, TrainConfig, DecodeConfig: what a run reads, how it learns, how it writes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from qkv.config.interval import interval
from qkv.config.strict import Strict
from qkv.errors import ConfigError

Tokenizers = Literal["bpe", "byte-bpe", "unigram", "wordpiece", "words", "characters", "bytes"]
RESERVED = ("macro", "generator")
"""No names of held-out sets: NAME_f1 and NAME_accuracy would be other scores."""


def _interval(value: Any) -> Any:
    try:
        interval(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


Every = Annotated[int | str, BeforeValidator(_interval)]


class CorpusConfig(Strict):
    """Where records come from: exactly one of `files`, `table`, `dataset`, `grammar`, `stdlib`, `text`, `images`, `shapes`."""

    files: tuple[str, ...] = ()
    """Text files; .gz .bz2 .xz .zst are decompressed, corpus.zip/file.en is in an archive. Translation and summary: two in
    step, source then target, line by line; tagging: one, .conllu or a word and its tag per line; images: idx files
    of pictures and of labels; language models: any number."""
    documents: Literal["file", "blank", "lines"] | None = None
    """What a document of `files` is, for language models: a file, what stands between blank lines, or a line."""
    table: str | None = None
    """A .tsv, .csv or .jsonl file with a record in each row. A header row is recognised by usual names (text, label)."""
    columns: tuple[int | str, ...] = ()
    """The table's columns: source, target; text, label; text, second text, label; question, context, answer, start. Of a
    file of tags: word, tag. By name: the first row is a header. By number, from 0: every row is a record. None given: a header
    that is recognised tells which by their names, in any order; without one, the first ones."""
    dataset: str | None = None
    """A public data set by name (multi30k, opus/Books/v1, glue/sst2, imdb, ud/en_ewt), read from `path` or fetched into the cache."""
    path: str | None = None
    """The data set's own folder or archive, where it is already here."""
    split: str | None = None
    """The part of the data set (train, valid, test, test_2017_flickr); otherwise the one that this place is for."""
    grammar: int | None = Field(default=None, gt=0, le=1_000_000_000)
    """So many records of the embedded grammar."""
    casual: bool = False
    """Translation, with `grammar`: half of the pairs as people type them, in lower case, without the closing mark, with names and
    greetings."""
    stdlib: bool = False
    """Python's own standard library: real text that is already here."""
    text: str | None = None
    """One document, for language models, written down here."""
    images: str | None = None
    """A folder of pictures, with a folder in it for each class: cats/1.png."""
    shapes: int | None = Field(default=None, gt=0, le=1_000_000_000)
    """So many drawings of shapes with their captions, made as they are read."""
    share: tuple[float, float] = (0.0, 1.0)
    """Only the part between these shares of it: [0.0, 0.9] and [0.9, 1.0] make two sets of one; of whole files by
    characters, otherwise by records."""
    swap: bool = False
    """Pairs of texts in the other order: listed with and without it, a corpus teaches both orders."""
    weight: float = Field(default=1.0, gt=0)
    """How often it is drawn from, beside other corpora."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        return (
            {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            if isinstance(values, dict)
            else values
        )

    @model_validator(mode="after")
    def _one(self) -> CorpusConfig:
        kinds = ("files", "table", "dataset", "grammar", "stdlib", "text", "images", "shapes")
        given = [name for name in kinds if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"a corpus has exactly one of {', '.join(kinds[:-1])} and {kinds[-1]}, given {', '.join(given) or 'none'}"
            )
        if self.dataset is None and (self.path is not None or self.split is not None):
            raise ValueError("path and split belong to a corpus with a dataset")
        if self.casual and self.grammar is None:
            raise ValueError("casual belongs to a corpus with a grammar")
        if self.documents is not None and not self.files:
            raise ValueError("documents belongs to a corpus with files")
        if any(isinstance(column, int) and not 0 <= column < 100_000 for column in self.columns):
            raise ValueError(f"columns are names, or numbers from 0 to 99,999, given {list(self.columns)}")
        if not 0 <= self.share[0] < self.share[1] <= 1:
            raise ValueError(f"share is two numbers from 0 to 1, the smaller one first, given {list(self.share)}")
        return self


class DataConfig(Strict):
    """What is read, and how text becomes tokens and batches."""

    source: str = "en"
    """Language of the source side."""
    target: str = "de"
    """Language of the target side."""
    root: str = ""
    """Folder that relative file names start from; also where a data set lies that has no path of its own."""
    train: tuple[CorpusConfig, ...]
    """Corpora to learn from."""
    valid: CorpusConfig
    """Held out; decides which checkpoint is best."""
    extra_valid: dict[str, CorpusConfig] = {}
    """Further held-out sets by name, such as the general text beside that of a domain: { general = { files = [...] } }. They
    are scored at every evaluation (valid_general_bleu) and at the end, and decide nothing."""
    test: CorpusConfig | None = None
    """Held out; scored once, at the end."""
    tokenizer: Tokenizers = "bpe"
    """Kind of tokenizer, trained on the training text."""
    vocab_size: int = Field(default=8000, gt=10, le=1_000_000)
    """Entries of a vocabulary."""
    vocabulary: str | None = None
    """Take the tokenizer of this folder or file (tokenizer.json, BERT's vocab.txt) instead of learning one."""
    lower: bool = False
    """Learn a vocabulary of small letters; text is made small before it is read."""
    joint: bool = True
    """One vocabulary for both languages."""
    max_length: int = Field(default=128, gt=0, le=100_000_000)
    """Training pairs with more tokens on a side are dropped."""
    target_length: int = Field(default=64, gt=0, le=100_000_000)
    """Summaries: tokens of the target in training; what is longer is cut."""
    max_ratio: float = Field(default=9.0, gt=1)
    """Training pairs in which one side has this many times the tokens of the other are dropped."""
    duplicates: bool = True
    """Keep pairs that occur more than once in a corpus; to leave them out takes 128 MB, however large it is."""
    batch_tokens: int = Field(default=4096, gt=0, le=1_000_000_000)
    """Padded tokens of the longer side in a batch."""
    pool: int = Field(default=100_000, gt=0, le=1_000_000_000)
    """Pairs that are shuffled and sorted by length together; memory grows with it."""
    carry: bool = False
    """Language models: a window goes on with the state that the window before it left, and gradients end at its border
    (truncated back-propagation through time); for recurrent cells, and mixers with a state of fixed size."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("train"), dict):
            values = {**values, "train": [values["train"]]}
        return (
            {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            if isinstance(values, dict)
            else values
        )

    @model_validator(mode="after")
    def _names(self) -> DataConfig:
        for name in self.extra_valid:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) or name in RESERVED:
                raise ValueError(
                    f"extra_valid: a set is named with letters, digits and -, and not {' or '.join(RESERVED)}; given {name!r}"
                )
        return self


class TrainConfig(Strict):
    """How a network learns."""

    steps: int = Field(default=10_000, gt=0, le=10**12)
    """Updates at the most. Training ends with the first of steps, epochs and time_budget that is over."""
    epochs: float | None = Field(default=None, gt=0)
    """Passes over the training data at the most; schedules fit themselves to it."""
    time_budget: float | None = Field(default=None, gt=0)
    """Minutes of training; schedules fit themselves to it."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices within the blocks and AdamW for the rest (embeddings, head, low-rank updates, vectors)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Largest learning rate."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "stable-decay", "constant"] = "inverse-sqrt"
    """How the learning rate falls after the warm-up."""
    cosine_floor: float = Field(default=0.1, ge=0, le=1)
    """Cosine: the learning rate at the end, as a share of the largest."""
    warmup: int = Field(default=1000, ge=0, le=10**12)
    """Updates in which the learning rate rises from 0; with epochs or a time budget, a tenth of the run at the most."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam: memory of the gradient."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """Adam: memory of its square."""
    eps: float = Field(default=1e-9, gt=0, lt=1)
    """Adam: added to the root of the mean square, by which the step is divided."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW: on matrices, not on biases and norms."""
    clip: float = Field(default=1.0, ge=0)
    """Largest norm of the gradient; 0 = any."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability given to all words alike; of classes (classification), to all classes alike, and 0 unless it is set."""
    source_weight: float = Field(default=1.0, ge=0)
    """Summaries by a decoder: weight of the text's own tokens in the loss, where a token of the summary has 1. 1 = a language
    model of text and summary (Liu et al. 2018, 4.2.3), 0 = the summary alone."""
    accumulate: int = Field(default=1, gt=0, le=1_000_000)
    """Batches per update."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the moving average of the weights, which is what is evaluated and kept; 0 = none."""
    evaluate_every: Every = "10%"
    """How often the held-out set is scored: every so many updates (500), a share of the run ("10%") or minutes ("5m")."""
    save_every: Every = "10%"
    """How often a checkpoint is written, likewise."""
    keep: int = Field(default=1, gt=0, le=1_000_000)
    """Checkpoints to keep; `qkv average` makes one model of several. With 2 or more a run whose newest one is damaged goes on
    from the one before."""
    patience: int = Field(default=0, ge=0, le=1_000_000)
    """Evaluations without a better score before training stops; 0 = never."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers in products; auto = bfloat16 on a GPU that has units for it, and on such a CPU for wide networks, else float32."""
    compile: bool = False
    """Let torch.compile fuse the network's steps: a minute or more at first; on a CPU it was never faster."""
    workers: int | None = Field(default=None, gt=0, le=1024)
    """Processes that share each batch on a CPU, one thread each; default: one per core where that is faster than threads."""
    device: str = "auto"
    """cpu, cuda or cuda:1; auto = a GPU where there is one."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Decides weights, order and dropout."""


class DecodeConfig(Strict):
    """How a network writes."""

    beam: int = Field(default=4, gt=0, le=1000)
    """Hypotheses kept per sentence; 1 = greedy."""
    length_penalty: float = 1.0
    """A hypothesis' log-probability is divided by its length (or what length_formula makes of it) to this power."""
    length_formula: Literal["power", "gnmt"] = "power"
    """Base of the length penalty: power = length; gnmt = (5 + length) / 6 (Wu et al. 2016), as in Vaswani et al. 2017 with the
    exponent 0.6. Hugging Face has power only: an export keeps the exponent alone."""
    extra_length: int | None = Field(default=None, ge=0, le=100_000_000)
    """Longest translation: so many tokens more than the source (Vaswani et al. 2017: 50); default: twice the source and 20."""
    max_length: int = Field(default=256, gt=0, le=100_000_000)
    """Longest output in tokens."""
    batch_tokens: int = Field(default=2048, gt=0, le=1_000_000_000)
    """Source tokens translated at once."""
