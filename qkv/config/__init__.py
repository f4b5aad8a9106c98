"""Configuration of runs: strict, flat records. Nothing here imports torch, so that the command line starts quickly.

Every field has one default and one description, which is also its help text. An unknown key, a wrong type or an
impossible combination raises `ConfigError` with the field, what was given and what is allowed.
"""

from qkv.config.interval import Interval, interval, minutes
from qkv.config.model import INITIAL, ModelConfig, RotaryScaling
from qkv.config.recipe import Recipe, load_recipe
from qkv.config.run import CorpusConfig, DataConfig, DecodeConfig, TrainConfig
from qkv.config.strict import CHANGE, Strict, format_value, merge, override, read_toml, validate
from qkv.config.task import AugmentConfig, CorruptConfig, TaskName, TuneConfig

__all__ = [
    "ModelConfig", "RotaryScaling", "INITIAL", "CorpusConfig", "DataConfig", "TrainConfig", "DecodeConfig", "TuneConfig", "CorruptConfig",
    "AugmentConfig",
    "Interval", "interval", "minutes", "TaskName", "Recipe", "load_recipe",
    "CHANGE", "Strict", "validate", "merge", "override", "read_toml", "format_value",
]  # fmt: skip
