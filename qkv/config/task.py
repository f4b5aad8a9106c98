"""What is learned, what it starts from, and how text is spoiled for pre-training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from qkv.config.strict import Strict

TaskName = Literal["translation", "summary", "language", "masked", "replaced", "span-corruption", "denoising",
                   "classification", "regression", "tagging", "answering", "images", "captions"]  # fmt: skip


class TuneConfig(Strict):
    """What a network starts from, and which of its weights may change."""

    start: str | None = None
    """Folder of the model to start from, ours or Hugging Face's: network and vocabulary come from it. [model] may change what
    fine-tuning can change (head, dropout, max_length, fewer layers); fields that contradict the model are errors."""
    freeze: int = Field(default=0, ge=-1, le=10_000)
    """So many of the lowest layers stay as they are, with the embeddings; -1 = all but the head."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Learning rate of a layer as a share of that of the layer above it (Howard and Ruder 2018), of the top one as a share of
    train.learning_rate; 1 = the same for all."""
    head_rate: float = Field(default=1.0, gt=0)
    """Learning rate of the head as a multiple of the others'."""
    lora_rank: int = Field(default=0, ge=0, le=1_000_000)
    """Rank of the low-rank updates that are learned in place of the matrices (Hu et al. 2022); 0 = the matrices themselves."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """The update is scaled by lora_alpha / lora_rank."""
    lora_feedforward: bool = False
    """Low-rank updates of the feed-forward layers' matrices too, not only of attention's."""
    lora_from_scratch: bool = False
    """Allow low-rank updates without `start`: the matrices under them stay random."""
    auxiliary: float = Field(default=0.0, ge=0)
    """Weight of the next-word loss beside the task's own (GPT, Radford et al. 2018: 0.5); for head = "classes-words"."""

    @model_validator(mode="after")
    def _something_learns(self) -> TuneConfig:
        if self.lora_rank and self.freeze == -1:
            raise ValueError("freeze = -1 leaves nothing for lora_rank to change: set one of them to 0")
        return self


class AugmentConfig(Strict):
    """How training pictures are varied, each time anew; held-out ones never are."""

    shift: float = Field(default=0.0, ge=0, lt=1)
    """Moved by up to this share of the side, both ways."""
    rotate: float = Field(default=0.0, ge=0, le=180)
    """Turned by up to so many degrees."""
    scale: float = Field(default=0.0, ge=0, lt=1)
    """Made smaller or larger by up to this share."""
    flip: bool = False
    """Every second one is mirrored, left and right."""
    erase: float = Field(default=0.0, ge=0, le=1)
    """Share of them that lose a rectangle to noise (Zhong et al. 2020)."""


class CorruptConfig(Strict):
    """How text is spoiled that a network learns to mend."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that are hidden."""
    whole_words: bool = False
    """Hide all pieces of a word together."""
    span: float = Field(default=3.0, ge=1)
    """Mean length of a hidden span in tokens (T5, BART)."""
    generator_size: float = Field(default=0.25, gt=0, le=1)
    """Task "replaced": width, heads and inner width of the generator as a share of the discriminator's. ELECTRA has 1/4 in small and
    large, 1/3 in base."""
