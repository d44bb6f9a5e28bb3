"""Qwen2 and Qwen2.5: q, k and v always have a bias, which `config.json` does not mention."""

from magnitude.models.families.decoder import DecoderFamily

FAMILY = DecoderFamily(
    name="qwen2",
    gguf_architecture="qwen2",
    huggingface_architectures=("Qwen2ForCausalLM",),
    attention_bias=True,
)
