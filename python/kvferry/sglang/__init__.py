"""kvferry as the transfer backend of SGLang 0.4.7, in place of NIXL, with nothing of SGLang edited.

    python -m kvferry.sglang launch --disaggregation-mode prefill ...     # as for sglang.launch_server

or KVFERRY_SGLANG=1 in the environment of an unchanged command with `--disaggregation-transfer-backend nixl`. See
docs/sglang.md.
"""
