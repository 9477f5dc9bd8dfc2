"""Root mean square normalization, in plain torch."""

import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        total = x if residual is None else x + residual
        normal = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
        return normal if residual is None else (normal, total)


class GemmaRMSNorm(RMSNorm):
    """Imported only."""
