"""The bytes that workers' pools hold: docs/pattern.md, in numpy."""

import numpy as np

POISON = 0xA5
FIRST_AUX = 0x8000
_STRETCH = 1 << 17  # words made at once, few enough to stay in a cache


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _words(seed: int, buffer: int, numbers: np.ndarray) -> np.ndarray:
    """The words of one buffer with these numbers (byte offset / 8)."""
    key = _mix(np.array([seed], dtype=np.uint64)) ^ np.uint64(buffer << 48)
    return _mix(numbers ^ key)


def fill(pool: np.ndarray, seed: int, buffer: int) -> None:
    """Fills one buffer, a row of bytes whose length is a multiple of 8."""
    whole = pool.view(np.uint64)
    for first in range(0, len(whole), _STRETCH):
        part = whole[first : first + _STRETCH]
        part[:] = _words(seed, buffer, np.arange(first, first + len(part), dtype=np.uint64))


def differing(
    pool: np.ndarray, seed: int, buffer: int, item_length: int, items: np.ndarray, source_items: np.ndarray
) -> int | None:
    """The first of `items` in this buffer that isn't byte for byte the source's item, or None."""
    per_item = item_length // 8
    rows = pool.view(np.uint64).reshape(-1, per_item)
    inside = np.arange(per_item, dtype=np.uint64)
    at_once = max(1, _STRETCH // per_item)
    for first in range(0, len(items), at_once):
        numbers = source_items[first : first + at_once].astype(np.uint64)[:, None] * np.uint64(per_item) + inside
        expected = _words(seed, buffer, numbers)
        wrong = (rows[items[first : first + at_once]] != expected).any(axis=1)
        if wrong.any():
            return int(items[first + int(wrong.argmax())])
    return None
