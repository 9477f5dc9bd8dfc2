"""Asks servers and compares what they answer."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests
from processes import Failed
from prompts import NEW_TOKENS

ANSWER = 60.0  # seconds for an answer


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: list[int]
    logprobs: list[float]


def body(prompt: Sequence[int], new_tokens: int = NEW_TOKENS, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True} | more


def failure(answer: dict[str, Any]) -> str | None:
    """SGLang reports a failed request as a finish reason, with HTTP status 200."""
    if "meta_info" not in answer:
        return json.dumps(answer)[:500]
    reason = answer["meta_info"].get("finish_reason") or {}
    return str(reason.get("message")) if reason.get("type") == "abort" else None


def read(answer: dict[str, Any]) -> Answer:
    if text := failure(answer):
        raise Failed(f"the request failed: {text}")
    rows = answer["meta_info"]["output_token_logprobs"]
    return Answer(answer["text"], [row[1] for row in rows], [row[0] for row in rows])


def ask(url: str, prompt: Sequence[int]) -> Answer:
    try:
        return read(requests.post(f"{url}/generate", json=body(prompt), timeout=ANSWER).json())
    except (requests.RequestException, ValueError) as error:
        raise Failed(f"no answer to a prompt of {len(prompt)} tokens: {error}") from error


def events(url: str, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answer's parts as they come. Leaving the loop closes the connection."""
    try:
        with requests.post(f"{url}/generate", json=request | {"stream": True}, stream=True, timeout=ANSWER) as response:
            for line in response.iter_lines():
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    yield json.loads(line[6:])
    except (requests.RequestException, ValueError) as error:
        raise Failed(f"a streamed answer broke off: {error}") from error


def ask_streaming(url: str, prompt: Sequence[int]) -> Answer:
    parts = list(events(url, body(prompt)))
    if len(parts) < 2:
        raise Failed(f"a streamed answer came in {len(parts)} parts")
    return read(parts[-1])


def go_away(url: str, prompt: Sequence[int], after: int = 3) -> None:
    """Takes a few parts of a long answer, then closes the connection."""
    for number, part in enumerate(events(url, body(prompt, 400)), 1):
        if text := failure(part):
            raise Failed(f"the request failed: {text}")
        if number == after:
            return
    raise Failed("the answer ended before the client could go away")


def ask_together(
    url: str, prompts: Sequence[Sequence[int]], at_once: int, how: Callable[[str, Sequence[int]], Answer] = ask
) -> list[Answer]:
    """All prompts, never more than `at_once` open."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: how(url, prompt), prompts))


def first_token_seconds(url: str, prompts: Sequence[Sequence[int]]) -> list[float]:
    """All prompts at once: how long each client waits for its first token."""

    def one(prompt: Sequence[int]) -> float:
        began = time.monotonic()
        seconds = math.nan
        for number, _ in enumerate(events(url, body(prompt) | {"return_logprob": False})):
            if number == 0:
                seconds = time.monotonic() - began
        return seconds

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


def difference(answer: Answer, reference: Answer, first: bool) -> float:
    """The largest difference between two log probabilities of the same token; infinite where texts or tokens differ.
    `first`: compare the first token's row too. A stock prefill hands over the token, but not that row, which then
    reads 0; whether the token is right shows in the text and in all that follows from it."""
    rows = list(zip(answer.tokens, answer.logprobs, reference.tokens, reference.logprobs))[0 if first else 1 :]
    if len(answer.tokens) != len(reference.tokens) or not rows or answer.text != reference.text:
        return math.inf
    if any(token != expected for token, _, expected, _ in rows) or not all(math.isfinite(row[1]) for row in rows):
        return math.inf
    return max(abs(logprob - expected) for _, logprob, _, expected in rows)
