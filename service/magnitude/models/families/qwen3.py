"""Qwen3: each head of q and k goes through an RMS norm before it is rotated; heads have a width of their own."""

from magnitude.models.families.decoder import DecoderFamily

FAMILY = DecoderFamily(
    name="qwen3",
    gguf_architecture="qwen3",
    huggingface_architectures=("Qwen3ForCausalLM",),
    output_bias_follows=True,
    qk_norm=True,
)
