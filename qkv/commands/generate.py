"""`qkv generate`: generate text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Folder, Json, PrecisionOption, writing
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.api import Model
    from qkv.generate.logits_processor import LogitsProcessor
    from qkv.generate.sampling import SamplingParams

PROMPT = typer.Argument(metavar="[PROMPT]", help="The text to continue; default: standard input.")
CHAT = typer.Option("--chat", help="Treat the prompt as a chat message: apply the model's chat template.")
TRUNCATE = typer.Option("--truncate", help="Keep the end of a prompt that is longer than the context.")
SLIDE = typer.Option("--slide", help="When the context is full, continue from its last half.")
Temperature = Annotated[float, typer.Option(min=0.0, help="Softmax temperature; 0 = greedy decoding.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most likely tokens.")]
TOP_P = typer.Option(min=0.0, max=1.0, help="Nucleus sampling: the most likely tokens up to total probability p.")
MIN_P = typer.Option(min=0.0, max=1.0, help="Sample from tokens with at least p times the top token's probability.")
REPETITION = typer.Option(
    help="Above 1: penalise tokens that occurred before, prompt included (CTRL); in greedy decoding too."
)
PRESENCE = typer.Option(min=-2.0, max=2.0, help="Subtract from the logit of each token generated before.")
FREQUENCY = typer.Option(min=-2.0, max=2.0, help="Subtract from a logit once per time its token was generated.")
TopP = Annotated[float | None, TOP_P]
MinP = Annotated[float, MIN_P]
RepetitionPenalty = Annotated[float, REPETITION]
PresencePenalty = Annotated[float, PRESENCE]
FrequencyPenalty = Annotated[float, FREQUENCY]
NoRepeat = Annotated[int, typer.Option(min=0, help="Forbid repeated n-grams of this size, prompt included; 0 = off.")]
DRAFT = typer.Option(
    metavar="FOLDER|ngram",
    help="Speculative decoding, exact but faster: a smaller model with the same vocabulary proposes tokens, or ngram copies "
    "what followed the same tokens earlier in the text.",
)
Draft = Annotated[str | None, DRAFT]
DraftTokens = Annotated[int, typer.Option(min=1, max=64, help="Number of tokens that a draft proposes at a time.")]
Seed = Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same text.")]


def run(
    folder: Folder,
    prompt: Annotated[str | None, PROMPT] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens to generate.")] = 100,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    no_repeat_ngram: NoRepeat = 0,
    seed: Seed = None,
    n: Annotated[int, typer.Option("--n", min=1, max=1000, help="Number of texts to sample.")] = 1,
    chat: Annotated[bool, CHAT] = False,
    system: Annotated[str | None, typer.Option(help="System message (implies --chat).")] = None,
    truncate: Annotated[bool, TRUNCATE] = False,
    slide: Annotated[bool, SLIDE] = False,
    draft: Draft = None,
    draft_tokens: DraftTokens = 4,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
) -> None:
    """Generate text from a prompt, token by token (an encoder-decoder translates the prompt).

    A prompt longer than the model's context is an error; --truncate keeps its
    end. A model that cannot exceed its context stops there; --slide continues from
    its last half. Several texts (--n) are separated by ---, with --json one per line.
    With --draft, standard error reports how many of the drafted tokens were accepted.

    [dim]qkv generate my-model "Once upon a time" --temperature 0.8 --top-k 40 --seed 1[/]
    [dim]echo "What is the capital of France?" | qkv generate chat-model --chat[/]
    [dim]qkv generate runs/shakespeare-char "ROMEO:" --temperature 0.8 --slide[/]
    [dim]qkv generate large-model "Once upon a time" --draft small-model[/]
    """
    from qkv.api import load

    if n > 1 and temperature == 0:
        raise QkvError(f"--n {n}: with greedy decoding all texts are the same; set --temperature above 0")
    penalties = (repetition_penalty, presence_penalty, frequency_penalty, no_repeat_ngram)
    params, processor = settings(temperature, top_k, top_p, min_p, penalties)
    text = read_prompt(prompt)
    model = load(folder, device.value, precision)
    drafts = {"draft": load_draft(draft, device.value), "draft_tokens": draft_tokens}
    ids = fit_prompt(model, model.prompt_ids(text, chat, system), truncate, max_new_tokens)
    with writing():
        for number in range(n):
            one = One(model, ids, max_new_tokens, slide, processor, drafts)
            one.print(text, params, None if seed is None else seed + number, as_json, first=number == 0)


def settings(temperature: float, top_k: int | None, top_p: float | None, min_p: float,
             penalties: tuple[float, float, float, int]) -> tuple[SamplingParams, LogitsProcessor]:  # fmt: skip
    """Return how to sample; `penalties`: of repetition, presence and frequency, and the size of n-grams that are not repeated."""
    from qkv.generate.logits_processor import LogitsProcessor
    from qkv.generate.sampling import SamplingParams

    repetition, presence, frequency, ngram = penalties
    processor = LogitsProcessor(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency,
                                no_repeat_ngram=ngram)  # fmt: skip
    return SamplingParams(temperature, top_k or 0, 1.0 if top_p is None else top_p, min_p), processor


def read_prompt(prompt: str | None) -> str:
    """Return the prompt, from standard input if it is None."""
    if prompt is None and sys.stdin is None:
        raise QkvError("no prompt and no standard input: give a prompt")
    return sys.stdin.read().rstrip("\n") if prompt is None else prompt


def fit_prompt(model: Model, ids: list[int], truncate: bool, max_new_tokens: int) -> list[int]:
    """Return a prompt that fits the context: with `truncate` its end, otherwise a longer one is an error."""
    if truncate:
        return model.last_ids(ids, max_new_tokens)
    if model.context is not None and len(ids) > model.context:
        raise QkvError(
            f"the prompt has {len(ids)} tokens, but the model's context is {model.context}: shorten the prompt, or keep its end "
            "with --truncate"
        )
    return ids


def load_draft(draft: str | None, device: str) -> Model | str | None:
    """Load the model of --draft; "ngram" and None are returned as they are."""
    from qkv.api import load
    from qkv.pretrained import find

    return draft if draft in (None, "ngram") else load(find(draft), device=device)


class One:
    """Generation of one text, and why it ended."""

    def __init__(self, model: Model, ids: list[int], most: int, slide: bool, processor: Any, drafts: dict[str, Any]):
        self.model, self.ids, self.most, self.slide, self.processor = model, ids, most, slide, processor
        self.drafts = drafts
        """The arguments `draft` and `draft_tokens` of `tokens`."""
        self.written = 0

    def pieces(self, params: Any, seed: int | None) -> Iterator[str]:
        def counted() -> Iterator[int]:
            for token in self.model.tokens(
                self.ids, self.most, params, seed, self.slide, self.processor, **self.drafts
            ):
                self.written += 1
                yield token

        return self.model.texts(counted(), self.ids, ())

    def print(self, prompt: str, params: Any, seed: int | None, as_json: bool, first: bool) -> None:
        """Generate the text and print it, as a stream or as JSON, and a note on standard error if it was cut short."""
        pieces = self.pieces(params, seed)
        if as_json:
            text = "".join(pieces)
            fields = {"prompt": prompt, "text": text, "prompt_tokens": len(self.ids), "tokens": self.written,
                      "ended": self.ended(), "seed": seed}  # fmt: skip
            if (counts := self.model.speculation) is not None:
                fields |= {"drafted_tokens": counts.drafted, "accepted_tokens": counts.accepted}
            print(json.dumps(fields, ensure_ascii=False), flush=True)
        else:
            if not first:
                print("---")
            for piece in pieces:
                print(piece, end="", flush=True)
            print(flush=True)
        for note in filter(None, (self.note(), str(self.model.speculation or ""))):
            print(note, file=sys.stderr)

    def ended(self) -> str:
        if self.written == self.most:
            return "length"
        return "context" if self.written == self.model.room(self.ids) and not self.slide else "end"

    def note(self) -> str:
        most = self.model.context
        if self.ended() == "context":
            return f"the context of {self.model.config.max_length} tokens is full: --slide continues from its last half"
        if most is not None and not self.slide and len(self.ids) + self.written > most:
            return f"the text is longer than the model's context of {most} tokens: --slide stays within it"
        return ""
