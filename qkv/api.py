"""`qkv.load(path)` -> Model: one object for every trained model, wherever it comes from.

```python
model = qkv.load("folder")
model.logits([[1, 2, 3], [4, 5]])              # (2, 3, V), the shorter row padded on the right
print("".join(model.generate("Once upon a time")))
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.convert import detect, export, folder
from qkv.convert.tokenizer_files import unread_tokenizer_files
from qkv.device import pick_device
from qkv.engine.pack import pack
from qkv.errors import QkvError
from qkv.generate.choose import Sampling
from qkv.generate.conversation import Conversation
from qkv.generate.cursor import slide as slide_on
from qkv.generate.defaults import Defaults
from qkv.generate.hypotheses import Beam
from qkv.generate.pieces import pieces, until
from qkv.generate.search import steps
from qkv.generate.translate import Request, Translation, Translator
from qkv.look.stream import layers
from qkv.models.build import Network
from qkv.models.decoder import Decoder
from qkv.models.inputs import Ids, batch_of, bounded, carries
from qkv.parts.tap import looked_into
from qkv.tasks.embed import Embedder, Tokens
from qkv.tasks.summary import Summarizer
from qkv.text.tokenizer import Tokenizer
from qkv.vectors.store import holds_vectors, open_vectors

if TYPE_CHECKING:
    from qkv.look.probe import Contexts
    from qkv.look.space import Neighbours
    from qkv.look.view import Look
    from qkv.tasks.classification import Answer
    from qkv.tasks.fill import Filled
    from qkv.tasks.looking import Looker
    from qkv.tasks.tagging import Tagged


def load(path: str | Path, device: str = "auto") -> Model:
    """Open a model: our folder, a Hugging Face folder, a .gguf file or a llama2.c .bin file.

    Word vectors, a folder or a file of word2vec, give no Model but a qkv.vectors.space.Vectors: vector, similarity, nearest, analogy.
    """
    if holds_vectors(Path(path)):
        return open_vectors(path)  # type: ignore[return-value]
    config, network, tokenizer = detect.open_model(path)
    model = Model(config, network, tokenizer, device, detect.open_target(path))
    model.defaults = detect.open_defaults(path)
    model.unread = [] if tokenizer is not None else unread_tokenizer_files(path)
    return model


def read_config(path: str | Path) -> ModelConfig:
    """The configuration of what `load` would open, without reading its weights."""
    return detect.open_config(path)


class Model:
    """A network ready for use, with its configuration and (where there is one) its tokenizer."""

    def __init__(self, config: ModelConfig, network: Network, tokenizer: Tokenizer | None = None, device: str = "auto",
                 target_tokenizer: Tokenizer | None = None):  # fmt: skip
        self.config = config
        self.network = network.to(pick_device(device)).eval()
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
        """Of the target side, where that has a vocabulary of its own."""
        self.defaults = Defaults()
        """How it searches unless told otherwise, where its folder says so."""
        self.unread: list[str] = []
        """Files of a tokenizer that were found but are of a kind not read here."""
        self.twin: tuple[tuple[int, ...], Any] = ((), None)
        """A packed copy of the network, and the versions of the weights it was made from."""

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    # --- numbers in, numbers out

    @torch.no_grad()
    def logits(self, ids: Ids, target_ids: Ids | None = None, *, mask: Ids | None = None, segments: Ids | None = None,
               source_mask: Ids | None = None) -> Tensor:  # fmt: skip
        """What the head says: (B, T, V) words, (B, n) classes, (B, T, n) tags.

        An encoder-decoder takes (source_ids, target_ids), the target beginning with its start token; a vision model
        images (B, channels, height, width). Masks are bool, True = real; rows padded here get theirs by themselves, and
        what stands at padded places has no meaning.
        """
        return self.network(self.batch(ids, target_ids, mask, segments, source_mask)).logits

    @torch.no_grad()
    def hidden(self, ids: Ids, target_ids: Ids | None = None, *, mask: Ids | None = None, segments: Ids | None = None,
               source_mask: Ids | None = None) -> list[Tensor]:  # fmt: skip
        """n_layers + 1 tensors (B, T, C): the embeddings, what each block gives, the last one after the final norm.

        Of an encoder-decoder: the encoder's with the source alone, the decoder's with source and target. A recurrent
        stack has no blocks and gives the first and the last of these.
        """
        source_only = self.config.family == "encoder-decoder" and target_ids is None
        batch = self.batch(ids, target_ids, mask, segments, source_mask, encoding=source_only)
        return layers(self.network, batch, source_only)

    def embed(self, texts: Sequence[str] | Tensor, pooling: str = "mean", normalize: bool = True,
              truncate: bool = False, batch_size: int = 32, layer: int = -1) -> Tensor:  # fmt: skip
        """One vector per text (or image), (N, C): the mean of its tokens' vectors, the first one ("cls") or the "last" one,
        of length 1 if normalized; of any layer, 0 = the embeddings.

        A text over the model's max_length is an error, or with `truncate` loses what is too much before its last token.
        """
        return self.embedder(layer, batch_size).embed(texts, pooling, normalize, truncate)

    def embed_tokens(self, texts: Sequence[str], normalize: bool = True, truncate: bool = False, batch_size: int = 32,
                     layer: int = -1) -> list[Tokens]:  # fmt: skip
        """The pieces of each text and a vector for each of them, (T, C)."""
        return self.embedder(layer, batch_size).tokens(texts, normalize, truncate)

    def embedder(self, layer: int = -1, batch_size: int = 32) -> Embedder:
        tokenizer = self.tokenizer if self.config.image_size is not None else self.words()
        return Embedder(self.config, self.network, tokenizer, layer, batch_size)

    # --- writing

    def generate(self, prompt: str | Ids, max_new_tokens: int = 100, temperature: float = 0.0, top_k: int | None = None,
                 top_p: float | None = None, seed: int | None = None, stop: Sequence[str] = (), chat: bool = False,
                 system: str | None = None, slide: bool = False) -> Iterator[Any]:  # fmt: skip
        """Write on from a prompt (encoder-decoder: write the target of this source), token by token.

        A text gives pieces of text, ids give ids (the end token left out). Greedy unless temperature is above 0.
        `stop` strings end a text and are left out of it. With `chat`, the prompt is a message to the assistant. Where the
        context is full a text ends, if the model cannot go further, or with `slide` goes on from its last half.
        """
        textual = isinstance(prompt, str)
        ids: Ids = self.prompt_ids(prompt, chat, system) if isinstance(prompt, str) else prompt
        how = Sampling(temperature, top_k or 0, 1.0 if top_p is None else top_p)
        tokens = self.tokens(ids, max_new_tokens, how, seed, slide)
        return self.texts(tokens, ids, stop) if textual else tokens  # type: ignore[arg-type]

    def prompt_ids(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """Of a text to go on from, or with `chat` or a system message of a message to the assistant."""
        if chat or system is not None:
            messages = [] if system is None else [{"role": "system", "content": system}]
            return self.chat_ids([*messages, {"role": "user", "content": prompt}])
        if self.config.family == "encoder-decoder" and self.config.eos_ids:
            return self.translator(fast=False).read(prompt)[0]  # a source ends with an end token, as in training
        return self.encode(prompt)

    def last_ids(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """The end of a prompt that is too long: half of the context, or more where the answer needs less."""
        most = self.config.max_length
        return ids if len(ids) <= most or carries(self.config) else ids[-max(most - max_new_tokens, (most + 1) // 2) :]

    def texts(self, tokens: Iterator[int], prompt: Sequence[int], stop: Sequence[str]) -> Iterator[str]:
        """Pieces of text that follow the prompt, or in an encoder-decoder stand alone."""
        before = prompt if self.config.family == "decoder" else ()
        return until(pieces(tokens, self.target_words(), before), [stop] if isinstance(stop, str) else stop)

    def chat(self, messages: Sequence[dict[str, str]], **how: Any) -> str:
        """The assistant's answer to [{"role": "user", "content": ...}, ...]; `how` as in `generate`."""
        ids, stop = self.chat_ids(messages), how.pop("stop", ())
        return "".join(self.texts(self.generate(ids, **how), ids, stop)).strip()

    def conversation(self, system: str | None = None, max_new_tokens: int = 512, how: Sampling = Sampling(),
                     seed: int | None = None) -> Conversation:  # fmt: skip
        """Several turns: `conversation.ask(text)` gives the pieces of each answer."""
        return Conversation(self.config, self.network, self.words(), system, max_new_tokens, how, seed)

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.words().chat(messages)

    def tokens(self, prompt: Ids, max_new_tokens: int, how: Sampling, seed: int | None, slide: bool = False
               ) -> Iterator[int]:  # fmt: skip
        """The new ids of one row, up to an end token."""
        c = self.config
        if c.family == "encoder":
            raise QkvError("an encoder reads, it does not write: generate needs a decoder or an encoder-decoder")
        if max_new_tokens < 1:
            raise QkvError(f"max_new_tokens is at least 1, given {max_new_tokens}")
        batch = self.batch(prompt, self.start_ids() if c.family == "encoder-decoder" else None)
        assert batch.inputs is not None
        if batch.inputs.size(0) != 1:
            raise QkvError(
                f"generate takes one prompt, given {batch.inputs.size(0)}; for many, see qkv.generate.search"
            )
        if self.context is not None and batch.inputs.size(1) > self.context:
            raise QkvError(
                f"{batch.inputs.size(1)} tokens, but this model was made for {self.context}: shorten the prompt, or keep its "
                "end (--truncate)"
            )
        seed = int(torch.randint(2**31, (1,))) if seed is None else seed
        if slide and isinstance(self.network, Decoder) and self.context is not None:
            rows = slide_on(self.network, batch.inputs[0].tolist(), max_new_tokens, self.context, c.eos_ids, how, seed)
            return (token for token in rows if token not in c.eos_ids)
        max_new_tokens = int(min(max_new_tokens, self.room(batch.inputs[0].tolist())))
        written = steps(self.network, batch, max_new_tokens, c.eos_ids, how, seed)  # type: ignore[arg-type]
        return (token for (token,) in written if token is not None and token not in c.eos_ids)

    @property
    def context(self) -> int | None:
        """Tokens that a decoder was made for; None where none are too many: what it remembers is of fixed size."""
        return self.config.max_length if self.config.family == "decoder" and not carries(self.config) else None

    def room(self, ids: Sequence[int]) -> float:
        """How many tokens can follow these: all that the positions of a bounded model have room for."""
        read = len(ids) if self.config.family == "decoder" else len(self.start_ids())
        return self.config.max_length - read + 1 if bounded(self.config) else math.inf

    def start_id(self) -> int:
        if self.config.first_id is None:
            raise QkvError(
                "this model does not say which token opens the target: set start_id or bos_id in its configuration"
            )
        return self.config.first_id

    def start_ids(self) -> list[int]:
        """What an encoder-decoder has before it writes: its start token, and the one that every output begins with."""
        return [self.start_id(), *([] if self.config.forced_id is None else [self.config.forced_id])]

    def encode(self, text: str) -> list[int]:
        ids = self.words().encode(text)
        if not ids and self.config.bos_id is not None:
            return [self.config.bos_id]
        return ids

    def words(self) -> Tokenizer:
        if self.tokenizer is None and self.config.image_size is not None:
            raise QkvError("this model reads pictures, not texts")
        if self.tokenizer is None:
            found = f" of a kind read here (there is {', '.join(self.unread)})" if self.unread else ""
            raise QkvError(
                f"this model came without a tokenizer{found}: give ids instead of text, or put tokenizer.json beside it"
            )
        return self.tokenizer

    def target_words(self) -> Tokenizer:
        """Of what is written: the target language may have a vocabulary of its own."""
        words = self.words() if self.target_tokenizer is None else self.target_tokenizer
        if words is self.tokenizer and self.config.target_size != self.config.vocab_size:
            raise QkvError(
                f"the target side has {self.config.target_size} words of its own: put its target_tokenizer.json beside it"
            )
        return words

    # --- translating

    def translate(self, texts: Sequence[str], beam: int | None = None, length_penalty: float | None = None, n_best: int = 1,
                  max_length: int | None = None, prefix: str | Sequence[str] | None = None,
                  constraints: Sequence[Sequence[str]] | None = None, alignments: bool = False, scores: bool = False,
                  batch_tokens: int = 2048, *, min_length: int | None = None, groups: int = 1, diversity: float = 0.5,
                  no_repeat_ngram: int | None = None, repetition_penalty: float = 1.0, early: bool | None = None,
                  fast: bool = True) -> list[Any]:  # fmt: skip
        """The translations of some texts, in their order: strings, or Translations (text, score, log_prob, tokens,
        token_log_probs, alignment, n_best, problem) where scores, alignments or several are asked for.

        A text that cannot be translated (over `config.max_length` tokens, not tokenizable) gives an empty one, and a
        Translation then says why in `problem`; an empty text gives an empty one. `prefix`: how each translation begins,
        one for all or one per text. `constraints`: for each text the words or phrases that must occur. What the other
        settings mean is said in generate/: hypotheses.py (Beam), rules.py (Rules), translate.py (Request). A setting that is
        None is the model's own (`self.defaults`), else beam 4, length_penalty 1, and no bounds.
        With `fast` a packed copy of the network does the work on a CPU.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise QkvError("translate takes a list of texts: put the text into brackets")
        own = self.defaults.chosen(
            beam=(beam, 4), length_penalty=(length_penalty, 1.0), early=(early, False), min_length=(min_length, 0),
            no_repeat_ngram=(no_repeat_ngram, 0), max_length=(max_length, None),
        )  # fmt: skip
        search = Beam(own["beam"], own["length_penalty"], n_best, groups, diversity, own["early"])
        prefixes = [prefix] * len(texts) if isinstance(prefix, str) else prefix or ()
        how = Request(search, own["max_length"], own["min_length"], own["no_repeat_ngram"], repetition_penalty, prefixes,
                      constraints or (), bool(self.defaults.forced_end), alignments, None, batch_tokens)  # fmt: skip
        found = self.translator(fast).translate(texts, how)
        return found if scores or alignments or n_best > 1 else [one.text for one in found]

    def translator(self, fast: bool = True) -> Translator:
        source = self.words()
        return Translator(self.config, self.packed(fast), source, self.target_words())

    def summarize(self, texts: Sequence[str], beam: int | None = None, length_penalty: float | None = None,
                  max_length: int | None = None, no_repeat_ngram: int | None = None, fast: bool = True
                  ) -> list[Translation]:  # fmt: skip
        """A short text for each; of one that is longer than the model reads, the beginning counts. A setting that is None is
        the model's own (`self.defaults`), else beam 4, length_penalty 1, max_length 64, no_repeat_ngram 3."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise QkvError("summarize takes a list of texts: put the text into brackets")
        writer = Summarizer(self.config, self.packed(fast), self.words(), self.target_words())
        own = self.defaults.chosen(
            beam=(beam, 4), length_penalty=(length_penalty, 1.0), early=(None, False), max_length=(max_length, 64),
            min_length=(None, 0), no_repeat_ngram=(no_repeat_ngram, 3),
        )  # fmt: skip
        search = Beam(own["beam"], own["length_penalty"], early=own["early"])
        how = Request(search, own["max_length"], own["min_length"], own["no_repeat_ngram"],
                      forced_end=bool(self.defaults.forced_end))  # fmt: skip
        return writer.translate(texts, how)

    def packed(self, fast: bool = True) -> Any:
        """The network with its weights laid out for the processor; made once, and again when they have changed. If not
        `fast`, on a GPU, or while somebody looks into the network or has switched heads off, it is the network itself."""
        if not fast or self.device.type != "cpu" or looked_into(self.network):
            return self.network
        versions = tuple(weight._version for weight in self.network.parameters())
        if self.twin[1] is None or self.twin[0] != versions:
            self.twin = versions, pack(self.network)
        return self.twin[1]

    # --- classifying, tagging and answering

    def classify(self, texts: Sequence[Any], top_k: int | None = None) -> list[Answer]:
        """The label, its probability and those of all labels (the `top_k` likeliest) of texts, of pairs of texts, or of
        pictures; of a regression the score. A text over `config.max_length` tokens is cut, and says so in `cut`."""
        from qkv.tasks.classification import Classifier

        if self.config.image_size is not None:
            from qkv.tasks.images import ImageClassifier

            return ImageClassifier(self.config, self.network).classify(texts, top_k)
        return Classifier(self.config, self.network, self.words()).classify(texts, top_k)

    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[Filled]:
        """For each text the likeliest words of its gaps, written [MASK] or <mask>: (text, gaps, problem), where a gap is a
        list of (word, probability)."""
        from qkv.tasks.fill import Filler

        return Filler(self.config, self.network, self.words()).fill(texts, top_k)

    def tag(self, sentences: Sequence[str | Sequence[str]]) -> list[list[Tagged]]:
        """(word, tag, probability) for every word of some sentences, each raw text or a list of words."""
        from qkv.tasks.tagging import Tagger

        if isinstance(sentences, str):
            raise QkvError("tag takes a list of sentences: put the sentence into brackets")
        return Tagger(self.config, self.network, self.words()).tag(sentences)

    def answer(self, question: str | Sequence[str], context: str | Sequence[str], no_answer: bool = False,
               max_answer: int = 30) -> Any:  # fmt: skip
        """The words of a text that answer a question: (text, score, start, end), context[start:end] == text.

        A list of questions, about one context or one each, gives a list of answers. With `no_answer` the model may say
        that there is none (an empty text).
        """
        from qkv.tasks.answering import Reader

        reader = Reader(self.config, self.network, self.words())
        if isinstance(question, str):
            if not isinstance(context, str):
                raise QkvError("one question is about one context; several are a list, and so are their contexts")
            return reader.answer(question, context, no_answer, max_answer)
        contexts = [context] * len(question) if isinstance(context, str) else context
        if len(contexts) != len(question):
            raise QkvError(
                f"{len(question)} questions about {len(contexts)} contexts: give one context, or one for each"
            )
        return reader.answers(list(zip(question, contexts, strict=True)), no_answer, max_answer)

    # --- pictures

    def describe(self, pictures: Sequence[Any], beam: int = 4, length_penalty: float = 1.0, n_best: int = 1,
                 max_length: int | None = None, fast: bool = True) -> list[Translation]:  # fmt: skip
        """A caption of each picture: paths, Pillow images or arrays of uint8 pixels."""
        from qkv.tasks.captions import Captioner, check

        if isinstance(pictures, str | Path):
            raise QkvError("describe takes a list of pictures: put the picture into brackets")
        check(self.config)
        captioner = Captioner(self.config, self.packed(fast), self.target_words())
        return captioner.describe(pictures, Beam(beam, length_penalty, n_best), max_length)

    # --- looking inside

    def look(self, given: Any, target: str | None = None, pair: str | None = None, summary: bool = False) -> Look:
        """One input, ready to be looked into: a text, ids, or a picture. Of an encoder-decoder also what it writes: `target`,
        or without one its own greedy answer; of a classifier of pairs the second text, of a text the question about it: `pair`;
        of a decoder that was trained to write summaries (`summary`) the one that it writes behind the text. What can be asked is
        in look/view.py: attention, lens, attribution ..."""
        return self.looker().look(given, target, pair, summary)

    def neighbours(self, word: str, k: int = 10) -> Neighbours:
        """The words whose (static) vectors are nearest to that of a word."""
        return self.looker().neighbours(word, k)

    def contexts(self, word: str, texts: Sequence[str], layer: int = -1) -> Contexts:
        """How alike the vectors of one word are in several texts, at some layer, and to the one before any context."""
        return self.looker().contexts(word, texts, layer)

    def looker(self) -> Looker:
        from qkv.tasks.looking import Looker

        return Looker(self.config, self.network, self.tokenizer, self.target_tokenizer)

    # --- keeping

    def save(self, path: str | Path) -> None:
        """Write our folder."""
        folder.save(path, self.config, self.network, self.tokenizer, self.target_tokenizer)

    def export(self, path: str | Path, to: str = "hf", say: Callable[[str], Any] | None = None) -> float:
        """Write a Hugging Face folder ("hf") or ours ("qkv"), read it back and compare; the largest difference found.

        Where `transformers` is installed, a Hugging Face folder is opened with it as well, and must give the same texts,
        labels or tags. `say` is called with one line about that check.
        """
        from qkv.check_export import check_export

        def check(folder: Path) -> None:
            line = check_export(folder, self)
            if say is not None:
                say(line)

        return export.export(
            path, to, self.config, self.network, self.tokenizer, self.target_tokenizer, self.defaults, check
        )

    # --- what is given, checked

    def batch(self, ids: Ids, target_ids: Ids | None = None, mask: Ids | None = None, segments: Ids | None = None,
              source_mask: Ids | None = None, encoding: bool = False) -> Batch:  # fmt: skip
        """What the network reads, on its device; anything it could not read is an error in words."""
        return batch_of(self.config, ids, target_ids, mask, segments, source_mask, encoding).to(self.device)
