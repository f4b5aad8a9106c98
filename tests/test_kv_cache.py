"""The KV cache of packed networks: rows move, join and leave within one buffer, and keep their tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from qkv.engine.kv_cache import BLOCK, MAPPED, KVCache
from qkv.engine.pack import pack
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.sequence import Sampler
from qkv.memory import BlockPool, keep_freed_memory
from qkv.models.build import build
from qkv.presets import tiny


@pytest.mark.parametrize("in_order", [False, True])
@torch.no_grad()
def test_rows_of_a_cache_keep_their_tokens(in_order: bool) -> None:
    """Tokens that say who wrote them, through beams that move, rows that leave and join, and first tokens that are dropped."""
    draw = random.Random(0)
    cache, texts, token = KVCache.empty(2, 1, 1, torch.empty(0), in_order), [[] for _ in range(3)], 1

    def extend(cache: KVCache, texts: list[list[int]]) -> tuple[KVCache, list[list[int]]]:
        nonlocal token
        new, ids = cache.extend(len(texts), 1), [token + at for at in range(len(texts))]
        token += len(texts)
        new.buffer.vectors[:, : len(ids), 0, new.length - 1, :, 0] = torch.tensor(ids)[:, None].float()
        return new, [[*text, id_] for text, id_ in zip(texts, ids, strict=True)]

    for _ in range(300):
        cache, texts = extend(cache, texts)
        if draw.random() < 0.6:  # beams, or some that leave
            rows = [draw.randrange(len(texts)) for _ in range(draw.choice([1, 3, 6, 40]))]
            rows = sorted(rows) if draw.random() < 0.3 else sorted({*range(len(texts))} - {*rows}) or rows[:1]
            cache, texts = cache.move(torch.tensor(rows)), [texts[row] for row in rows]
        if draw.random() < 0.6 and len(texts) < 40:
            other, own = KVCache.empty(2, 1, 1, torch.empty(0), in_order), [[] for _ in range(draw.randrange(1, 9))]
            for _ in range(draw.choice([1, 2, 30])):
                other, own = extend(other, own)
            length = max(cache.length, other.length)
            cache, texts = cache.join(other), [[0] * (length - len(text)) + text for text in [*texts, *own]]
        if cache.length > 8 and draw.random() < 0.2:
            first = draw.randrange(1, 8)
            cache, texts = cache.drop(first), [text[first:] for text in texts]
        vectors = cache.dense()  # (layers, R, 1, length, 2, 1)
        found = vectors[:, :, 0, :, :, 0].permute(0, 3, 1, 2).flatten(0, 1)  # (layers * 2, R, length)
        wanted = torch.tensor(texts).float()
        assert cache.size(0) == len(texts) and torch.equal(found * (wanted > 0), wanted.expand_as(found))
        assert found.isfinite().all()


@torch.no_grad()
def test_a_busy_batch_moves_its_rows_within_one_buffer() -> None:
    """Rows that leave, rows that join and padding that is dropped need no new buffer, and no row sees it."""
    c = tiny("llama-7b")
    fast = pack(build(c).eval())
    running, buffers = ContinuousBatch(fast), set()
    for step in range(60):
        running.join(make_batch([[5, 6 + step % 7, 7]]), [Sampler(13, ())])
        running.step()
        if step >= 20:
            buffers |= {layer["cache"].buffer.vectors.data_ptr() for layer in running.state.layers}
    assert len(running.running) == 12 and len(buffers) == len(running.state.layers)


def is_mapped(address: int) -> bool:
    """Whether this process has memory at the address."""
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def buffer_of(size: int) -> torch.Tensor:
    """The vectors of a cache with about so many bytes."""
    cache = KVCache.empty(1, 1, 64, torch.empty(0)).extend(size // (BLOCK * 2 * 64 * 4), 1)
    return cache.buffer.vectors


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux has /proc")
@torch.no_grad()
def test_a_large_buffer_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the allocator keeps, and as soon as no view of it is left."""
    monkeypatch.setattr(BlockPool, "LIMIT", 32 * MAPPED)
    keep_freed_memory()
    vectors = buffer_of(64 * MAPPED)
    vectors.fill_(1.0)
    address, view = vectors.data_ptr() + 32 * MAPPED, vectors[..., 0, :]
    del vectors
    assert is_mapped(address) and view.sum() == view.numel()
    del view
    assert not is_mapped(address)


def test_the_memory_of_a_buffer_is_given_out_again() -> None:
    """To the next one that fills at least half of it, and to one at a time."""
    first = buffer_of(32 * MAPPED)
    address, view = first.data_ptr(), first[0]
    del first
    second = buffer_of(32 * MAPPED)
    assert second.data_ptr() != address  # the first one is still in use
    del view
    smaller, third = buffer_of(4 * MAPPED), buffer_of(31 * MAPPED)
    assert smaller.data_ptr() != address and third.data_ptr() == address


def test_kept_memory_has_a_limit() -> None:
    blocks = BlockPool()
    arrays = [blocks.allocate(blocks.LIMIT // 4 + at) for at in range(6)]
    del arrays
    assert 0 < sum(map(len, blocks.free)) <= blocks.LIMIT
    assert len(blocks.allocate(blocks.LIMIT // 4)) == blocks.LIMIT // 4 and len(blocks.free) == 2
    before = list(blocks.free)
    blocks.allocate(2 * blocks.LIMIT)
    assert blocks.free == before
