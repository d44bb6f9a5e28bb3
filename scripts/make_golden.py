#!/usr/bin/env python3
"""Make the small golden models under tests/golden/: random weights, and what Transformers computes with them.

It needs PyTorch, so it runs in an environment of its own, and the tests read only its results:

    python3 -m venv golden-env
    golden-env/bin/pip install torch==2.13.0 transformers safetensors numpy onnxruntime onnxruntime-genai onnx_ir
    golden-env/bin/python scripts/make_golden.py                  # the tiny models
    golden-env/bin/python scripts/make_golden.py MINILM_FOLDER    # the reference for the real MiniLM

Each folder holds `config.json`, `model.safetensors` and `golden.npz` with inputs and expected outputs. Weights
are rounded to the stored type before anything is computed, so that the expectation holds for the stored bytes.
`genai_tiny_llama` is a folder that ONNX Runtime GenAI's own builder made of such a model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"

# The smallest shapes that have everything: several layers, grouped heads, and rows of whole blocks of 32.
# The vocabulary is unlike every other width: GenAI's builder takes any layer of its width for the output layer.
SMALL = {
    "vocab_size": 80,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
# 16 is the narrowest head that ONNX Runtime's attention takes; it is not hidden_size / heads here, on purpose.
DECODER = {**SMALL, "head_dim": 16, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def randomise(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Random weights of a size at which every part matters, rounded to what `dtype` can hold."""
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            weight.copy_((1 + 0.2 * noise if is_norm else 0.2 * noise).to(dtype).float())


def save(model: transformers.PreTrainedModel, folder: Path, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True)
    tied = {"lm_head.weight"} if getattr(model.config, "tie_word_embeddings", False) else set()
    weights = {
        name: weight.to(dtype).contiguous()
        for name, weight in model.state_dict().items()
        if name not in tied and weight.is_floating_point()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def decoder(name: str, model: transformers.PreTrainedModel, dtype: torch.dtype) -> None:
    randomise(model, dtype)
    model.eval()
    ids = torch.randint(3, 80, (2, 11), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save(model, GOLDEN / name, dtype)
    np.savez_compressed(GOLDEN / name / "golden.npz", input_ids=ids.numpy(), logits=logits.numpy())


def encoder_batch() -> dict[str, torch.Tensor]:
    """Three rows of unequal length; the second half of each is of the second token type."""
    ids = torch.randint(3, 80, (3, 9), generator=torch.Generator().manual_seed(7))
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate((9, 5, 2)):
        mask[row, :length] = 1
        types[row, length // 2 : length] = 1
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def embedder() -> None:
    folder = GOLDEN / "bert_embedder"
    model = transformers.BertModel(transformers.BertConfig(**SMALL)).eval()
    randomise(model, torch.float16)
    batch = encoder_batch()
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    mean = (states * mask).sum(1) / mask.sum(1)
    save(model, folder, torch.float16)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1) + "\n")
    np.savez_compressed(
        folder / "golden.npz",
        **{k: v.numpy() for k, v in batch.items()},
        embeddings=torch.nn.functional.normalize(mean, dim=-1).numpy(),
        first_token=states[:, 0].numpy(),
    )


def reranker() -> None:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=1)).eval()
    randomise(model, torch.bfloat16)
    batch = encoder_batch()
    with torch.no_grad():
        scores = model(**batch).logits
    save(model, GOLDEN / "bert_reranker", torch.bfloat16)
    arrays = {k: v.numpy() for k, v in batch.items()}
    np.savez_compressed(GOLDEN / "bert_reranker" / "golden.npz", **arrays, scores=scores.numpy())


def genai() -> None:
    """A folder made by ONNX Runtime GenAI's builder, and the logits that Transformers gives for it."""
    from tokenizers import Tokenizer, models

    target = GOLDEN / "genai_tiny_llama"
    config = transformers.LlamaConfig(**{**DECODER, "num_hidden_layers": 1}, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval()
    randomise(model, torch.float32)
    ids = torch.randint(3, 80, (1, 11), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    words = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(77))])}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        model.save_pretrained(source)
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
        ).save_pretrained(source)
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(target)]
        subprocess.run([*builder, "-p", "fp32", "-e", "cpu", "-c", scratch], check=True)
    np.savez_compressed(target / "golden.npz", input_ids=ids.numpy(), logits=logits.numpy())


SENTENCES = [
    "The board throttles above eighty degrees.",
    "A processor that gets too hot is slowed down.",
    "Bake the bread for forty minutes at a moderate heat, then let it cool on a rack before you cut it.",
    "cats",
]


def minilm(folder: Path) -> None:
    """What Transformers makes of four sentences with the real all-MiniLM-L6-v2 in `folder`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    vectors = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    arrays = {k: v.numpy() for k, v in batch.items()}
    np.savez_compressed(GOLDEN / "minilm_reference.npz", **arrays, embeddings=vectors.numpy())


def main() -> None:
    if len(sys.argv) > 1:
        minilm(Path(sys.argv[1]))
        return
    for name in (
        "llama_tied",
        "llama_untied",
        "qwen2",
        "qwen3",
        "bert_embedder",
        "bert_reranker",
        "genai_tiny_llama",
    ):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
    bf16, f32, f16 = torch.bfloat16, torch.float32, torch.float16
    tied = transformers.LlamaConfig(**DECODER, tie_word_embeddings=True)
    decoder("llama_tied", transformers.LlamaForCausalLM(tied), bf16)
    untied = transformers.LlamaConfig(
        **{**DECODER, "num_hidden_layers": 1}, tie_word_embeddings=False, rope_parameters=LLAMA3_ROPE
    )
    decoder("llama_untied", transformers.LlamaForCausalLM(untied), f32)
    rope = {"rope_type": "default", "rope_theta": 1e6}
    qwen2 = transformers.Qwen2Config(**DECODER, tie_word_embeddings=True, rope_parameters=rope)
    decoder("qwen2", transformers.Qwen2ForCausalLM(qwen2), bf16)
    qwen3 = transformers.Qwen3Config(**DECODER, tie_word_embeddings=True)
    decoder("qwen3", transformers.Qwen3ForCausalLM(qwen3), f16)
    embedder()
    reranker()
    genai()
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:8d} {path.relative_to(GOLDEN)}")


if __name__ == "__main__":
    main()
