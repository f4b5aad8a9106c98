"""Recipe: a TOML file that configures a run, validated as a whole before training starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qkv.config.model import ModelConfig
from qkv.config.run import DataConfig, DecodeConfig, TrainConfig
from qkv.config.strict import Strict, merge, override, read_toml, validate
from qkv.config.task import AugmentConfig, CorruptConfig, TaskName, TuneConfig
from qkv.errors import ConfigError


class Recipe(Strict):
    """Contents of a recipe file (TOML)."""

    preset: str | None = None
    """Named configuration to start from; [model] overrides its fields."""
    task: TaskName = "translation"
    """Task to train for."""
    model: ModelConfig
    """The network."""
    data: DataConfig | None = None
    """Data sets, tokenization and batching."""
    train: TrainConfig = TrainConfig()
    """Optimisation, evaluation and checkpoints."""
    decode: DecodeConfig = DecodeConfig()
    """Decoding."""
    tune: TuneConfig = TuneConfig()
    """Fine-tuning."""
    corrupt: CorruptConfig = CorruptConfig()
    """Corruption of the text for pre-training."""
    augment: AugmentConfig = AugmentConfig()
    """Augmentation of training images."""


def load_recipe(path: Path, settings: list[str] | None = None,
                config_of: Callable[[str], ModelConfig] | None = None) -> Recipe:  # fmt: skip
    """Load and validate a recipe file with `--set` overrides; fill in its preset, or the configuration of the model in
    tune.start (which `config_of` reads)."""
    from qkv.presets import PRESETS, preset

    values = override(read_toml(path), settings or [])
    if values.get("task") == "vectors":  # config/vectors.py has its record
        raise ConfigError(f"{path} is a recipe for word vectors, which have no network: use it with `qkv train`")
    name, own = values.get("preset"), values.get("model", {})
    if name is not None:
        base = preset(name) if isinstance(name, str) else None
        if base is None:
            raise ConfigError(f"preset must be a name ({', '.join(PRESETS)}), given {name!r}")
        values["model"] = merge(base.model_dump(exclude_unset=True), own)
    start = values.get("tune", {}).get("start") if isinstance(values.get("tune"), dict) else None
    if isinstance(start, str) and start and config_of is not None:
        values["model"] = merge(config_of(start).model_dump(exclude_unset=True), own)
    fields, data = values.get("model", {}), values.get("data", {})
    if isinstance(fields, dict) and isinstance(data, dict) and "data" in values:
        size = data.get("vocab_size", DataConfig.model_fields["vocab_size"].default)
        fields = {"vocab_size": size, **fields}  # the trained tokenizer's size takes its place
    model = validate(ModelConfig, fields, "model")
    rooms: dict[str, type[Strict]] = {"data": DataConfig, "train": TrainConfig, "decode": DecodeConfig,
                                     "tune": TuneConfig, "corrupt": CorruptConfig, "augment": AugmentConfig}  # fmt: skip
    parts = {name: validate(kind, values[name], name) for name, kind in rooms.items() if name in values}
    return validate(Recipe, {**values, **parts, "model": model})
