"""`qkv.load(path)` -> Model: one object for every trained model, wherever it comes from.

```python
model = qkv.load("folder")
model.logits([[1, 2, 3], [4, 5]])              # (2, 3, V), the shorter row padded on the right
print("".join(model.generate("Once upon a time")))
```
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.convert import detect, export, folder
from qkv.errors import QkvError
from qkv.generate.choose import Sampling
from qkv.generate.pieces import pieces, until
from qkv.generate.search import steps
from qkv.models.build import Network
from qkv.text.tokenizer import Tokenizer

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]
"""(B, T) ids, or lists of them; rows of different length are padded on the right. One row alone is a batch of one."""


def load(path: str | Path, device: str = "auto") -> Model:
    """Open a model: our folder, a Hugging Face folder, a .gguf file or a llama2.c .bin file."""
    config, network, tokenizer = detect.open_model(path)
    return Model(config, network, tokenizer, device)


def read_config(path: str | Path) -> ModelConfig:
    """The configuration of what `load` would open, without reading its weights."""
    return detect.open_config(path)


class Model:
    """A network ready for use, with its configuration and (where there is one) its tokenizer."""

    def __init__(self, config: ModelConfig, network: Network, tokenizer: Tokenizer | None = None, device: str = "auto"):
        self.config = config
        self.network = network.to(pick_device(device)).eval()
        self.tokenizer = tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    # --- numbers in, numbers out

    @torch.no_grad()
    def logits(self, ids: Ids, target_ids: Ids | None = None, *, mask: Tensor | None = None,
               segments: Tensor | None = None, source_mask: Tensor | None = None) -> Tensor:  # fmt: skip
        """What the head says: (B, T, V) words, (B, n) classes, (B, T, n) tags.

        An encoder-decoder takes (source_ids, target_ids), the target beginning with its start token; a vision model
        images (B, channels, height, width). Masks are bool, True = real; rows padded here get theirs by themselves, and
        what stands at padded places has no meaning.
        """
        return self.network(self.batch(ids, target_ids, mask, segments, source_mask)).logits

    @torch.no_grad()
    def hidden(self, ids: Ids, target_ids: Ids | None = None, *, mask: Tensor | None = None,
               segments: Tensor | None = None, source_mask: Tensor | None = None) -> list[Tensor]:  # fmt: skip
        """n_layers + 1 tensors (B, T, C): the embeddings, what each block gives, the last one after the final norm.

        Of an encoder-decoder: the encoder's with the source alone, the decoder's with source and target. A recurrent
        stack has no blocks and gives the first and the last of these.
        """
        network: Any = self.network
        both = self.config.family == "encoder-decoder"
        source_only = both and target_ids is None
        if source_only:
            embed, stack = network.source, network.encoder
            target_ids = [self.start_id()]
        else:
            embed, stack = (network.target, network.decoder) if both else (network.embed, network.stack)
        batch = self.batch(ids, target_ids, mask, segments, source_mask)
        with outputs(embed) as first, outputs(*getattr(stack, "blocks", ())) as blocks, outputs(stack) as last:
            network.encode(batch) if source_only else network(batch)
        return [*first, *blocks[:-1], *last]

    @torch.no_grad()
    def embed(self, texts: Sequence[str], pooling: str = "mean", normalize: bool = True, truncate: bool = False,
              batch_size: int = 32) -> Tensor:  # fmt: skip
        """One vector per text, (N, C): the mean of its tokens' vectors or the first one ("cls"), of length 1 if normalized.

        A text over the model's max_length is an error, or with `truncate` loses what is too much before its last token.
        """
        if self.config.family != "encoder" or pooling not in ("mean", "cls"):
            raise QkvError(
                f"embed is for encoders, with pooling 'mean' or 'cls'; given a {self.config.family}, {pooling!r}"
            )
        rows = [self.encode(text) for text in texts]
        if truncate:
            most = self.config.max_length
            rows = [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]
        found: dict[int, Tensor] = {}
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # similar lengths together: little padding
        for at in range(0, len(order), batch_size):
            some = order[at : at + batch_size]
            batch = self.batch([rows[i] for i in some])
            vectors = self.network(batch).hidden  # (B, T, C)
            found.update(zip(some, pooled(vectors, batch.mask, pooling), strict=True))
        result = torch.stack([found[i] for i in range(len(rows))]) if rows else torch.zeros(0, self.config.d_model)
        return nn.functional.normalize(result, dim=-1) if normalize else result

    # --- writing

    def generate(self, prompt: str | Ids, max_new_tokens: int = 100, temperature: float = 0.0, top_k: int | None = None,
                 top_p: float | None = None, seed: int | None = None, stop: Sequence[str] = (), chat: bool = False,
                 system: str | None = None) -> Iterator[Any]:  # fmt: skip
        """Write on from a prompt (encoder-decoder: write the target of this source), token by token.

        A text gives pieces of text, ids give ids (the end token left out). Greedy unless temperature is above 0.
        `stop` strings end a text and are left out of it. With `chat`, the prompt is a message to the assistant.
        """
        textual = isinstance(prompt, str)
        if chat or system is not None:
            messages = [] if system is None else [{"role": "system", "content": system}]
            ids: Ids = self.chat_ids([*messages, {"role": "user", "content": str(prompt)}])
        else:
            ids = self.encode(prompt) if isinstance(prompt, str) else prompt
        how = Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p)
        tokens = self.tokens(ids, max_new_tokens, how, seed)
        return self.texts(tokens, ids, stop) if textual else tokens  # type: ignore[arg-type]

    def texts(self, tokens: Iterator[int], prompt: Sequence[int], stop: Sequence[str]) -> Iterator[str]:
        """Pieces of text that follow the prompt, or in an encoder-decoder stand alone."""
        before = prompt if self.config.family == "decoder" else ()
        return until(pieces(tokens, self.words(), before), [stop] if isinstance(stop, str) else stop)

    def chat(self, messages: Sequence[dict[str, str]], **how: Any) -> str:
        """The assistant's answer to [{"role": "user", "content": ...}, ...]; `how` as in `generate`."""
        ids, stop = self.chat_ids(messages), how.pop("stop", ())
        return "".join(self.texts(self.generate(ids, **how), ids, stop)).strip()

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.words().chat(messages)

    def tokens(self, prompt: Ids, max_new_tokens: int, how: Sampling, seed: int | None) -> Iterator[int]:
        """The new ids of one row, up to an end token."""
        c = self.config
        if c.family == "encoder":
            raise QkvError("an encoder reads, it does not write: generate needs a decoder or an encoder-decoder")
        if max_new_tokens < 1:
            raise QkvError(f"max_new_tokens is at least 1, given {max_new_tokens}")
        batch = self.batch(prompt, [self.start_id()] if c.family == "encoder-decoder" else None)
        assert batch.inputs is not None
        if batch.inputs.size(0) != 1:
            raise QkvError(
                f"generate takes one prompt, given {batch.inputs.size(0)}; for many, see qkv.generate.search"
            )
        if bounded(c):
            max_new_tokens = min(max_new_tokens, c.max_length - batch.inputs.size(1) + 1)
        seed = int(torch.randint(2**31, (1,))) if seed is None else seed
        written = steps(self.network, batch, max_new_tokens, c.eos_ids, how, seed)  # type: ignore[arg-type]
        return (token for (token,) in written if token is not None and token not in c.eos_ids)

    def start_id(self) -> int:
        if self.config.first_id is None:
            raise QkvError(
                "this model does not say which token opens the target: set start_id or bos_id in its configuration"
            )
        return self.config.first_id

    def encode(self, text: str) -> list[int]:
        ids = self.words().encode(text)
        if not ids and self.config.bos_id is not None:
            return [self.config.bos_id]
        return ids

    def words(self) -> Tokenizer:
        if self.tokenizer is None:
            raise QkvError(
                "this model came without a tokenizer: give ids instead of text, or put tokenizer.json beside it"
            )
        return self.tokenizer

    # --- keeping

    def save(self, path: str | Path) -> None:
        """Write our folder."""
        folder.save(path, self.config, self.network, self.tokenizer)

    def export(self, path: str | Path, to: str = "hf") -> float:
        """Write a Hugging Face folder ("hf") or ours ("qkv"), read it back and compare; the largest difference found."""
        return export.export(path, to, self.config, self.network, self.tokenizer)

    # --- what is given, checked

    def batch(self, ids: Ids, target_ids: Ids | None = None, mask: Tensor | None = None, segments: Tensor | None = None,
              source_mask: Tensor | None = None) -> Batch:  # fmt: skip
        """What the network reads, on its device; anything it could not read is an error in words."""
        c = self.config
        if (target_ids is not None) != (c.family == "encoder-decoder"):
            raise QkvError(
                f"a model of family {c.family!r} takes " + ("(source_ids, target_ids)" if target_ids is None else "ids")
            )
        if c.image_size is not None:
            images = picture(ids, c)
            inputs, own = (None, None) if target_ids is None else rows(target_ids, c.target_size, c)
            return Batch(inputs, own if mask is None else mask, images=images).to(self.device)
        first, first_mask = rows(ids, c.vocab_size, c)
        if target_ids is None:
            return Batch(first, first_mask if mask is None else mask.bool(), segments=segments).to(self.device)
        target, own = rows(target_ids, c.target_size, c)
        if target.size(0) != first.size(0):
            raise QkvError(f"{first.size(0)} sources but {target.size(0)} targets")
        source_mask = first_mask if source_mask is None else source_mask.bool()
        return Batch(target, own if mask is None else mask.bool(), None, first, source_mask, segments).to(self.device)


# --- small helpers


@contextmanager
def outputs(*modules: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, what these modules give, in the order of their calls: a shared layer gives several times."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        kept.append(output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep) for module in dict.fromkeys(modules)]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        return device
    except (RuntimeError, AssertionError):
        raise QkvError(f"device {name!r} is not on this machine: use 'auto', 'cpu' or another") from None


def bounded(c: ModelConfig) -> bool:
    """Whether max_length is a wall (learned positions, Linformer) and not only what the model was trained on."""
    return c.position == "learned" or "linformer" in c.mixer


def rows(ids: Ids, vocab_size: int, c: ModelConfig) -> tuple[Tensor, Tensor | None]:
    """Ids as (B, T), checked, and the mask (B, T) of rows padded on the right; None where all are of one length."""
    table, mask = padded(ids, c.pad_id if c.pad_id < vocab_size else 0)
    if table.dim() != 2 or table.numel() == 0 or (mask is not None and not mask.any(1).all()):
        raise QkvError("ids are rows of at least one token each; an empty one was given")
    if int(table.min()) < 0 or int(table.max()) >= vocab_size:
        wrong = int(table.min()) if int(table.min()) < 0 else int(table.max())
        raise QkvError(
            f"token id {wrong} is not in the vocabulary, which has {vocab_size} words (0 to {vocab_size - 1})"
        )
    if bounded(c) and table.size(1) > c.max_length:
        raise QkvError(f"{table.size(1)} tokens, but this model reads at most {c.max_length}: shorten the text")
    return table, mask


def padded(ids: Ids, pad_id: int) -> tuple[Tensor, Tensor | None]:
    if isinstance(ids, Tensor):
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise QkvError(f"ids are whole numbers, given a tensor of {ids.dtype}")
        return (ids[None] if ids.dim() == 1 else ids).long(), None
    lists: list[list[int]] = [list(ids)] if all(isinstance(i, int) for i in ids) else [list(row) for row in ids]  # type: ignore
    if not all(isinstance(i, int) and abs(i) < 2**62 for row in lists for i in row):
        raise QkvError("ids are whole numbers, in a list or a list of lists")
    longest = max(map(len, lists), default=0)
    table = torch.tensor([row + [pad_id] * (longest - len(row)) for row in lists], dtype=torch.long)
    if all(len(row) == longest for row in lists):
        return table, None
    return table, torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in lists])


def picture(images: Any, c: ModelConfig) -> Tensor:
    shape = (c.n_channels, c.image_size, c.image_size)
    if not isinstance(images, Tensor) or tuple(images.shape[1:]) != shape or not images.is_floating_point():
        raise QkvError(f"this model reads images: a float tensor (batch, {', '.join(map(str, shape))})")
    return images


def pooled(vectors: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """(B, T, C), padded on the right -> (B, C)."""
    if pooling == "cls":
        return vectors[:, 0]
    weights = torch.ones(vectors.shape[:2], device=vectors.device) if mask is None else mask.to(vectors.dtype)
    return (vectors * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
