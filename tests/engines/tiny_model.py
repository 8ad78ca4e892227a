"""A language model that is just large enough for llama.cpp to serve: the llama architecture with random weights.

Its vocabulary is printable ASCII, one token a character, so n characters of a prompt are n tokens, and whatever it says
is clean text. The number of layers is the speed: 2 layers take about 0.05 ms a token on one core, 64 take 2 ms, and the
file has 80 KB a layer. The same seed gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>")
LETTERS = tuple(chr(code) for code in range(33, 127))
BLANK, NEWLINE = "\u0120", "\u010a"
"""How the byte-level alphabet of GPT-2 writes a blank and a line feed."""

MERGED = "th"
"""llama.cpp refuses a tokenizer that merges nothing."""

WIDTH, HEAD_WIDTH, FEED_WIDTH = 64, 32, 128
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_model(path: Path, layers: int, context: int = 16384, seed: int = 1) -> Path:
    """Write the model; gives its path. `context`: longest sequence it claims to know."""
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, layers, context)
    _vocabulary(writer)
    _weights(writer, layers, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, layers: int, context: int) -> None:
    writer.add_name(f"random-{layers}")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_WIDTH)
    writer.add_head_count(WIDTH // HEAD_WIDTH)
    writer.add_head_count_kv(WIDTH // HEAD_WIDTH)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*SPECIAL, *LETTERS, BLANK, NEWLINE, MERGED]
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL))
    kinds[SPECIAL.index("<unk>")] = gguf.TokenType.UNKNOWN
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(MERGED)])
    writer.add_unk_token_id(SPECIAL.index("<unk>"))
    writer.add_bos_token_id(SPECIAL.index("<s>"))
    writer.add_eos_token_id(SPECIAL.index("</s>"))
    writer.add_pad_token_id(SPECIAL.index("</s>"))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _weights(writer: gguf.GGUFWriter, layers: int, rng: np.random.Generator) -> None:
    def random(name: str, rows: int, columns: int, spread: float = 0.02) -> None:
        writer.add_tensor(f"{name}.weight", rng.normal(0.0, spread, (rows, columns)).astype(np.float16))

    def ones(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    words = len(SPECIAL) + len(LETTERS) + 3
    random("token_embd", words, WIDTH)
    ones("output_norm")
    random("output", words, WIDTH, spread=0.1)
    for layer in range(layers):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            random(f"{block}.{part}", WIDTH, WIDTH)
        ones(f"{block}.ffn_norm")
        random(f"{block}.ffn_gate", FEED_WIDTH, WIDTH)
        random(f"{block}.ffn_up", FEED_WIDTH, WIDTH)
        random(f"{block}.ffn_down", WIDTH, FEED_WIDTH)
