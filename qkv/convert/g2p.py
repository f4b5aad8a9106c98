"""g2p_en's pronunciation model (Park and Kim 2019): a GRU encoder-decoder from the letters of a word to its phonemes.

It comes as one .npz of twelve float32 arrays and is the smallest real network that a recurrent stack can be held
against. Its gates stand in torch's order (r, z, n), so every array is taken over as it is.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.config import ModelConfig
from qkv.errors import FileError

LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *(
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 "
    "EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 "
    "V W Y Z ZH"
).split())  # fmt: skip

MAX_BYTES = 64_000_000
"""Refuse larger files; the real one unpacks to 3.3 MB."""

CELL = {"w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0"}
NAMES = {
    "enc_emb": "source.tokens.weight", "dec_emb": "target.tokens.weight", "fc_w": "head.weight", "fc_b": "head.bias",
    **{f"enc_{theirs}": f"encoder.cells.{ours}" for theirs, ours in CELL.items()},
    **{f"dec_{theirs}": f"decoder.cells.{ours}" for theirs, ours in CELL.items()},
}  # fmt: skip
"""Their array -> our parameter."""


def read_g2p(path: str | Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the weights, under our names, of g2p_en's checkpoint20.npz."""
    arrays = read_npz(Path(path))
    problems = [f"{name} is missing" for name in NAMES if name not in arrays]
    problems += [f"{name} is unknown" for name in arrays if name not in NAMES]
    if not problems:
        width = arrays["fc_w"].shape[-1] if arrays["fc_w"].size else 0
        problems = [
            f"{name} is {arrays[name].dtype} {arrays[name].shape}, expected float32 {shape}"
            for name, shape in shapes(width).items()
            if width == 0 or arrays[name].shape != shape or arrays[name].dtype != np.float32
        ]
    if problems:
        raise FileError(f"{path} is not g2p_en's network ({'; '.join(problems)}): give its checkpoint20.npz")
    return config(width), {ours: torch.from_numpy(arrays[theirs]) for theirs, ours in NAMES.items()}


def config(width: int) -> ModelConfig:
    """One GRU layer on each side; the encoder's last hidden vector starts the decoder."""
    return ModelConfig(
        family="encoder-decoder", recurrent="gru", vocab_size=len(LETTERS), target_vocab_size=len(PHONEMES),
        d_model=width, n_layers=1, position="none", output_bias=True, dropout=0.0,
        pad_id=LETTERS.index("<pad>"), start_id=PHONEMES.index("<s>"), eos_id=PHONEMES.index("</s>"),
    )  # fmt: skip


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    """What each array must be for a network of that width."""
    cell = {"w_ih": (3 * width, width), "w_hh": (3 * width, width), "b_ih": (3 * width,), "b_hh": (3 * width,)}
    return {
        "enc_emb": (len(LETTERS), width), "dec_emb": (len(PHONEMES), width),
        "fc_w": (len(PHONEMES), width), "fc_b": (len(PHONEMES),),
        **{f"{side}_{name}": shape for side in ("enc", "dec") for name, shape in cell.items()},
    }  # fmt: skip


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz, never a pickle, never more than MAX_BYTES when unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_BYTES:
            raise FileError(f"{path} unpacks to {size} bytes, more than {MAX_BYTES}: not g2p_en's network")
        with np.load(path, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name]) for name in stored.files}
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"cannot read {path} as .npz: {error}") from None
