"""Open an exported Hugging Face folder with `transformers`, and compare its outputs on texts with those of our model.

`AutoTokenizer`, the `AutoModel` class of the task and `generate` or a pipeline must give the texts, labels, tags or fillings
that our model gives. The texts are words of the vocabulary, drawn at random, so that no data is needed.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import eq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.convert.hf_files import NAMES
from qkv.errors import QkvError

Model = Any
"""A qkv.api.Model, which calls this module."""
SKIPPED = "the check with transformers was skipped, it is not installed: pip install transformers, then export again"
TEXTS = 6
LONGEST = 24
"""Tokens that are written for each text."""
CLOSE = 1e-3
"""Probabilities and scores that differ by less are equal; so are two texts whose scores do."""


def check_export(folder: Path, model: Model) -> str:
    """Compare a folder with the model that was written to it: one line about the check, or a QkvError."""
    try:
        import transformers as hf
    except ImportError:
        return SKIPPED
    kind, check = check_of(model)
    with quiet(hf):
        try:
            differs = check(hf, folder, model)
        except QkvError:
            raise
        except Exception as error:  # whatever it raises, the user would meet it too
            reason = " ".join(str(error).split())[:200]
            raise QkvError(
                f"transformers {hf.__version__} cannot use the export ({type(error).__name__}: {reason}): nothing was written"
            ) from None
    if differs:
        raise QkvError(f"transformers {hf.__version__} and {kind} give something else: {differs}: nothing was written")
    return f"checked with transformers {hf.__version__}: {kind} gives the same on {TEXTS} inputs"


Checker = Callable[[Any, Path, Model], str]
"""(transformers, folder, model) -> what differs; empty where nothing does."""


def check_of(model: Model) -> tuple[str, Checker]:
    """What a user opens a model of this kind with, and how it is compared."""
    c = model.config
    if c.image_size is not None:
        return "AutoModel", same_pictures
    if model.tokenizer is None:
        return "AutoModel", same_vectors
    if c.family == "encoder-decoder":
        return "AutoModelForSeq2SeqLM.generate", same_translations
    if c.head == "vocabulary":
        return "AutoModelForCausalLM.generate", same_continuations
    if c.head in ("classes", "classes-words"):
        bare = c.family == "encoder" and not c.pooler
        return ("AutoModel and the dense layer", same_pooling) if bare else ("text-classification", same_labels)
    if c.head == "tags":
        return "token-classification", same_tags
    if c.head == "masked" and any(model.tokenizer.id_of(name) is not None for name in NAMES["mask_token"]):
        return "fill-mask", same_fillings
    return "AutoModel", same_vectors


@contextmanager
def quiet(hf: Any) -> Iterator[None]:
    """No messages and bars of the library, which are about training and downloads."""
    before = hf.logging.get_verbosity()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    try:
        with torch.no_grad():
            yield
    finally:
        hf.logging.set_verbosity(before)


def texts_of(model: Model, count: int = TEXTS) -> list[str]:
    """Texts of one to twelve random pieces of the vocabulary, which read back as something."""
    words, draw = model.words(), random.Random(0)
    special = {i for i, token in words.backend.get_added_tokens_decoder().items() if token.special}
    usable = [i for i in range(min(words.size, model.config.vocab_size)) if i not in special]
    longest = max(1, min(12, model.config.max_length // 4))
    found: list[str] = []
    for _ in range(100 * count):
        text = words.decode([draw.choice(usable) for _ in range(draw.randint(1, longest))])
        text = " ".join(re.findall(r"[^\s\ufffd]+", text))
        if text and len(model.encode(text)) <= model.config.max_length // 2:
            found.append(text)
        if len(found) == count:
            break
    return found


def first_difference(inputs: Sequence[str], ours: Sequence[Any], theirs: Sequence[Any],
                     same: Callable[[Any, Any], bool] = eq) -> str:  # fmt: skip
    """Describe the first input whose answers are not the same; empty where all are."""
    for given, mine, other in zip(inputs, ours, theirs, strict=True):
        if not same(mine, other):
            return f"of {given!r} {other!r}, ours is {mine!r}"
    return ""


# --- writing


def same_translations(hf: Any, folder: Path, model: Model) -> str:
    """With the search of the folder, and greedily. Where transformers' beam is cut before it ends a text, it is not compared:
    we prefer a text that has ended."""
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModelForSeq2SeqLM.from_pretrained(folder)
    decoder = tokenizer if model.target_tokenizer is model.tokenizer else target_of(hf, folder)
    texts, most = texts_of(model), min(LONGEST, model.config.max_length - 1)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    for beam in (None, 1):
        told = {} if beam is None else {"num_beams": beam, "early_stopping": None}
        rows = [cut_at_end(model, ids[1:]) for ids in network.generate(**inputs, max_new_tokens=most, **told).tolist()]
        how = {"max_length": most, "length_formula": "power"}  # which is the only one that transformers has
        ours = model.translate(texts, beam, scores=True, fast=False, **how)
        for text, mine, ids in zip(texts, ours, rows, strict=True):
            other = decoder.decode(ids, skip_special_tokens=True)
            cut = beam is None and ids[-1] not in model.config.eos_ids
            best = mine.score if beam is None else None
            if mine.text != other and not cut and not is_tie(model, text, mine.tokens, ids, best):
                return f"of {text!r} {other!r}, ours is {mine.text!r}"
    return ""


def target_of(hf: Any, folder: Path) -> Any:
    from qkv.convert.tokenizer_files import TARGET

    return hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / TARGET))


def cut_at_end(model: Model, ids: list[int]) -> list[int]:
    """Ids up to the end token, without the padding behind it."""
    ends = [at for at, token in enumerate(ids) if token in model.config.eos_ids]
    return ids[: ends[0] + 1] if ends else ids


def is_tie(model: Model, text: str, tokens: list[str], ids: list[int], best: float | None) -> bool:
    """Whether two different outputs are equally good: in a beam their scores are the same, and of greedy ones the two tokens
    at which they part."""
    c = model.config
    source = model.translator(fast=False).read(text)[0]
    table = model.logits(source, [model.start_id(), *ids[:-1]])[0].float().log_softmax(-1)  # (T, V)
    own = [float(table[at, token]) for at, token in enumerate(ids)]
    if best is not None:
        penalty = model.defaults.resolve(length_penalty=(None, 1.0))["length_penalty"]
        free = c.forced_id is not None  # the first one costs nothing
        return abs(sum(own[free:]) / len(ids) ** penalty - best) <= CLOSE
    mine = [model.target_words().id_of(token) for token in tokens]
    at = next((n for n, pair in enumerate(zip(mine, ids, strict=False)) if pair[0] != pair[1]), -1)
    return at >= 0 and abs(own[at] - float(table[at, mine[at]])) <= CLOSE


def same_continuations(hf: Any, folder: Path, model: Model) -> str:
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModelForCausalLM.from_pretrained(folder)
    texts = texts_of(model)
    most = max(1, min(LONGEST, model.config.max_length // 2))
    ours, theirs = [], []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        prompt = inputs["input_ids"][0].tolist()
        found = network.generate(**inputs, max_new_tokens=most)[0, len(prompt) :].tolist()
        theirs.append((prompt, tokenizer.decode(found, skip_special_tokens=True)))
        ids = model.encode(text)
        ours.append((ids, model.words().decode(list(model.generate(ids, max_new_tokens=most)))))
    return first_difference(texts, ours, theirs)


# --- reading


Table = dict[str, float]
"""Probability of each label; of a regression, the score alone."""


def close(mine: Table, other: Table) -> bool:
    """Compare two tables: no entry differs by more than CLOSE."""
    return mine.keys() == other.keys() and all(abs(mine[name] - other[name]) <= CLOSE for name in mine)


def answers(model: Model, given: Sequence[Any]) -> list[Table]:
    return [a.probabilities if a.score is None else {"score": a.score} for a in model.classify(given)]


def table_of(hf: Any, folder: Path, logits: Tensor) -> Table:
    """The answer that logits (n,) stand for."""
    names = hf.AutoConfig.from_pretrained(folder).id2label
    if len(logits) == 1:
        return {"score": float(logits[0])}
    return {names[i]: p for i, p in enumerate(logits.softmax(-1).tolist())}


def same_labels(hf: Any, folder: Path, model: Model) -> str:
    pipe = hf.pipeline("text-classification", model=str(folder), tokenizer=str(folder), device="cpu")
    texts, alone = texts_of(model), model.config.n_classes == 1
    found = pipe(texts, top_k=None, function_to_apply="none" if alone else "softmax")
    theirs = [{"score" if alone else one["label"]: one["score"] for one in row} for row in found]
    return first_difference(texts, answers(model, texts), theirs, close)


def same_pooling(hf: Any, folder: Path, model: Model) -> str:
    """As the card of the folder shows."""
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder)
    texts = texts_of(model)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    vectors = network(**inputs).last_hidden_state  # (B, T, C)
    logits = dense(folder, pool(vectors, inputs["attention_mask"], model.config.pooling))
    return first_difference(texts, answers(model, texts), [table_of(hf, folder, row) for row in logits], close)


def pool(vectors: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(B, T, C), (B, T) -> (B, C)."""
    if pooling == "first":
        return vectors[:, 0]
    if pooling == "last":
        return vectors[torch.arange(len(vectors)), mask.sum(1) - 1]
    return (vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def dense(folder: Path, x: Tensor) -> Tensor:
    """The linear layer in 2_Dense: (B, C) -> (B, n)."""
    from safetensors.torch import load_file

    layer = load_file(folder / "2_Dense" / "model.safetensors")
    return x @ layer["linear.weight"].T + layer["linear.bias"]


def same_tags(hf: Any, folder: Path, model: Model) -> str:
    """The label of the first piece of each word."""
    pipe = hf.pipeline("token-classification", model=str(folder), tokenizer=str(folder), device="cpu", ignore_labels=[])
    ours, theirs, texts = [], [], []
    for tagged in model.tag(texts_of(model)):
        text = " ".join(one.word for one in tagged)
        pieces = pipe(text)
        ends = list(accumulate(len(one.word) + 1 for one in tagged))
        first = {bisect_right(ends, one["end"]): one for one in reversed(pieces)}  # a piece may begin with a space
        for n, one in enumerate(tagged):
            if n in first:  # nothing is left of a word without visible characters
                texts.append(one.word)
                ours.append({one.tag: one.probability})
                theirs.append({first[n]["entity"]: first[n]["score"]})
    return first_difference(texts, ours, theirs, close)


def same_fillings(hf: Any, folder: Path, model: Model) -> str:
    pipe = hf.pipeline("fill-mask", model=str(folder), tokenizer=str(folder), device="cpu")
    texts = [f"{text} {pipe.tokenizer.mask_token}" for text in texts_of(model)]
    ours, theirs = [], []
    for text, filled in zip(texts, model.fill(texts, top_k=3), strict=True):
        ours.append({str(i): p for i, (_, p) in enumerate(filled.gaps[0])})
        theirs.append({str(i): one["score"] for i, one in enumerate(pipe(text, top_k=3))})
    return first_difference(texts, ours, theirs, close)


def same_vectors(hf: Any, folder: Path, model: Model) -> str:
    """Vectors of the network below the head, of texts or, without a tokenizer, of ids."""
    network = hf.AutoModel.from_pretrained(folder)
    c, draw = model.config, random.Random(0)
    texts: list[Any] = [[draw.randrange(c.vocab_size) for _ in range(min(8, c.max_length))] for _ in range(TEXTS)]
    if model.tokenizer is not None:
        tokenizer, texts = hf.AutoTokenizer.from_pretrained(folder), texts_of(model)
    for text in texts:
        ids = tokenizer(text)["input_ids"] if isinstance(text, str) else text
        both = c.family == "encoder-decoder"
        given = {"input_ids": torch.tensor([ids])} | ({"decoder_input_ids": torch.tensor([ids])} if both else {})
        mine = model.hidden(ids, ids if both else None)[-1]
        difference = float((mine.cpu() - network(**given).last_hidden_state).abs().max())
        if difference > CLOSE:
            return f"vectors of {text!r} that differ by {difference:.1e}"
    return ""


# --- images


def same_pictures(hf: Any, folder: Path, model: Model) -> str:
    from PIL import Image

    c = model.config
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    draw = torch.Generator().manual_seed(0)
    side = c.image_size or 1
    size = (2 * side, 3 * side, 3) if c.n_channels == 3 else (2 * side, 3 * side)
    tables = torch.randint(256, (TEXTS, *size), generator=draw, dtype=torch.uint8).numpy()
    pictures = [Image.fromarray(table) for table in tables]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    names = [f"picture {n}" for n in range(TEXTS)]
    if c.head != "classes":
        theirs = hf.AutoModel.from_pretrained(folder)(pixels).last_hidden_state
        return "" if float((model.hidden(pixels)[-1].cpu() - theirs).abs().max()) <= CLOSE else "vectors of an image"
    if c.pooling == "first":
        logits = hf.AutoModelForImageClassification.from_pretrained(folder)(pixels).logits
    else:
        vectors = hf.AutoModel.from_pretrained(folder)(pixels).last_hidden_state
        logits = dense(folder, pool(vectors, torch.ones(vectors.shape[:2]), c.pooling))
    return first_difference(names, answers(model, pictures), [table_of(hf, folder, row) for row in logits], close)
