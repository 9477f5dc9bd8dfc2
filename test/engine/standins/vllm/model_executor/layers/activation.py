"""The gated activations, in plain torch."""

import torch
from torch import nn
from torch.nn import functional


class SiluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, dim=-1)
        return functional.silu(gate) * value


class GeluAndMul(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, dim=-1)
        return functional.gelu(gate) * value
