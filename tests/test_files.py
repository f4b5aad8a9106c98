"""Files from outside: what is whole is read as it was written, what is broken is refused in one line, before memory."""

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.convert import files
from qkv.convert.files import new_folder, read_header, read_headers, read_json, read_tensors, write_json, write_tensors
from qkv.errors import FileError

TENSORS = {
    "a": torch.arange(12.0).view(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "none": torch.zeros(0, 3),
    "whole": torch.tensor([[1, -(2**40)]]),
}


def refused(path: Path, *words: str) -> None:
    """Reading fails with one line that has these words in it."""
    with pytest.raises(FileError) as caught:
        read_tensors(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def with_header(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: list, begin: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# --- what is whole


def test_written_is_read(tmp_path):
    write_tensors(tmp_path / "model.safetensors", TENSORS, {"by": "test"})
    back = read_tensors(tmp_path)
    assert back.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor)
    assert {name: entry.shape for name, entry in read_headers(tmp_path).items()} == {
        name: tuple(tensor.shape) for name, tensor in TENSORS.items()
    }


def test_parts_of_one_storage_are_written_as_tensors_of_their_own(tmp_path):
    joined = torch.randn(6, 2)
    write_tensors(tmp_path / "x.safetensors", {"q": joined[:3], "k": joined[3:], "t": joined.t()})
    back = read_tensors(tmp_path / "x.safetensors")
    assert (
        torch.equal(back["q"], joined[:3]) and torch.equal(back["k"], joined[3:]) and torch.equal(back["t"], joined.t())
    )


def sharded(folder: Path) -> Path:
    write_tensors(folder / "model-1.safetensors", {"a": TENSORS["a"], "unused": TENSORS["a"]})
    write_tensors(folder / "model-2.safetensors", {"half": TENSORS["half"]})
    places = {"a": "model-1.safetensors", "half": "model-2.safetensors"}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
    return folder


def test_shards(tmp_path):
    back = read_tensors(sharded(tmp_path))
    assert back.keys() == {"a", "half"} and torch.equal(back["a"], TENSORS["a"])
    assert read_headers(tmp_path).keys() == back.keys()


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": TENSORS["a"]})

    def half_written(tensors, name, metadata):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", half_written)
    with pytest.raises(FileError, match="No space left"):
        write_tensors(path, {"a": TENSORS["a"] + 1})
    assert os.listdir(tmp_path) == ["model.safetensors"] and torch.equal(read_tensors(path)["a"], TENSORS["a"])


def test_new_files_may_be_read_by_whom_the_system_lets_and_the_mask_is_left_alone(tmp_path, monkeypatch):
    """Setting the mask, even for a moment, changes what other threads write."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the mask was touched"))
    write_json(tmp_path / "a.json", {})
    (tmp_path / "b.json").write_text("")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "b.json").stat().st_mode


# --- folders: the old one or the new one, never half of one


def content(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def replace(folder: Path, text: str = "new") -> None:
    with new_folder(folder) as new:
        (new / "a").write_text(text)


@pytest.mark.parametrize("stop_at", range(5))
def test_a_folder_that_is_replaced_is_old_or_new_wherever_it_stops(tmp_path, monkeypatch, stop_at):
    """Stopped in the block, before, between and after the renames: what is there is whole, and nothing is left over."""
    folder, calls, rename = tmp_path / "m", iter(range(100)), Path.rename
    replace(folder, "old")

    def stopping(path, target):
        if next(calls) == stop_at - 1:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopping)
    try:
        with new_folder(folder) as new:
            (new / "a").write_text("new")
            if stop_at == 0:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert stop_at < 3
    assert content(folder) == {"a": "old" if stop_at < 3 else "new"}
    assert os.listdir(tmp_path) == ["m"]


def test_the_next_one_puts_back_what_a_killed_process_had_moved_away(tmp_path):
    replace(tmp_path / "m", "old")
    (tmp_path / "m").rename(tmp_path / ".m.old")  # killed between the two renames
    with pytest.raises(KeyError), new_folder(tmp_path / "m"):
        raise KeyError
    assert content(tmp_path / "m") == {"a": "old"} and os.listdir(tmp_path) == ["m"]


def test_folders_that_cannot_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    for folder in (Path("."), Path(".."), tmp_path / "here", Path("/")):
        with pytest.raises(FileError, match="give a new folder"):
            replace(folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="cannot write"):
        replace(tmp_path / "file" / "m")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    replace(tmp_path / "link")
    assert content(tmp_path / "real") == {"a": "new"} and (tmp_path / "link").is_symlink()


# --- what is broken, or something else


def test_missing(tmp_path):
    refused(tmp_path / "nowhere", "does not exist")
    refused(tmp_path, "looked for model.safetensors and model.safetensors.index.json")
    (tmp_path / "weights.safetensors").write_bytes(b"")
    refused(tmp_path, "found weights.safetensors")
    with pytest.raises(FileError, match="cannot read"):
        read_header(tmp_path / "nothing.safetensors")


def test_missing_shard(tmp_path):
    (sharded(tmp_path) / "model-2.safetensors").unlink()
    refused(tmp_path, "lacks model-2.safetensors", "download")


def test_a_shard_without_its_tensor(tmp_path):
    write_tensors(sharded(tmp_path) / "model-2.safetensors", {"other": TENSORS["a"]})
    refused(tmp_path, "lacks half")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors", "x.bin", ".."]
)
def test_shards_stay_in_their_folder(tmp_path, name):
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": name}})
    refused(tmp_path, "same folder")


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": 3}}])
def test_broken_index(tmp_path, index):
    write_json(tmp_path / "model.safetensors.index.json", index)
    refused(tmp_path, "weight_map")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_pickles_are_not_opened(tmp_path, name):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, name, "can run code", "safe_serialization=True")
    refused(tmp_path / name, "can run code", "safe_serialization=True")
    (tmp_path / name).rename(tmp_path / "model.safetensors")  # under a false name
    refused(tmp_path, "is a pickle", "can run code")
    assert not (tmp_path / "boom").exists()


def test_other_things_under_that_name(tmp_path):
    path = tmp_path / "model.safetensors"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    refused(tmp_path, "zip archive")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    refused(tmp_path, "git lfs pull")
    path.write_text("\n<!DOCTYPE html><html><body>Sign in</body></html>")
    refused(tmp_path, "web page")
    path.write_bytes(b"GGUF" + bytes(100))
    refused(tmp_path, ".gguf")
    path.write_bytes(bytes(range(200, 256)) * 4)
    refused(tmp_path, "not safetensors")
    path.write_bytes(b"abc")
    refused(tmp_path, "truncated")
    path.write_bytes(b"")
    refused(tmp_path, "truncated")


def test_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(tmp_path, "truncated" if length < len(whole) - 60 else "")
    path.write_bytes(whole + b"\0")
    refused(tmp_path, "after the last tensor")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b'{"a": ', "not JSON"),
        (b'{"a"' + b"[" * 100_000, "not JSON"),
        ({"a": entry([2**40], 0, 2**42)}, "truncated"),
        ({"a": entry([10**30], 0, 4 * 10**30)}, "impossible shape"),
        ({"a": entry([2**40, 2**40, 0], 0, 0)}, "impossible shape"),
        ({"a": entry([1] * 100, 0, 4)}, "impossible shape"),
        ({"a": entry([-1, -2], 0, 8)}, "impossible shape"),
        ({"a": entry([True, 2], 0, 8)}, "impossible shape"),
        ({"a": entry([2.0], 0, 8)}, "impossible shape"),
        ({"a": entry([2], 8, 0)}, "impossible offsets"),
        ({"a": entry([3], 0, 8)}, "needs 12 bytes"),
        ({"a": entry([1], 0, 4), "b": entry([2], 0, 8)}, "overlaps"),
        ({"a": entry([1], 4, 8)}, "gap"),
        ({"a": entry([1], 0, 4)}, "after the last tensor"),
        ({"a": entry([2], 0, 8, "F3")}, "unknown dtype"),
        ({"a": entry([2], 0, 8, ["F32"])}, "unknown dtype"),  # type: ignore[arg-type]
        ({"a": {"dtype": "F32"}}, "not described"),
        ({"a": 3}, "not described"),
    ],
)
def test_headers_that_lie(tmp_path, header, words):
    refused(with_header(tmp_path / "model.safetensors", header, bytes(8)), words, "download")


def test_a_header_longer_than_the_file(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b'{"a"' + bytes(20))
    refused(tmp_path, "truncated")


def test_json(tmp_path):
    path = tmp_path / "config.json"
    write_json(path, {"a": "ü"})
    assert read_json(path) == {"a": "ü"}
    for text, words in [(b'{"a": ', "not valid JSON"), (b"[1]", "no JSON object"), (b"\xff\xfe", "UTF-8"),
                        (b"<html>", "web page"), (b"[" * 100_000, "not valid JSON")]:  # fmt: skip
        path.write_bytes(text)
        with pytest.raises(FileError, match=words):
            read_json(path)
    path.write_text('{"a": 1}')
    with pytest.raises(FileError, match="over 4 bytes"):
        read_json(path, max_bytes=4)
    with pytest.raises(FileError, match="cannot read"):
        read_json(tmp_path / "absent.json")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_damage_gives_tensors_or_a_fileerror(tmp_path_factory, data):
    """Flipped and cut bytes never bring another exception, and never a tensor larger than the file."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    write_tensors(path, TENSORS)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.sampled_from([len(raw), data.draw(st.integers(0, len(raw)))]))]
    path.write_bytes(raw)
    try:
        back = read_tensors(path)
    except FileError as error:
        assert "\n" not in str(error)
    else:
        assert sum(tensor.nbytes for tensor in back.values()) <= len(raw)
