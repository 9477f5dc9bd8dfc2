"""Kernels that are only imported here: a Llama in float32 on a CPU calls none of them."""

from typing import Any, NoReturn


def rotary_embedding(*_: Any) -> NoReturn:
    raise NotImplementedError("SGLang's own rotary embedding in torch is what runs on a CPU")


def scaled_fp8_quant(*_: Any) -> NoReturn:
    raise NotImplementedError("the model of these tests isn't quantized")
