"""Answers for vLLM where SGLang 0.4.7 imports it on a machine without a GPU: the two layers that a Llama needs."""
