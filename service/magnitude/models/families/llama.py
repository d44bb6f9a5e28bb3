"""Llama 2 and 3, and everything built like them: SmolLM2, TinyLlama, ...

Its GGUF files interleave the rotary pairs of q and k; its `attention_bias` (rarely used) covers the output too.
"""

from magnitude.models.families.decoder import DecoderFamily

FAMILY = DecoderFamily(
    name="llama",
    gguf_architecture="llama",
    huggingface_architectures=("LlamaForCausalLM",),
    gguf_interleaves_rotary=True,
    output_bias_follows=True,
)
