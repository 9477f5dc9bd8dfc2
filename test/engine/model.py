"""A tiny Llama of our own making and its tokenizer, the same bytes each time.

Its weights are large enough that a wrong page changes every answer, and no two likely tokens lie so close together
that rounding could swap them.
"""

import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SEED = 20476
VOCABULARY = 512
LAYERS = 2
HIDDEN = 64
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = HIDDEN // HEADS
FEED_FORWARD = 128
CONTEXT = 4096
BYTES_OF_A_NUMBER = 4  # float32

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(SEED)

    def normal(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """Keeps the size of its input, times `gain`."""
        return torch.randn(rows, columns, generator=random) * gain / columns**0.5

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=random),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": normal(VOCABULARY, HIDDEN, 3.0),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        weights |= {
            f"{layer}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{layer}.self_attn.q_proj.weight": normal(HEADS * HEAD_SIZE, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD_SIZE, HIDDEN, 4.0),
            f"{layer}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_SIZE, 4.0),
            f"{layer}.mlp.gate_proj.weight": normal(FEED_FORWARD, HIDDEN),
            f"{layer}.mlp.up_proj.weight": normal(FEED_FORWARD, HIDDEN),
            f"{layer}.mlp.down_proj.weight": normal(HIDDEN, FEED_FORWARD),
        }
    return weights


def _tokenizer() -> Tokenizer:
    """Byte-level BPE: the end of text, every byte, and pairs of letters up to the size of the vocabulary."""
    letters = "etaoinshrdlcumwfgypbvk"
    vocabulary = {"<end>": 0}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    merges = [(first, second) for first in letters for second in letters][: VOCABULARY - len(vocabulary)]
    for first, second in merges:
        vocabulary[first + second] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write(folder: pathlib.Path) -> None:
    """Makes the checkpoint there; both servers load the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGURATION, indent=2))
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<end>",
                "eos_token": "<end>",
                "model_max_length": CONTEXT,
            },
            indent=2,
        )
    )


def bytes_of_a_page(page_size: int) -> int:
    """All buffers together: K and V of each layer."""
    return 2 * LAYERS * KV_HEADS * HEAD_SIZE * BYTES_OF_A_NUMBER * page_size
