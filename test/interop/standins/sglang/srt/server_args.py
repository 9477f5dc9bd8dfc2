"""Stands in for SGLang's server arguments: the five the connector reads."""

from dataclasses import dataclass


@dataclass
class ServerArgs:
    disaggregation_bootstrap_port: int = 0
    dist_init_addr: str | None = None
    tp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
