"""What is asked, the same each time."""

import random

import model

SEED = 8998
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 100, 127, 128, 129, 300, 511, 800, 1500, 2000)
NEW_TOKENS = 8


def prompts(seed: int = SEED, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Token ids. No two begin alike, so that nothing is cached before a prompt is asked a second time."""
    generator = random.Random(seed)
    firsts = generator.sample(range(1, model.VOCABULARY), len(lengths))
    return [
        [first] + [generator.randrange(1, model.VOCABULARY) for _ in range(length - 1)]
        for first, length in zip(firsts, lengths, strict=True)
    ]
