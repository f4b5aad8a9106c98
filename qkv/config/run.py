"""DataConfig, TrainConfig, DecodeConfig: data, training and decoding of a run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from qkv.config.interval import interval
from qkv.config.strict import Strict
from qkv.errors import ConfigError

Tokenizers = Literal["bpe", "byte-bpe", "unigram", "wordpiece", "words", "characters", "bytes"]
RESERVED = ("macro", "generator")
"""Reserved names, not allowed for validation sets: NAME_f1 and NAME_accuracy are other scores."""


def _interval(value: Any) -> Any:
    try:
        interval(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


Every = Annotated[int | str, BeforeValidator(_interval)]


class CorpusConfig(Strict):
    """Source of records: exactly one of `files`, `table`, `dataset`, `grammar`, `stdlib`, `text`, `images`, `shapes`."""

    files: tuple[str, ...] = ()
    """Text files; .gz .bz2 .xz .zst are decompressed, corpus.zip/file.en is a file in an archive. Translation and summary: two
    parallel files, source and target; tagging: one file, .conllu or a word and its tag per line; images: idx files
    of images and of labels; language models: any number."""
    documents: Literal["file", "blank", "lines"] | None = None
    """Language models: how `files` are divided into documents: one per file, at blank lines, or one per line."""
    table: str | None = None
    """A .tsv, .csv or .jsonl file with one record per row. A header row is recognised by common names (text, label)."""
    columns: tuple[int | str, ...] = ()
    """The table's columns: source, target; text, label; text, second text, label; question, context, answer, start. Of a
    tagged file: word, tag. By name: the first row is a header. By number, from 0: every row is a record. Default: by the names in
    a recognised header, in any order; without a header, the first columns."""
    dataset: str | None = None
    """A public data set by name (multi30k, opus/Books/v1, glue/sst2, imdb, ud/en_ewt), read from `path` or fetched into the cache."""
    path: str | None = None
    """Local folder or archive of the data set; it is then not downloaded."""
    split: str | None = None
    """Split of the data set (train, valid, test, test_2017_flickr); default: the split that this field is for."""
    grammar: int | None = Field(default=None, gt=0, le=1_000_000_000)
    """Number of records to generate from the embedded grammar."""
    casual: bool = False
    """Translation, with `grammar`: write half of the pairs informally, in lower case, without final punctuation, with names and
    greetings."""
    stdlib: bool = False
    """Read the source files of Python's standard library."""
    text: str | None = None
    """Language models: the text itself, as one document."""
    images: str | None = None
    """A folder of images with one subfolder per class: cats/1.png."""
    shapes: int | None = Field(default=None, gt=0, le=1_000_000_000)
    """Number of drawings of shapes with captions to generate."""
    share: tuple[float, float] = (0.0, 1.0)
    """Use only the part between these fractions: [0.0, 0.9] and [0.9, 1.0] split one corpus into two. Measured in characters for
    whole files, otherwise in records."""
    swap: bool = False
    """Swap the two texts of each pair; list a corpus with and without it to train both directions."""
    weight: float = Field(default=1.0, gt=0)
    """Relative sampling weight among the training corpora."""

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
    """Data sets, tokenization and batching."""

    source: str = "en"
    """Language of the source side."""
    target: str = "de"
    """Language of the target side."""
    root: str = ""
    """Folder for relative file names, and for data sets without `path`."""
    train: tuple[CorpusConfig, ...]
    """Training corpora."""
    valid: CorpusConfig
    """Validation set; selects the best model."""
    extra_valid: dict[str, CorpusConfig] = {}
    """Additional validation sets by name, such as general text when training on a domain: { general = { files = [...] } }. They
    are scored at every evaluation (valid_general_bleu) and at the end, but not used to select the best model."""
    test: CorpusConfig | None = None
    """Test set; scored once, at the end."""
    tokenizer: Tokenizers = "bpe"
    """Type of the tokenizer, which is trained on the training text."""
    vocab_size: int = Field(default=8000, gt=10, le=1_000_000)
    """Vocabulary size of the tokenizer."""
    vocabulary: str | None = None
    """Use the tokenizer of this folder or file (tokenizer.json, BERT's vocab.txt) instead of training one."""
    lower: bool = False
    """Lowercase the text."""
    joint: bool = True
    """Use one vocabulary for both languages."""
    max_length: int = Field(default=128, gt=0, le=100_000_000)
    """Drop training pairs with more tokens than this on either side."""
    target_length: int = Field(default=64, gt=0, le=100_000_000)
    """Summaries: truncate training targets to this many tokens."""
    max_ratio: float = Field(default=9.0, gt=1)
    """Drop training pairs in which one side has more than this many times the tokens of the other, plus 5."""
    duplicates: bool = True
    """Keep duplicate pairs of a corpus; removing them takes 128 MB of memory, independent of its size."""
    batch_tokens: int = Field(default=4096, gt=0, le=1_000_000_000)
    """Tokens per batch, counted on the longer side, padding included."""
    pool: int = Field(default=100_000, gt=0, le=1_000_000_000)
    """Number of examples that are shuffled and sorted by length together; more take more memory."""
    carry: bool = False
    """Language models: start each window from the final state of the previous one, without its gradient (truncated back-propagation
    through time); for recurrent cells and mixers with a state of fixed size."""

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
                    f"extra_valid: the name of a set has letters, digits and -, and is not {' or '.join(RESERVED)}; given {name!r}"
                )
        return self


class TrainConfig(Strict):
    """Optimisation, evaluation and checkpoints."""

    steps: int = Field(default=10_000, gt=0, le=10**12)
    """Maximum number of updates. Training ends when the first of steps, epochs and time_budget is reached."""
    epochs: float | None = Field(default=None, gt=0)
    """Maximum number of epochs; the schedule is scaled to it."""
    time_budget: float | None = Field(default=None, gt=0)
    """Maximum training time in minutes; the schedule is scaled to it."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices within the blocks and AdamW for the rest (embeddings, head, LoRA matrices, vectors)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "stable-decay", "constant"] = "inverse-sqrt"
    """Learning-rate schedule after the warm-up."""
    cosine_floor: float = Field(default=0.1, ge=0, le=1)
    """Cosine schedule: final learning rate as a fraction of the peak."""
    warmup: int = Field(default=1000, ge=0, le=10**12)
    """Number of warm-up updates, in which the learning rate rises from 0; with epochs or a time budget, at most a tenth of the run."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Adam: decay rate of the mean of the gradient."""
    beta2: float = Field(default=0.98, ge=0, lt=1)
    """Adam: decay rate of the mean of the squared gradient."""
    eps: float = Field(default=1e-9, gt=0, lt=1)
    """Adam: added to the denominator for numerical stability."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of matrices; biases and norms have none."""
    clip: float = Field(default=1.0, ge=0)
    """Maximum norm for gradient clipping; 0 = no clipping."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Probability that is distributed uniformly over the vocabulary or the classes. For classification the default is 0."""
    source_weight: float = Field(default=1.0, ge=0)
    """Summaries and translations by a decoder: loss weight of the tokens of the source; tokens of the output have weight 1.
    1 = a language model of both (Liu et al. 2018, 4.2.3), 0 = the output alone, which is the default for translations and with
    model.prefix_mask."""
    accumulate: int = Field(default=1, gt=0, le=1_000_000)
    """Gradient accumulation: number of batches per update."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Decay of the exponential moving average of the weights, which is evaluated and saved; 0 = no average."""
    evaluate_every: Every = "10%"
    """Evaluation interval: updates (500), a percentage of the run ("10%") or minutes ("5m")."""
    save_every: Every = "10%"
    """Checkpoint interval, in the same form."""
    keep: int = Field(default=1, gt=0, le=1_000_000)
    """Number of checkpoints to keep. With 2 or more, a run whose newest checkpoint is damaged resumes from the previous one, and
    `qkv average` can average them."""
    patience: int = Field(default=0, ge=0, le=1_000_000)
    """Early stopping: number of evaluations without improvement; 0 = off."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; auto = bfloat16 where the GPU supports it, or the CPU for wide networks, else float32."""
    compile: bool = False
    """Use torch.compile. Compilation takes a minute or more; on a CPU it was never faster in our measurements."""
    workers: int | None = Field(default=None, gt=0, le=1024)
    """Number of data-parallel worker processes on a CPU, one thread each; default: one per core where that is faster than threads."""
    worker_timeout: float = Field(default=10.0, gt=0, le=10**6)
    """Minutes that a worker waits for the others within an update; after that it ends, because a machine or connection is lost."""
    idle_timeout: float = Field(default=120.0, gt=0, le=10**6)
    """As worker_timeout, outside of updates: while rank 0 prepares data or writes files, in evaluations, while shards are written."""
    sharding: Literal["none", "full"] = "none"
    """With several workers: none = every worker holds the whole network (DistributedDataParallel); full = weights, gradients and
    optimiser state are divided among the workers, and the weights of a block are gathered while it computes (FSDP2)."""
    tensor_parallel: int = Field(default=1, gt=0, le=1024)
    """Size of the groups of workers that divide the heads and the inner width of every attention and feed-forward layer; it must divide
    the number of workers. The groups share the batch."""
    activation_checkpointing: bool = False
    """Keep only the inputs of the blocks for the backward pass and recompute the rest: less memory, a third more computation."""
    device: str = "auto"
    """cpu, cuda or cuda:1; auto = a GPU if available."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Random seed of weights, data order and dropout."""


class DecodeConfig(Strict):
    """Decoding."""

    beam: int = Field(default=4, gt=0, le=1000)
    """Beam size; 1 = greedy."""
    length_penalty: float = 1.0
    """Divide the log-probability of a hypothesis by its length (see length_formula) to this power."""
    length_formula: Literal["power", "gnmt"] = "power"
    """Base of the length penalty: power = length; gnmt = (5 + length) / 6 (Wu et al. 2016), as in Vaswani et al. 2017 with the
    exponent 0.6. Hugging Face supports power only: an export keeps just the exponent."""
    extra_length: int | None = Field(default=None, ge=0, le=100_000_000)
    """Maximum length of a translation beyond that of the source, in tokens (Vaswani et al. 2017: 50); default: 2 * source + 20 in total."""
    max_length: int = Field(default=256, gt=0, le=100_000_000)
    """Maximum length of the output in tokens."""
    batch_tokens: int = Field(default=2048, gt=0, le=1_000_000_000)
    """Source tokens per batch."""
