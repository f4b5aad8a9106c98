"""Configuration of tasks: fine-tuning, image augmentation, and text corruption for pre-training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from qkv.config.strict import Strict

TaskName = Literal["translation", "summary", "language", "masked", "replaced", "span-corruption", "denoising",
                   "classification", "regression", "tagging", "answering", "images", "captions", "conversation"]  # fmt: skip


class TuneConfig(Strict):
    """Fine-tuning: the initial model and the weights to train."""

    start: str | None = None
    """Folder of the pre-trained model, qkv's or Hugging Face's, which provides network and vocabulary. [model] may change what
    fine-tuning can change (head, dropout, max_length, fewer layers); fields that contradict the model are errors."""
    freeze: int = Field(default=0, ge=-1, le=10_000)
    """Freeze the embeddings and this many of the lowest layers; -1 = all except the head."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Learning rate of each layer as a fraction of that of the layer above it (Howard and Ruder 2018), and of the top layer as a
    fraction of train.learning_rate; 1 = equal rates."""
    head_rate: float = Field(default=1.0, gt=0)
    """Multiplier of the learning rate for the head."""
    lora_rank: int = Field(default=0, ge=0, le=1_000_000)
    """LoRA: rank of the low-rank updates that are trained instead of the matrices (Hu et al. 2022); 0 = no LoRA."""
    lora_alpha: float = Field(default=16.0, gt=0)
    """LoRA: the update is scaled by lora_alpha / lora_rank."""
    lora_feedforward: bool = False
    """LoRA: also adapt the feed-forward layers, not only attention."""
    lora_from_scratch: bool = False
    """LoRA: allow training without `start`; the frozen matrices then stay random."""
    auxiliary: float = Field(default=0.0, ge=0)
    """Weight of an additional next-token loss (GPT, Radford et al. 2018: 0.5); for head = "classes-words"."""

    @model_validator(mode="after")
    def _something_learns(self) -> TuneConfig:
        if self.lora_rank and self.freeze == -1:
            raise ValueError("freeze = -1 freezes all layers, so lora_rank has no effect: set one of them to 0")
        return self


class AugmentConfig(Strict):
    """Random augmentation of training images; validation and test images are not augmented."""

    shift: float = Field(default=0.0, ge=0, lt=1)
    """Maximum horizontal and vertical shift, as a fraction of the side."""
    rotate: float = Field(default=0.0, ge=0, le=180)
    """Maximum rotation in degrees."""
    scale: float = Field(default=0.0, ge=0, lt=1)
    """Maximum relative change in size."""
    flip: bool = False
    """Flip images horizontally with probability 0.5."""
    erase: float = Field(default=0.0, ge=0, le=1)
    """Probability of replacing a random rectangle by noise (random erasing, Zhong et al. 2020)."""


class CorruptConfig(Strict):
    """Corruption of the text for masked and denoising pre-training."""

    rate: float = Field(default=0.15, gt=0, lt=1)
    """Fraction of the tokens to mask."""
    whole_words: bool = False
    """Mask whole words."""
    span: float = Field(default=3.0, ge=1)
    """Mean length of a masked span in tokens (T5, BART)."""
    generator_size: float = Field(default=0.25, gt=0, le=1)
    """Task "replaced": width, heads and inner width of the generator as a fraction of the discriminator's. ELECTRA uses 1/4 in small
    and large, 1/3 in base."""
