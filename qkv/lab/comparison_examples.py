"""Examples D8-D12: two stacks or one, experts, features and ensembles, the quiz, and two claims of the lab."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.lab.example_steps import ExampleTable, Step
from qkv.models.cost import cost
from qkv.models.params import count
from qkv.parts.attention import Attention
from qkv.parts.masks import Mask
from qkv.parts.recurrent import RecurrentStack
from qkv.parts.scores import make_score
from qkv.parts.softmax import Softmax
from qkv.presets import preset


def millions(number: float) -> str:
    return f"{number / 1e6:,.1f} M"


# --- D8


def two_or_one(length: int = 32) -> list[tuple[str, ModelConfig, tuple[int, int, int], int | None]]:
    """Networks for the same task: `length` source and target tokens, only the target predicted."""
    both = preset("transformer-base")
    fields = {"family": "decoder", "tie": "output"}
    whole = (1, 2 * length, 0)
    return [
        ("encoder-decoder, 6 + 6 layers", both, (1, length, length), None),
        ("the same, shared layers", both.changed(share_encoder_decoder=True), (1, length, length), None),
        ("decoder-only, 6 layers", both.changed(**fields), whole, length),
        ("decoder-only, 12 layers", both.changed(n_layers=12, **fields), whole, length),
    ]


def d8() -> list[Step]:
    """Encoder-decoder or decoder-only (003): separate or shared parameters"""
    rows = []
    for name, config, shape, targets in two_or_one():
        total = cost(config, shape, targets).total
        rows.append([name, millions(total.parameters), millions(total.training)])
    return [
        "the 2017 base model on 32 source and 32 target tokens; a decoder alone reads both as one row and predicts the target",
        ExampleTable(["network", "parameters", "operations, training"], rows),
        "An encoder-decoder has twice the layers of a decoder-only network for nearly the same operations: each token passes through "
        "one of the two stacks. Trained on the same task (Transformer-ED against Transformer-D), and the costs by part:",
        "qkv lab run C17",
        "qkv cost transformer-base --length 32",
    ]


# --- D9


def d9() -> list[Step]:
    """Mixture of experts (000, 004): total and active parameters"""
    rows = []
    published = {0: "2.05, 36.2", 128: "1.93, 37.9", 256: "1.90, 38.8"}
    for experts in (0, 8, 128, 256):
        config = preset("transformer-dmca").changed(n_experts=experts)
        counted, total = count(config), cost(config, (1, 512, 0)).total
        rows.append([str(experts or "none"), millions(counted.parameters), millions(counted.active),
                     millions(total.forward / 512), published.get(experts, "")])  # fmt: skip
    return [
        "Transformer-DMCA, experts in place of each feed-forward layer, 2 per token; published: test perplexity and ROUGE-L "
        "(Liu et al. 2018, whose rows also differ in length and in the place of the experts); the rest is counted here",
        ExampleTable(["experts", "parameters", "active", "operations per token", "published"], rows),
        "the 2017 table lists another mixture of experts (Shazeer et al. 2017): BLEU 26.03 / 40.56 at 2.0e19 / 1.2e20 operations",
        "train one, and count one:",
        "qkv train stdlib-code --set model.n_experts=8",
        "qkv cost transformer-dmca --length 512 --set model.n_experts=128",
    ]


# --- D10


@torch.no_grad()
def context_of(bidirectional: bool) -> tuple[bool, bool]:
    """Whether the vector of a middle word depends on the first and on the last word."""
    torch.manual_seed(0)
    stack = RecurrentStack("lstm", 8, 1, dropout=0.0, bidirectional=bidirectional).eval()
    x = torch.randn(1, 5, 8)
    mask = Mask(5, causal=not bidirectional)

    def depends(place: int) -> bool:
        other = x.clone()
        other[:, place] += 1
        return not torch.equal(stack(x, mask)[0][:, 2], stack(other, mask)[0][:, 2])

    return depends(0), depends(4)


@torch.no_grad()
def ensemble_gaps() -> tuple[float, float]:
    """Difference of one network with averaged weights to the geometric mean of two networks: linear, and with a hidden layer."""
    torch.manual_seed(0)
    x = torch.randn(8)
    first, second = torch.randn(2, 5, 8)
    inner = torch.randn(2, 8, 8)

    def normalise(p: Tensor) -> Tensor:
        return p / p.sum()

    def geometric(logits: list[Tensor]) -> Tensor:
        return normalise(torch.stack([z.softmax(-1).log() for z in logits]).mean(0).exp())

    linear = ((first + second) / 2 @ x).softmax(-1), geometric([first @ x, second @ x])
    hidden = [w @ torch.tanh(u @ x) for w, u in ((first, inner[0]), (second, inner[1]))]
    averaged = ((first + second) / 2 @ torch.tanh(inner.mean(0) @ x)).softmax(-1)
    return float((linear[0] - linear[1]).abs().max()), float((averaged - geometric(hidden)).abs().max())


def d10() -> list[Step]:
    """Features and ensembles (000, 004): ELMo beside BERT, the 2017 table"""
    one, both = context_of(False), context_of(True)
    answers = {"LSTM language model": one, "bidirectional LSTM": both}
    rows = [[name, *("yes" if depends else "no" for depends in found)] for name, found in answers.items()]
    linear, hidden = ensemble_gaps()
    published = [["BiLSTM + ELMo", "71.0"], ["GPT", "75.1"], ["BERT base", "79.6"], ["BERT large", "82.1"]]
    return [
        "does the vector of word 3 of 5 depend on the first and the last word?",
        ExampleTable(["", "first", "last"], rows),
        ExampleTable(["published, GLUE average", ""], published),
        'In qkv: family = "encoder", recurrent = "lstm", bidirectional = true, head = "masked" pre-trains a bidirectional LSTM, and '
        "qkv embed FOLDER --layer N gives features of any layer for another model. ELMo's own objective, two language models in opposite "
        "directions with a learned mix of layers, is not implemented.",
        "ensembles average the predictions of several models; qkv average averages the weights of one run's last checkpoints:",
        f"  the same for one linear layer (difference {linear:.0e} to the geometric mean), not with a hidden layer ({hidden:.2f})",
        "Ensembles of models (GNMT 26.30, ConvS2S 26.36 BLEU in the 2017 table) and convolutional sequence models are not implemented.",
    ]


# --- D11


def layer_costs(d: int = 512, length: int = 64) -> dict[str, tuple[int, int, int]]:
    """Parameters, operations per token and serial steps of one layer of width d over so many tokens."""
    fields = {"family": "decoder", "vocab_size": 1, "d_model": d, "n_layers": 1, "position": "none"}
    attention = ModelConfig(**fields, n_heads=8, d_ff=4 * d)  # type: ignore[arg-type]
    lstm = ModelConfig(**fields, recurrent="lstm")  # type: ignore[arg-type]
    found = {}
    for name, config, parts, steps in (
        ("self-attention alone", attention, ("attention projections", "attention scores"), 1),
        ("Transformer layer", attention, ("attention projections", "attention scores", "feed-forward", "norms"), 1),
        ("LSTM layer", lstm, ("recurrent cells",), length),
    ):
        own = [one for one in cost(config, (1, length, 0)).parts if one.part in parts]
        found[name] = sum(one.parameters for one in own), sum(one.forward for one in own) // length, steps
    return found


@torch.no_grad()
def order_gaps() -> tuple[float, float]:
    """Change of each word's output when the words are reversed: self-attention without positions, and an LSTM."""
    torch.manual_seed(0)
    x, order = torch.randn(1, 6, 8), torch.arange(5, -1, -1)
    attention = Attention(8, 1, 1, 8, Softmax(make_score("scaled-dot", 1, 8)), "none")
    lstm = RecurrentStack("lstm", 8, 1, dropout=0.0).eval()
    mask = Mask(6)
    layers = (lambda y: attention(y, mask)[0]), (lambda y: lstm(y, mask)[0])
    gaps = [float((layer(x) - layer(x[:, order])[:, order]).abs().max()) for layer in layers]
    return gaps[0], gaps[1]


def d11() -> list[Step]:
    """The quiz (001): operations, parallel computation, parameters, position"""
    rows = [[name, millions(p), millions(o), str(s)] for name, (p, o, s) in layer_costs().items()]
    attention, lstm = order_gaps()
    return [
        "one layer of width 512 over 64 tokens:",
        ExampleTable(["layer", "parameters", "operations per token", "serial steps"], rows),
        "(a) fewer operations? Not a Transformer layer: 12 d^2 + 2 n d multiply-adds per token against 8 d^2 of an LSTM",
        "(b) easier to parallelise? Yes: 1 serial step instead of n. This is the correct answer",
        "(c) fewer parameters? No: 12 d^2 against 8 d^2; self-attention alone has 4 d^2",
        f"(d) better at positions? No: reversing the words changes self-attention's outputs by {attention:.0e}, an LSTM's by {lstm:.2f}",
    ]


# --- D12


def d12() -> list[Step]:
    """Two claims (003, 004): fewer training steps; layer norm as a regulariser"""
    return [
        "Both are experiments. Fewer training steps: operations and updates of five translators",
        "qkv lab run C16",
        "Layer norm stabilises, speeds up, regularises: trained with and without it",
        "qkv lab run C14",
        "Any recipe of your own",
        "qkv ablate demo --vary model.norm=layer,none --seeds 3",
    ]
