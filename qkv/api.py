"""`qkv.load(path)` -> Model: one object for every trained model, wherever it comes from.

```python
model = qkv.load("folder")
model.logits([[1, 2, 3], [4, 5]])              # (2, 3, V), the shorter row padded on the right
print("".join(model.generate("Once upon a time")))
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.base_model import BaseModel
from qkv.config import ModelConfig
from qkv.config.usage import DecodingDefaults
from qkv.convert import detect, export, folder
from qkv.convert.tokenizer_files import unread_tokenizer_files
from qkv.engine.quantize import has_integers
from qkv.errors import QkvError
from qkv.generate.beam import BeamParams
from qkv.generate.translate import Translation, TranslationParams
from qkv.tasks.summary import Summarizer
from qkv.vectors.store import holds_vectors

if TYPE_CHECKING:
    from qkv.look.embedding_space import Neighbours
    from qkv.look.look import Look
    from qkv.look.probe import Contexts
    from qkv.tasks.classifier import Classification
    from qkv.tasks.fill import Filled
    from qkv.tasks.inspection import Looker
    from qkv.tasks.tagging import Tagged
    from qkv.tasks.text_scores import TextScore


def load(path: str | Path, device: str = "auto", precision: str | None = None) -> Model:
    """Open a trained model.

    path: the folder of a run (its best model), one of our model folders, a Hugging Face folder, a .gguf file or a llama2.c
        .bin file. Word vectors are opened by qkv.load_vectors.
    device: "cpu", "cuda" or "mps"; "auto" takes a GPU where there is one.
    precision: "int8" rounds matrices to int8: a quarter of the memory and faster on a CPU, not exact; "float32" converts
        quantised weights. None: as they are stored.
    """
    if holds_vectors(Path(path)):
        raise QkvError(f"{path} holds word vectors, not a network: open them with qkv.load_vectors({str(path)!r})")
    config, network, tokenizer = detect.open_model(path, precision)
    model = Model(config, network, tokenizer, device, detect.open_target(path), detect.open_usage(path))
    model.unread = [] if tokenizer is not None else unread_tokenizer_files(path)
    return model


def read_config(path: str | Path) -> ModelConfig:
    """Read the configuration of what `load` would open, without its weights."""
    return detect.open_config(path)


def check_texts(texts: Sequence[str], method: str) -> None:
    """Refuse what is not a list of texts, such as one text."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise QkvError(f"{method} takes a list of texts, given {type(texts).__name__}: pass [text]")


def beam_params(defaults: DecodingDefaults, beam: int | None, length_penalty: float | None, length_formula: str | None,
                early: bool | None = None, **others: Any) -> BeamParams:  # fmt: skip
    """Return settings of beam search: those given, else the model's defaults, else beam 4 and length_penalty 1."""
    own = defaults.resolve(
        beam=(beam, 4), length_penalty=(length_penalty, 1.0), length_formula=(length_formula, "power"), early=(early, False)
    )  # fmt: skip
    return BeamParams(own.pop("beam"), **own, **others)


class Model(BaseModel):
    """A trained network with its configuration and tokenizer, and one method per task: `translate`, `summarize`, `classify`,
    `fill`, `tag`, `answer`, `describe`, `generate`, `embed`, `score`; `look` opens it up. A method that the network has no head for is an
    error that says so."""

    # --- translating

    def translate(self, texts: Sequence[str], beam: int | None = None, length_penalty: float | None = None, n_best: int = 1,
                  max_length: int | None = None, prefix: str | Sequence[str] | None = None,
                  constraints: Sequence[Sequence[str]] | None = None, alignments: bool = False, scores: bool = False,
                  batch_tokens: int = 2048, *, min_length: int | None = None, groups: int = 1, diversity: float = 0.5,
                  no_repeat_ngram: int | None = None, repetition_penalty: float = 1.0, early: bool | None = None,
                  length_formula: str | None = None, fast: bool = True) -> list[Any]:  # fmt: skip
        """Translate some texts, in their order.

        Returns strings; with scores, alignments or n_best > 1 Translations (text, score, log_prob, tokens,
        token_log_probs, alignment, n_best, problem). A text that cannot be translated (over `config.max_length` tokens,
        not tokenizable) gives an empty one, and a Translation says why in `problem`. A setting that is None is the model's own
        default (`model.defaults`), else beam 4, length_penalty 1 and no bounds.

        texts: a list of texts.
        beam: hypotheses kept per text; 1 = greedy.
        length_penalty: the score of a hypothesis is its log-probability / length^length_penalty: above 0 favours long
            translations, below 0 short ones.
        length_formula: "power" as above, or "gnmt": ((5 + length) / 6)^length_penalty (Wu et al. 2016).
        n_best: how many translations of each text, at most `beam`.
        max_length: longest translation in tokens; None = twice the source and 20 more.
        prefix: how each translation begins: one text for all, or a list with one per text.
        constraints: for each text a list of words or phrases that must occur in its translation.
        alignments: also which source word each target word comes from, as (source, target) numbers of words.
        scores: return Translations, with log-probabilities.
        batch_tokens: source tokens, with padding, that are translated at once; memory grows with it.
        min_length: shortest translation in tokens, the end token counted.
        groups, diversity: diverse beam search: the beam in so many groups, and what a token costs for each earlier group
            that has just written it.
        no_repeat_ngram: forbid repeated n-grams of this size; 0 = allow them.
        repetition_penalty: multiply the log-probability of a token that occurred before (with beam 1 its logit, which is
            divided where it is positive, as in Hugging Face); 1 = none.
        early: stop when `beam` hypotheses have ended, although a better one may follow.
        fast: on a CPU, use a packed copy of the network.
        """
        check_texts(texts, "translate")
        chosen = {"n_best": n_best, "groups": groups, "diversity": diversity}
        search = beam_params(self.defaults, beam, length_penalty, length_formula, early, **chosen)
        own = self.defaults.resolve(
            min_length=(min_length, 0), no_repeat_ngram=(no_repeat_ngram, 0), max_length=(max_length, None)
        )
        prefixes = [prefix] * len(texts) if isinstance(prefix, str) else prefix or ()
        how = TranslationParams(search, own["max_length"], own["min_length"], own["no_repeat_ngram"], repetition_penalty, prefixes,
                      constraints or (), bool(self.defaults.forced_end), alignments, None, batch_tokens,
                      self.defaults.extra_length if max_length is None else None)  # fmt: skip
        found = self.translator(fast).translate(texts, how)
        return found if scores or alignments or n_best > 1 else [one.text for one in found]

    def summarize(self, texts: Sequence[str], beam: int | None = None, length_penalty: float | None = None,
                  max_length: int | None = None, no_repeat_ngram: int | None = None, fast: bool = True,
                  length_formula: str | None = None) -> list[Translation]:  # fmt: skip
        """Write a summary of each text; of a text that is longer than the model reads, the beginning counts.

        texts: a list of texts. beam, length_penalty, length_formula, fast: as in `translate`. max_length: longest summary in tokens.
        no_repeat_ngram: forbid repeated n-grams of this size; 0 = allow them.
        A setting that is None is the model's own default, else beam 4, length_penalty 1, max_length 64, no_repeat_ngram 3.
        """
        check_texts(texts, "summarize")
        writer = Summarizer(self.config, self.packed(fast), self.words(), self.target_words())
        search = beam_params(self.defaults, beam, length_penalty, length_formula)
        own = self.defaults.resolve(
            max_length=(max_length, 64), min_length=(None, 0), no_repeat_ngram=(no_repeat_ngram, 3)
        )
        how = TranslationParams(search, own["max_length"], own["min_length"], own["no_repeat_ngram"],
                      forced_end=bool(self.defaults.forced_end))  # fmt: skip
        return writer.translate(texts, how)

    # --- classifying, tagging and answering

    def classify(self, texts: Sequence[Any], top_k: int | None = None) -> list[Classification]:
        """Classify texts, pairs of texts or images: (label, probability, probabilities, score, cut) for each.

        texts: a list of texts, of (first, second) pairs, or of images (paths, Pillow images, arrays of uint8 pixels).
        top_k: probabilities of the k likeliest labels only.
        A regression gives `score` in place of a label. `cut`: the text had over `config.max_length` tokens.
        """
        from qkv.tasks.classifier import Classifier

        if self.config.image_size is not None:
            from qkv.tasks.images import ImageClassifier

            return ImageClassifier(self.config, self.packed()).classify(texts, top_k)
        return Classifier(self.config, self.packed(), self.words()).classify(texts, top_k)

    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[Filled]:
        """Predict the masked words of each text: (text, gaps, problem), where a gap is a list of (word, probability).

        texts: a list of texts with [MASK] or <mask> in them. top_k: words per gap.
        """
        from qkv.tasks.fill import Filler

        return Filler(self.config, self.packed(), self.words()).fill(texts, top_k)

    def tag(self, sentences: Sequence[str | Sequence[str]]) -> list[list[Tagged]]:
        """Tag every word of some sentences: a list of (word, tag, probability) for each.

        sentences: a list of texts, which are cut into words and marks, or of lists of words.
        """
        from qkv.tasks.tagging import Tagger

        if isinstance(sentences, str):
            raise QkvError("tag takes a list of sentences, given one text: pass [text]")
        return Tagger(self.config, self.packed(), self.words()).tag(sentences)

    def answer(self, question: str | Sequence[str], context: str | Sequence[str], no_answer: bool = False,
               max_answer: int = 30) -> Any:  # fmt: skip
        """Find the words of a text that answer a question: (text, score, start, end), context[start:end] == text.

        question: one question, or a list of them, which gives a list of answers.
        context: the text, or with a list of questions a list with one each.
        no_answer: allow the model to say that there is none (an empty text).
        max_answer: longest answer in tokens.
        """
        from qkv.tasks.answering import QuestionAnswerer

        reader = QuestionAnswerer(self.config, self.packed(), self.words())
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

    # --- probabilities of texts

    def score(
        self, texts: Sequence[str], sources: Sequence[Any] | None = None, end: bool | None = None
    ) -> list[TextScore]:
        """Return the log-probability of each text with its perplexity: (log_prob, perplexity, tokens, token_log_probs, ...).

        texts: a list of texts. sources: of an encoder-decoder the source of each text (or the path of its image); of a decoder an
            optional context, after which the text is scored. end: score the end token too; None = yes where there are a source
            and a target. A masked model gives pseudo-log-likelihoods: each token given all others.
        """
        from qkv.tasks.text_scores import TextScorer

        if isinstance(texts, str) or isinstance(sources, str):
            raise QkvError("score takes lists of texts, given one text: pass [text]")
        source = None if self.config.image_size is not None else self.words()
        return TextScorer(self.config, self.packed(), source, self.target_words(), self.task).score(texts, sources, end)

    # --- images

    def describe(self, pictures: Sequence[Any], beam: int | None = None, length_penalty: float | None = None, n_best: int = 1,
                 max_length: int | None = None, fast: bool = True, length_formula: str | None = None
                 ) -> list[Translation]:  # fmt: skip
        """Write a caption of each picture.

        pictures: a list of paths, Pillow images or arrays of uint8 pixels. beam, length_penalty, length_formula, n_best,
            fast: as in `translate`. max_length: longest caption in tokens. A setting that is None is the model's own default,
            else beam 4, length_penalty 1.
        """
        from qkv.tasks.captions import Captioner, check

        if isinstance(pictures, str | Path):
            raise QkvError("describe takes a list of images, given one path: pass [path]")
        check(self.config)
        captioner = Captioner(self.config, self.packed(fast), self.target_words())
        search = beam_params(self.defaults, beam, length_penalty, length_formula, early=False, n_best=n_best)
        return captioner.describe(pictures, search, self.defaults.resolve(max_length=(max_length, None))["max_length"])

    # --- looking inside

    def look(self, given: Any, target: str | None = None, pair: str | None = None, summary: bool | None = None) -> Look:
        """Run the network on one input and open it up: `look.attention()`, `look.lens()`, `look.attribution()` ...

        given: a text, ids, or a picture.
        target: of an encoder-decoder, what it writes; without one its own greedy output.
        pair: of a classifier of pairs the second text; of a reader the question about the text.
        summary: of a decoder: include the summary that it writes behind the text. Default: if it was trained for summaries; one
            that was trained to translate always includes its translation.
        """
        return self.looker().look(given, target, pair, self.task == "summary" if summary is None else summary)

    def neighbours(self, word: str, k: int = 10) -> Neighbours:
        """Return the k words whose (static) embeddings are nearest to that of a word, by cosine."""
        return self.looker().neighbours(word, k)

    def contexts(self, word: str, texts: Sequence[str], layer: int = -1) -> Contexts:
        """Compare the vectors of one word in several texts, at some layer, with each other and with its static embedding."""
        return self.looker().contexts(word, texts, layer)

    def looker(self) -> Looker:
        from qkv.tasks.inspection import Looker

        return Looker(self.config, self.network, self.tokenizer, self.target_tokenizer, self.task)

    # --- keeping

    def save(self, path: str | Path) -> None:
        """Write a model folder: config.json (with task, languages and decoding defaults), model.safetensors, tokenizer.json."""
        folder.save(path, self.config, self.network, self.tokenizer, self.target_tokenizer, self.usage)

    def export(self, path: str | Path, to: str = "hf", say: Callable[[str], Any] | None = None) -> float:
        """Write a Hugging Face folder (to="hf") or ours ("qkv"), read it back and compare; return the largest difference.

        Where `transformers` is installed, a Hugging Face folder is opened with it as well, and must give the same texts,
        labels or tags. say: called with one line about that check.
        """
        from qkv.check_export import check_export

        if has_integers(self.network):
            raise QkvError('this model is quantised: load it with precision="float32" to export it')

        def check(folder: Path) -> None:
            line = check_export(folder, self)
            if say is not None:
                say(line)

        return export.export(
            path, to, self.config, self.network, self.tokenizer, self.target_tokenizer, self.usage, check
        )
