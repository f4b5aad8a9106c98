"""BaseModel: a network with its configuration and tokenizers. Ids in, numbers out; prompts in, text out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.config.usage import DecodingDefaults, Usage
from qkv.device import pick_device
from qkv.engine.pack import pack
from qkv.engine.quantize import parameter_count
from qkv.errors import QkvError
from qkv.generate.conversation import Conversation
from qkv.generate.detokenize import cut_at_stop, detokenize
from qkv.generate.logits_processor import NO_PROCESSING, LogitsProcessor
from qkv.generate.parallel import iterate_on_free_cores
from qkv.generate.prefix_cache import slide as slide_context
from qkv.generate.sampling import GREEDY, SamplingParams
from qkv.generate.search import stream
from qkv.generate.sequence import Sampler
from qkv.generate.speculative import (
    DRAFT_TOKENS,
    Drafter,
    DraftModel,
    NgramLookup,
    SpeculationStats,
    SpeculativeDecoder,
    check_model,
    check_vocabulary,
    readable_tokens,
)  # fmt: skip
from qkv.generate.translate import MIN_WIDTH, Translator
from qkv.look.residual_stream import layer_outputs
from qkv.models.build import Network
from qkv.models.decoder import Decoder
from qkv.models.inputs import Ids, batch_of, carries, has_fixed_length
from qkv.parts.tap import has_hooks
from qkv.tasks.embed import Embedder, Tokens
from qkv.text.tokenizer import Tokenizer


class BaseModel:
    """A network ready for use, with its configuration and (where there is one) its tokenizer."""

    def __init__(self, config: ModelConfig, network: Network, tokenizer: Tokenizer | None = None, device: str = "auto",
                 target_tokenizer: Tokenizer | None = None, usage: Usage = Usage()):  # fmt: skip
        self.config = config
        self.network = network.to(pick_device(device)).eval()
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
        """Of the target side, where that has a vocabulary of its own."""
        self.usage = usage
        """What it is for and how it is used, as far as its folder says so."""
        self.unread: list[str] = []
        """Files of a tokenizer that were found but are of a kind not read here."""
        self.twin: tuple[tuple[int, ...], Any] = ((), None)
        """A packed copy of the network, and the versions of the weights it was made from."""
        self.last_translator: Translator | None = None
        self.speculation: SpeculationStats | None = None
        """Counts of the last text that was generated with a draft: drafted, accepted, tokens, calls, acceptance_rate."""

    def __repr__(self) -> str:
        """Model(encoder-decoder, 1.05 M parameters, translation en-de, vocabulary 1,000, cpu)."""
        c = self.config
        count = parameter_count(self.network)
        units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
        size = next((f"{count / n:.3g} {unit}" for n, unit in units if count >= n), str(count))
        task = f"{self.task or f'head {c.head}'}{' ' + '-'.join(self.languages) if self.languages else ''}"
        classified = c.head in ("classes", "classes-words", "tags") and c.n_classes > 1
        classes = [f"{c.n_classes} classes"] if classified else []
        words = f"{c.vocab_size:,}" if c.target_size == c.vocab_size else f"{c.vocab_size:,} and {c.target_size:,}"
        reads = [f"images {c.image_size} x {c.image_size}"] if c.image_size else []
        vocabulary = [f"vocabulary {words}{'' if self.tokenizer else ', no tokenizer'}"] if c.vocab_size else []
        parts = [c.family, f"{size} parameters", task, *classes, *reads, *vocabulary, str(self.device)]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def task(self) -> str | None:
        """The task it was trained for; None where its folder does not say."""
        return self.usage.task

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language of a translator."""
        return self.usage.languages

    @property
    def defaults(self) -> DecodingDefaults:
        """How it decodes unless the caller says otherwise."""
        return self.usage.decoding

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    # --- numbers in, numbers out

    @torch.no_grad()
    def logits(self, ids: Ids, target_ids: Ids | None = None, *, mask: Ids | None = None, segments: Ids | None = None,
               source_mask: Ids | None = None) -> Tensor:  # fmt: skip
        """Return the scores of the head: (B, T, V) words, (B, n) classes, (B, T, n) tags.

        ids: token ids, a list of rows of any lengths or a tensor (B, T); of an encoder-decoder the source; of a vision
            model images (B, channels, height, width).
        target_ids: encoder-decoder: what the decoder reads, beginning with its start token.
        mask, source_mask: (B, T) and (B, S), True = real token. Rows of unequal length get theirs by themselves; scores
            at padded places have no meaning.
        segments: (B, T), 0 in the first text and 1 in the second, of a model with segments (BERT).
        """
        return self.network(self.batch(ids, target_ids, mask, segments, source_mask)).logits

    @torch.no_grad()
    def hidden(self, ids: Ids, target_ids: Ids | None = None, *, mask: Ids | None = None, segments: Ids | None = None,
               source_mask: Ids | None = None) -> list[Tensor]:  # fmt: skip
        """Return n_layers + 1 tensors (B, T, C): the embeddings, what each block gives, the last one after the final norm.

        ids, target_ids, mask, segments, source_mask: as in `logits`. Of an encoder-decoder they are the encoder's with
            `ids` alone, the decoder's with `target_ids`. A recurrent stack has no blocks: the first and the last tensor.
        """
        source_only = self.config.family == "encoder-decoder" and target_ids is None
        batch = self.batch(ids, target_ids, mask, segments, source_mask, encoding=source_only)
        return layer_outputs(self.network, batch, source_only)

    def embed(self, texts: Sequence[str] | Tensor, pooling: str = "mean", normalize: bool = True,
              truncate: bool = False, batch_size: int = 32, layer: int = -1) -> Tensor:  # fmt: skip
        """Return one vector per text or image, (N, C).

        texts: a list of texts, or images (N, channels, height, width).
        pooling: "mean" of the tokens' vectors, the first one ("cls") or the "last" one.
        normalize: scale each vector to length 1.
        truncate: cut a text over the model's max_length, before its last token; otherwise it is an error.
        batch_size: texts at once. layer: 0 = the embeddings, -1 = the last layer.
        """
        return self.embedder(layer, batch_size).embed(texts, pooling, normalize, truncate)

    def embed_tokens(self, texts: Sequence[str], normalize: bool = True, truncate: bool = False, batch_size: int = 32,
                     layer: int = -1) -> list[Tokens]:  # fmt: skip
        """Return for each text its tokens and a vector for each of them, (T, C); arguments as in `embed`."""
        return self.embedder(layer, batch_size).tokens(texts, normalize, truncate)

    def embedder(self, layer: int = -1, batch_size: int = 32) -> Embedder:
        tokenizer = self.tokenizer if self.config.image_size is not None else self.words()
        return Embedder(self.config, self.network, tokenizer, layer, batch_size, self.packed())

    # --- writing

    def generate(self, prompt: str | Ids, max_new_tokens: int = 100, temperature: float = 0.0, top_k: int | None = None,
                 top_p: float | None = None, seed: int | None = None, stop: Sequence[str] = (), chat: bool = False,
                 system: str | None = None, slide: bool = False, min_p: float = 0.0, repetition_penalty: float = 1.0,
                 presence_penalty: float = 0.0, frequency_penalty: float = 0.0, no_repeat_ngram: int = 0,
                 draft: BaseModel | str | None = None, draft_tokens: int = DRAFT_TOKENS) -> Iterator[Any]:  # fmt: skip
        """Continue a prompt token by token (encoder-decoder: write the target of this source).

        prompt: a text, which gives detokenize of text, or ids, which give ids without the end token.
        max_new_tokens: at most so many. temperature: 0 = greedy; above 0 tokens are drawn.
        top_k, top_p: draw from the k likeliest tokens, or from the smallest set with probability p.
        min_p: draw from the tokens with at least this share of the likeliest one's probability.
        seed: repeat the same draws. stop: strings that end the text and are left out of it.
        chat: the prompt is a message to an assistant, `system` the message before it.
        slide: where the context is full, continue from its last half instead of stopping.
        repetition_penalty: divide the positive and multiply the negative logits of tokens that occurred before, in the
            prompt too (CTRL, as in Hugging Face); 1 = none. It acts in greedy and in sampling.
        presence_penalty, frequency_penalty: subtract from the logits of generated tokens, once, or once for each
            occurrence (OpenAI), -2 to 2.
        no_repeat_ngram: forbid repeated n-grams of this size, the prompt counted; 0 = allow them.
        draft: speculative decoding: a smaller model with the same vocabulary, or "ngram", which copies what followed the same
            tokens earlier in the text, proposes `draft_tokens` tokens, and one call of the network checks them. Exact: the same
            tokens when greedy, the same distribution in sampling. `speculation` then has the counts.
        """
        textual = isinstance(prompt, str)
        ids: Ids = self.prompt_ids(prompt, chat, system) if isinstance(prompt, str) else prompt
        params = SamplingParams(temperature, top_k or 0, 1.0 if top_p is None else top_p, min_p)
        processor = LogitsProcessor(repetition_penalty=repetition_penalty, presence_penalty=presence_penalty,
                                    frequency_penalty=frequency_penalty, no_repeat_ngram=no_repeat_ngram)  # fmt: skip
        tokens = self.tokens(ids, max_new_tokens, params, seed, slide, processor, draft, draft_tokens)
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
        return cut_at_stop(detokenize(tokens, self.target_words(), before), [stop] if isinstance(stop, str) else stop)

    def chat(self, messages: Sequence[dict[str, str]], **how: Any) -> str:
        """Return the assistant's answer.

        messages: [{"role": "user", "content": "Hello"}, ...]; roles are system, user and assistant.
        how: max_new_tokens, temperature, seed, stop, penalties and the other settings of `generate`.
        """
        ids, stop = self.chat_ids(messages), how.pop("stop", ())
        return "".join(self.texts(self.generate(ids, **how), ids, stop)).strip()

    def conversation(self, system: str | None = None, max_new_tokens: int = 512, params: SamplingParams = GREEDY,
                     seed: int | None = None, processor: LogitsProcessor = NO_PROCESSING,
                     draft: BaseModel | str | None = None, draft_tokens: int = DRAFT_TOKENS) -> Conversation:  # fmt: skip
        """Start a conversation of several turns: `conversation.ask(text)` yields the pieces of each answer; `draft` as in `generate`."""
        speculative = None if draft is None else self.speculative_decoder(draft, draft_tokens)
        return Conversation(
            self.config, self.packed(), self.words(), system, max_new_tokens, params, seed, processor, speculative
        )

    def chat_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.words().chat(messages)

    def tokens(self, prompt: Ids, max_new_tokens: int, params: SamplingParams, seed: int | None, slide: bool = False,
               processor: LogitsProcessor = NO_PROCESSING, draft: BaseModel | str | None = None,
               draft_tokens: int = DRAFT_TOKENS) -> Iterator[int]:  # fmt: skip
        """Yield the ids that follow one prompt, up to an end token."""
        c = self.config
        if c.family == "encoder":
            raise QkvError("an encoder cannot generate text: generate needs a decoder or an encoder-decoder")
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
                f"the prompt has {batch.inputs.size(1)} tokens, but the model's context is {self.context}: shorten the prompt, or "
                "keep its end (--truncate)"
            )
        seed = int(torch.randint(2**31, (1,))) if seed is None else seed
        known: list[int] = batch.inputs[0].tolist()
        sliding = slide and isinstance(self.network, Decoder) and self.context is not None
        limit = max_new_tokens if sliding else int(min(max_new_tokens, self.room(known)))
        sampler = Sampler(limit, c.eos_ids, params, seed, processor=processor.for_prompt(known, c.eos_ids))
        if draft is not None and slide:
            raise QkvError("a draft cannot be combined with slide: a sliding context is recomputed")
        if draft is not None:
            tokens = self.speculative_decoder(draft, draft_tokens).generate(known, sampler)
        elif sliding and self.context is not None:
            tokens = slide_context(self.packed(), known, self.context, sampler)
        else:
            tokens = (token for (token,) in stream(self.packed(), batch, [sampler]) if token is not None)
        return (token for token in iterate_on_free_cores(tokens, c.d_model < MIN_WIDTH) if token not in c.eos_ids)

    def speculative_decoder(self, draft: BaseModel | str, draft_tokens: int = DRAFT_TOKENS) -> SpeculativeDecoder:
        """Return a decoder that generates with drafts of another model, or of "ngram" lookup in the text."""
        check_model(self.config)
        if draft_tokens < 1:
            raise QkvError(f"draft_tokens is at least 1, given {draft_tokens}")
        if isinstance(draft, BaseModel):
            check_model(draft.config, "the draft model")
            check_vocabulary(self.config, self.tokenizer, draft.config, draft.tokenizer)
            drafter: Drafter = DraftModel(draft.packed(), readable_tokens(draft.config))
        elif draft == "ngram":
            drafter = NgramLookup()
        else:
            raise QkvError(f'a draft is a model or "ngram", given {draft!r}')
        decoder = SpeculativeDecoder(self.packed(), drafter, draft_tokens, readable_tokens(self.config))
        self.speculation = decoder.stats
        return decoder

    @property
    def context(self) -> int | None:
        """The context of a decoder in tokens; None where none are too many: what it remembers is of fixed size."""
        return self.config.max_length if self.config.family == "decoder" and not carries(self.config) else None

    def room(self, ids: Sequence[int]) -> float:
        """How many tokens can follow these: all that the positions of a bounded model have room for."""
        read = len(ids) if self.config.family == "decoder" else len(self.start_ids())
        return self.config.max_length - read + 1 if has_fixed_length(self.config) else math.inf

    def start_id(self) -> int:
        if self.config.first_id is None:
            raise QkvError(
                "this model does not define the start token of the target: set start_id or bos_id in its configuration"
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
            raise QkvError("this model reads images, not texts")
        if self.tokenizer is None:
            found = f" of a supported format (found {', '.join(self.unread)})" if self.unread else ""
            raise QkvError(
                f"this model has no tokenizer{found}: pass token ids instead of text, or add tokenizer.json to its folder"
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

    def translator(self, fast: bool = True) -> Translator:
        """The translator of the network, packed or not; made once, and again when the network or a tokenizer has changed."""
        if self.config.family == "decoder" and self.task != "translation":
            raise QkvError(
                "this model of family 'decoder' was not trained to translate, only to continue a text: translating needs an "
                'encoder-decoder, or a decoder that was trained with task = "translation"'
            )
        network, kept = self.packed(fast), self.last_translator
        if kept is None or (kept.network, kept.source, kept.target) != (network, self.tokenizer, self.target_tokenizer):
            kept = self.last_translator = Translator(self.config, network, self.words(), self.target_words())
        return kept

    def packed(self, fast: bool = True) -> Any:
        """The network with its weights laid out for the processor; made once, and again when they have changed. If not
        `fast`, on a GPU, or while the network is inspected or heads are ablated, it is the network itself."""
        if not fast or self.device.type != "cpu" or has_hooks(self.network):
            return self.network
        versions = tuple(weight._version for weight in self.network.parameters())
        if self.twin[1] is None or self.twin[0] != versions:
            self.twin = versions, pack(self.network)
        return self.twin[1]

    # --- what is given, checked

    def batch(self, ids: Ids, target_ids: Ids | None = None, mask: Ids | None = None, segments: Ids | None = None,
              source_mask: Ids | None = None, encoding: bool = False) -> Batch:  # fmt: skip
        """What the network reads, on its device; anything it could not read is an error in words."""
        return batch_of(self.config, ids, target_ids, mask, segments, source_mask, encoding).to(self.device)
