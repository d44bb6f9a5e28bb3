"""A decoder of a few thousand random weights with the same operators, inputs and outputs as a real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel

from magnitude.engine.kv_layout import KvLayout
from magnitude.models.description import DecoderShape, EncoderShape, ModelDescription, SpecialTokens

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 2, 4, 2, 16, 64
TOKENIZER_IDS = 258  # 256 bytes, an end token and one added word
VOCAB = 300  # padded: the last 42 rows of the logits belong to no token
EOS = 256
ADDED_WORD = 257
CONTEXT = 256
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int8": TensorProto.INT8}


def byte_tokenizer() -> Tokenizer:
    """One token a byte, an end token and an added word (`hello`) with one of its own."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("hello")])
    return tokenizer


def write_decoder(
    folder: Path,
    *,
    kv_type: str = "float32",
    logits_type: str = "float32",
    all_positions: bool = False,
    position_ids: bool = False,
    poison: float | None = None,
    seed: int = 1,
) -> ModelDescription:
    """Write graph and tokenizer into `folder`. `poison` is added to every logit (NaN, say)."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def const(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        weight = (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        return add("MatMul", [x, const(name + ".weight", weight)], [name])

    angles = np.arange(CONTEXT)[:, None] / 10000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)[None]
    const("cos", np.cos(angles).astype(np.float32))
    const("sin", np.sin(angles).astype(np.float32))
    const("one", np.array([1], np.int32))
    add("ReduceSum", ["attention_mask", const("axis1", np.array([1], np.int64))], ["mask_sum"], keepdims=0)
    add("Cast", ["mask_sum"], ["mask_sum32"], to=TensorProto.INT32)
    add("Sub", ["mask_sum32", "one"], ["seqlens_k"])
    add("Shape", ["attention_mask"], ["mask_shape"])
    add("Gather", ["mask_shape", const("index1", np.array(1, np.int64))], ["width64"], axis=0)
    add("Cast", ["width64"], ["total"], to=TensorProto.INT32)
    add("Gather", [const("embed", rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)), "input_ids"], ["x0"])
    stream = "x0"
    if position_ids:
        positions = rng.standard_normal((CONTEXT, HIDDEN)).astype(np.float32) / 4
        add("Gather", [const("position_embed", positions), "position_ids"], ["xp"])
        stream = add("Add", ["x0", "xp"], ["x0p"])
    for layer in range(LAYERS):
        p = f"l{layer}."
        gain = const(p + "gain", np.ones(HIDDEN, np.float32))
        normed = add("SimplifiedLayerNormalization", [stream, gain], [p + "n"], axis=-1, epsilon=1e-5, stash_type=1)
        q = linear(normed, p + "q", HIDDEN, HEADS * HEAD_DIM)
        k = linear(normed, p + "k", HIDDEN, KV_HEADS * HEAD_DIM)
        v = linear(normed, p + "v", HIDDEN, KV_HEADS * HEAD_DIM)
        inputs = [q, k, v, f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        inputs += ["seqlens_k", "total", "cos", "sin"]
        attributes: dict[str, object] = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1}
        if kv_type == "int8":
            scale = const(p + "scale", np.full(1, 0.05, np.float32))
            inputs += ["", "", "", scale, scale]
            attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
        outputs = [p + "a", f"present.{layer}.key", f"present.{layer}.value"]
        add("GroupQueryAttention", inputs, outputs, domain="com.microsoft", **attributes)
        mixed = linear(p + "a", p + "o", HEADS * HEAD_DIM, HIDDEN)
        stream = add("Add", [stream, mixed], [p + "r"])
    if not all_positions:
        slice_inputs = [
            stream,
            const("last", np.array([-1], np.int64)),
            const("end", np.array([2**31 - 1], np.int64)),
        ]
        stream = add("Slice", [*slice_inputs, "axis1"], ["last_row"])
    logits = linear(stream, "head", HIDDEN, VOCAB)
    if poison is not None:
        logits = add("Add", [logits, const("poison", np.full(1, poison, np.float32))], ["poisoned"])
    add("Cast", [logits], ["logits"], to=TYPES[logits_type])

    def value(name: str, kind: int, shape: list[object]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    ids = [value("input_ids", TensorProto.INT64, ["batch", "n"])]
    ids.append(value("attention_mask", TensorProto.INT64, ["batch", "total_n"]))
    if position_ids:
        ids.append(value("position_ids", TensorProto.INT64, ["batch", "n"]))
    past, present = [], []
    for layer in range(LAYERS):
        for part in ("key", "value"):
            shape: list[object] = ["batch", KV_HEADS, "past", HEAD_DIM]
            past.append(value(f"past_key_values.{layer}.{part}", TYPES[kv_type], shape))
            present.append(value(f"present.{layer}.{part}", TYPES[kv_type], ["batch", KV_HEADS, "all", HEAD_DIM]))
    rows = "n" if all_positions else 1
    out = value("logits", TYPES[logits_type], ["batch", rows, VOCAB])
    graph = helper.make_graph(nodes, "tiny", [*ids, *past], [out, *present], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str(), encoding="utf-8")
    return ModelDescription(
        name="tiny",
        kind="decoder",
        family="tiny",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="ab" * 32,
        weight_bytes=(folder / "model.onnx").stat().st_size,
        special=SpecialTokens(eos=(EOS,)),
        decoder=DecoderShape(
            layers=LAYERS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            context_length=CONTEXT,
            kv_type=kv_type,
            logits_all_positions=all_positions,
            position_ids="position_ids" if position_ids else None,
        ),
    )


def layout_of(model: ModelDescription, *, slots: int = 2, max_len: int = 96) -> KvLayout:
    assert model.decoder is not None
    return KvLayout.of(model.decoder, slots=slots, max_len=max_len)


def write_encoder(folder: Path, *, width: int = 8, max_tokens: int = 64) -> ModelDescription:
    """An encoder: embeddings summed over the tokens that the mask shows, divided by their number."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(5)
    table = numpy_helper.from_array(rng.standard_normal((VOCAB, width)).astype(np.float32), "table")
    kinds = numpy_helper.from_array(rng.standard_normal((2, width)).astype(np.float32), "kinds")
    axis1 = numpy_helper.from_array(np.array([1], np.int64), "axis1")
    axis2 = numpy_helper.from_array(np.array([2], np.int64), "axis2")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["kinds", "token_type_ids"], ["types"]),
        helper.make_node("Add", ["words", "types"], ["both"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis2"], ["mask3"]),
        helper.make_node("Mul", ["both", "mask3"], ["shown"]),
        helper.make_node("ReduceSum", ["shown", "axis1"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "axis1"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["embeddings"]),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "n"]) for name in names]
    output = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", width])
    graph = helper.make_graph(nodes, "encoder", inputs, [output], [table, kinds, axis1, axis2])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return ModelDescription(
        name="tiny-encoder",
        kind="embedder",
        family="tiny",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="cd" * 32,
        weight_bytes=(folder / "model.onnx").stat().st_size,
        encoder=EncoderShape(width=width, max_tokens=max_tokens),
    )


def write_tensors(folder: Path, *, width: int = 4) -> ModelDescription:
    """`y = x · 2` for float32 `[n, width]`, and `count`, the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("Shape", ["x"], ["count"], start=0, end=1),
    ]
    graph = helper.make_graph(
        nodes,
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width]),
            helper.make_tensor_value_info("count", TensorProto.INT64, [1]),
        ],
        [two],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return ModelDescription(
        name="double",
        kind="tensors",
        family="onnx",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="ef" * 32,
        weight_bytes=4,
        tokenizer_file=None,
    )


def write_matmul(folder: Path, width: int) -> ModelDescription:
    """`y = x · w` for float32 `[n, width]` and a square weight."""
    folder.mkdir(parents=True, exist_ok=True)
    weight = numpy_helper.from_array(np.eye(width, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return ModelDescription(
        name="matmul",
        kind="tensors",
        family="onnx",
        folder=str(folder),
        graph_file="model.onnx",
        model_hash="01" * 32,
        weight_bytes=width * width * 4,
        tokenizer_file=None,
    )


def text_of(ids: list[int]) -> str:
    return byte_tokenizer().decode(ids)


def json_schema(**properties: object) -> str:
    """A schema for an object with exactly these properties."""
    rules = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json.dumps(rules)
