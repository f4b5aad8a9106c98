"""Definition of a Hugging Face family: its config.json keys, all of them declared, and its table of weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qkv.config import ModelConfig, validate
from qkv.convert.rewrite import Rewrite
from qkv.convert.tables import Row
from qkv.errors import ConfigError, FileError

Json = Mapping[str, Any]
NOTHING = type(None)

IGNORED = frozenset(
    """
    transformers_version _name_or_path name_or_path _commit_hash torch_dtype dtype tokenizer_class prefix
    initializer_range initializer_factor init_std gradient_checkpointing classifier_dropout classif_dropout
    encoder_layerdrop decoder_layerdrop
    use_cache output_past output_attentions output_hidden_states return_dict tie_last_hidden_states torchscript
    use_bfloat16 tf_legacy_loss chunk_size_feed_forward attn_implementation _attn_implementation_autoset
    problem_type finetuning_task task_specific_params label2id _num_labels sep_token_id cls_token_id
    """.split()
)
"""Keys without effect on the numbers: bookkeeping, training only, memory against speed, what is returned beside."""

GENERATION = frozenset(
    """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id force_bos_token_to_be_generated
    length_penalty max_length min_length no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule
    num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p typical_p
    """.split()
)
"""Settings of a search, not of the network: old files keep them in config.json."""

MUST: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "per_layer_config": None,
}
"""Keys of any family whose other values are not built here."""

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "silu": "silu", "swish": "silu",
    "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu_fast": "gelu-tanh",
}  # fmt: skip
"""Hugging Face's activation -> our feed-forward; the first of several names is the one we write."""

GATED = {"relu": "reglu", "gelu": "geglu", "gelu-tanh": "geglu-tanh", "silu": "swiglu"}
"""Our activation -> our gated feed-forward with it."""


@dataclass(frozen=True)
class Key:
    """A config.json key that is used: Hugging Face's default, our field if it alone decides that field, its types."""

    default: Any
    field: str | None = None
    kinds: tuple[type, ...] = ()
    read: Callable[[Any], Any] = lambda value: value
    """Their value -> ours."""
    write: Callable[[Any], Any] = lambda value: value
    """Our value -> theirs."""

    @property
    def types(self) -> tuple[type, ...]:
        kinds = self.kinds or (type(self.default),)
        return (*kinds, int) if float in kinds else kinds


OPTIONAL_INT = (int, NOTHING)


def token_ids(pad: int | None, bos: int | None, eos: int | None) -> dict[str, Key]:
    """The special tokens, with the family's defaults."""
    return {
        "pad_token_id": Key(pad, "pad_id", OPTIONAL_INT, read=usable_pad_id),
        "bos_token_id": Key(bos, "bos_id", OPTIONAL_INT),
        "eos_token_id": Key(eos, "eos_id", (int, list, NOTHING)),
    }


def usable_pad_id(given: int | None) -> int:
    """Our pad id; models without padding (null, or -1 in old files) can take any."""
    return max(given or 0, 0)


def activation_key(name: str, default: str, gated: bool = False) -> dict[str, Key]:
    """The activation of the feed-forward layers, or of their gates."""
    read = lambda given: GATED[activation(given, name)] if gated else activation(given, name)  # noqa: E731
    return {name: Key(default, "feedforward", read=read, write=lambda ours: foreign_activation(ours, gated))}


def switch(default: bool, field: str, on: str, off: str) -> Key:
    """A key that is true for one value of our field and false for another."""
    return Key(default, field, read=lambda given: on if given else off, write=lambda ours: ours == on)


def size_keys(width: int, n_layers: int, heads: int, inner: int) -> dict[str, Key]:
    """The sizes under their usual names, with a family's defaults."""
    return {
        "hidden_size": Key(width, "d_model"),
        "num_hidden_layers": Key(n_layers, "n_layers"),
        "num_attention_heads": Key(heads, "n_heads"),
        "intermediate_size": Key(inner, "d_ff"),
    }


CLASSES = {
    "masked": "ForMaskedLM", "masked-next": "ForPreTraining", "replaced": "ForPreTraining", "vocabulary": "ForCausalLM",
    "classes": "ForSequenceClassification", "tags": "ForTokenClassification", "span": "ForQuestionAnswering",
}  # fmt: skip
"""A head and how the names of Hugging Face's classes with it end."""


def encoder_classes(name: str, *heads: str) -> dict[str, str]:
    """The classes of a family of encoders: the bare network, and one with each of these heads."""
    return {f"{name}Model": "base", **{name + CLASSES[head]: head for head in heads}}


@dataclass(frozen=True)
class Family:
    """One model_type of Hugging Face and its place in our ModelConfig."""

    model_type: str
    architectures: Mapping[str, str]
    """Hugging Face's classes and the head each stands for; "base" is the bare network."""
    fixed: Mapping[str, Any]
    """Our fields that are the same for the whole family."""
    keys: Mapping[str, Key]
    """config.json keys in use."""
    read: Callable[[Json, set[str], str], dict[str, Any]]
    """(values of the keys, weight names, head) -> those of our fields that are not one key each."""
    write: Callable[[ModelConfig], dict[str, Any]]
    """The way back: the values of those keys."""
    table: Callable[[ModelConfig], list[Row]]
    """The weights, without `prefix`."""
    rewrites: tuple[Rewrite, ...] = ()
    """Changes that make more of our networks fit, without changing an output."""
    must: Mapping[str, Any] = field(default_factory=dict)
    """Keys that must have this value when present."""
    ignored: frozenset[str] = frozenset()
    """Keys without effect on the numbers, beside IGNORED and GENERATION."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Second names of keys."""
    prefix: str = ""
    """What stands before the bare network's weights inside a model with a head."""
    heads: tuple[str, ...] = ()
    """How the names of the weights outside the bare network begin."""
    marks: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(beginnings of weight names, the head that all of them together give away), for files that do not name their class."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Older or newer names of weights: (pattern, replacement)."""

    # --- names of weights

    def plain(self, name: str) -> str:
        """A weight's name as the table has it."""
        name = name.removeprefix(self.prefix)
        for pattern, replacement in self.spellings:
            name = re.sub(pattern, replacement, name)
        return name

    def full(self, name: str, bare: bool) -> str:
        """A weight's name as a file has it, of the `bare` network or of one inside a model with a head."""
        return name if bare or name.startswith(self.heads) else self.prefix + name

    # --- config.json

    def read_config(self, config: Json, weights: Iterable[str]) -> ModelConfig:
        """Our configuration of a config.json; `weights` are the names in the file, which tell what the keys do not."""
        names = {self.plain(name) for name in weights}
        values = self.values(config)
        head = self.head(config, names)
        fields = {key.field: key.read(values[name]) for name, key in self.keys.items() if key.field is not None}
        if head in ("classes", "tags"):
            fields |= {"n_classes": n_classes(config), "labels": labels(config)}
        fields |= {**self.read(values, names, head), **self.fixed}
        try:
            return validate(ModelConfig, fields)
        except ConfigError as error:
            raise FileError(f"config.json of model_type {self.model_type!r}: {error}") from None

    def values(self, config: Json) -> dict[str, Any]:
        """The keys in use, defaults filled in; every other key must be known and harmless."""
        config = self.without_aliases(config)
        allowed = {**MUST, **self.must}
        ignored = IGNORED | GENERATION | self.ignored | {"model_type", "architectures", "id2label", "num_labels"}
        unknown = sorted(set(config) - set(self.keys) - set(allowed) - ignored)
        if unknown:
            listed = ", ".join(f"{name!r} (given {config[name]!r})" for name in unknown)
            raise FileError(f"config.json of model_type {self.model_type!r} has unknown keys: {listed}")
        for name in allowed.keys() & config.keys():
            given, wanted = config[name], allowed[name]
            if given != wanted and given is not None:
                raise FileError(f"config.json: {name} = {given!r} is not supported; it must be {wanted!r}")
        values = {name: config.get(name, key.default) for name, key in self.keys.items()}
        for name, key in self.keys.items():
            check_type(name, values[name], key.types)
        return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}

    def without_aliases(self, config: Json) -> dict[str, Any]:
        plain = {name: value for name, value in config.items() if name not in self.aliases}
        for alias, name in self.aliases.items():
            if alias in config and plain.setdefault(name, config[alias]) != config[alias]:
                raise FileError(f"config.json: {alias} = {config[alias]!r} and {name} = {plain[name]!r} contradict")
        return plain

    def head(self, config: Json, names: set[str]) -> str:
        """What the class on top is, by its name or by the weights it has."""
        listed = config.get("architectures")
        if not listed:
            here = lambda mark: any(name.startswith(mark) for name in names)  # noqa: E731
            return next((head for marks, head in self.marks if all(map(here, marks))), "base")
        name = listed[0] if isinstance(listed, list) else listed
        if not isinstance(name, str) or name not in self.architectures:
            known = f"of {self.model_type!r}, these are: {', '.join(self.architectures)}"
            raise FileError(f"config.json: architectures = {listed!r} is not supported; {known}")
        return self.architectures[name]

    def architecture(self, c: ModelConfig) -> str:
        """The class that holds a network with this head; the first where there is none, which reading tells."""
        wanted = {"pooled": "base", "none": "base"}.get(c.head, c.head)
        fitting = [name for name, head in self.architectures.items() if head == wanted]
        return next(iter(fitting or self.architectures))

    def write_config(self, c: ModelConfig) -> dict[str, Any]:
        """The config.json of a network. What it cannot say comes back as another value when it is read again."""
        keys = {name: key.write(getattr(c, key.field)) for name, key in self.keys.items() if key.field is not None}
        config = {"model_type": self.model_type, "architectures": [self.architecture(c)], **keys, **self.write(c)}
        if c.head in ("classes", "tags"):
            config |= labels_json(c)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in config.items()}


def check_type(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    """JSON's types as they are: true is not 1."""
    same_items = not isinstance(value, list) or {type(item) for item in value} in ({int}, {str}, set())
    if type(value) not in kinds or not same_items:
        wanted = " or ".join("null" if kind is NOTHING else kind.__name__ for kind in kinds)
        raise FileError(f"config.json: {name} = {value!r} must be {wanted}")


def n_classes(config: Json) -> int:
    """Hugging Face keeps the labels rather than their number, and leaves them out where they are two."""
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, (dict, list)) else config.get("num_labels")
    check_type("num_labels", count, OPTIONAL_INT)
    return 2 if count is None else count


def labels(config: Json) -> tuple[str, ...]:
    """The names of the classes in their order; none where Hugging Face made them up. One that comes twice (ImageNet has two
    cranes) gets its number."""
    found = config.get("id2label")
    if not isinstance(found, dict):
        return ()
    numbered = {str(key): name for key, name in found.items()}
    names: list[Any] = [numbered.get(str(i)) for i in range(len(numbered))]
    if not all(isinstance(name, str) for name in names):
        raise FileError("config.json: id2label names each class by its number, 0, 1, 2 ...")
    distinct = tuple(f"{name} ({i})" if name in names[:i] else name for i, name in enumerate(names))
    return () if distinct == usual_labels(len(names)) else distinct


def labels_json(c: ModelConfig) -> dict[str, Any]:
    """The names of the classes as config.json has them."""
    names = c.labels or usual_labels(c.n_classes)
    numbers = {name: i for i, name in enumerate(names)}
    return {"id2label": {str(i): name for name, i in numbers.items()}, "label2id": numbers}


def usual_labels(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def unless(usual: int | None, value: int | None) -> int | None:
    """A size, or None where it is the usual one: our fields say nothing then."""
    return None if value == usual else value


def usual_head(width: int, heads: int) -> int | None:
    """The width of one head that ModelConfig fills in by itself."""
    return width // heads if heads > 0 and width % heads == 0 else None


def activation(name: str, key: str) -> str:
    """Our name of an activation."""
    if name not in ACTIVATIONS:
        raise FileError(f"config.json: {key} = {name!r} is not supported; it is one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def foreign_activation(feedforward: str, gated: bool = False) -> str:
    """Hugging Face's name of the activation in a feed-forward of ours; any where there is none, which reading tells."""
    plain = {GATED[ours] if gated else ours: foreign for foreign, ours in reversed(ACTIVATIONS.items())}
    return plain.get(feedforward, "gelu")
