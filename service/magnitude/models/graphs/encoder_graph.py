"""The graph of a BERT-like encoder that pools inside the graph.

Inputs: `input_ids`, `attention_mask` (1 for tokens, 0 for padding) and `token_type_ids`, int64 `[batch, tokens]`.
Output: `embeddings` float32 `[batch, hidden]` of an embedder, or `scores` float32 `[batch, labels]` (raw logits) of a
cross-encoder. Padding does not change the result of a row.

Linear layers stay apart from the fused operators around them, so that they can be stored in every bit width. For
float weights ONNX Runtime fuses their biases itself at load; its Attention operator with merged weights was only
1 to 5 % faster (MiniLM, 16 to 512 tokens, one AVX2 core).
"""

from __future__ import annotations

import numpy as np

from magnitude.models.description import EncoderShape
from magnitude.models.graphs.graph import GraphWriter
from magnitude.models.graphs.linear import Bits, LinearLayers, StoredWeights
from magnitude.models.sources.source import ArchConfig, WeightSource

# What is added to the attention score of a padding position. exp(-10000) is 0 in float32, and unlike the lowest
# float it cannot overflow when it is added to a score.
_MASKED = -10000.0


class EncoderGraph:
    """Builds one encoder into `graph`."""

    def __init__(self, graph: GraphWriter, source: WeightSource, *, bits: Bits, accuracy_level: int):
        self._graph = graph
        self._source = source
        self._config: ArchConfig = source.config
        self._linear = LinearLayers(graph, source, bits=bits, accuracy_level=accuracy_level)

    @property
    def account(self) -> list[StoredWeights]:
        return self._linear.account

    def build(self) -> EncoderShape:
        """Emit the whole graph and return its shape."""
        graph, config = self._graph, self._config
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            graph.input(name, "int64", ["batch", "tokens"])
        self._mask()
        x = self._embedding()
        for layer in range(config.layers):
            x = self._layer(layer, x)
        if config.kind == "reranker":
            output, width = self._classify(x), config.labels
        else:
            output, width = self._pool(x), config.hidden
        graph.output(output, "float32", ["batch", width])
        return EncoderShape(
            width=width,
            max_tokens=config.context_length,
            token_type_ids=True,
            output=output,
            normalised=config.kind == "embedder" and config.normalise,
        )

    def _mask(self) -> None:
        """The mask as int32 `[batch, tokens]` for the attention, and as float for the pooling."""
        graph = self._graph
        graph.node("Cast", ["attention_mask"], "mask.int", attributes={"to": 6})  # TensorProto.INT32
        graph.node("Cast", ["attention_mask"], "mask.float", attributes={"to": 1})  # TensorProto.FLOAT

    def _embedding(self) -> str:
        graph, source = self._graph, self._source
        names = [f"embeddings.{n}_embeddings.weight" for n in ("word", "position", "token_type")]
        tables = [graph.tensor(n.removesuffix(".weight"), source.floats(n)) for n in names]
        for name in names:
            self.account.append(
                StoredWeights(
                    tensors=(name,), source_format=source.stored_as(name), stored_format="float32", lossless=True
                )
            )
        graph.node("Cast", ["input_ids"], "ids32", attributes={"to": 6})  # EmbedLayerNormalization reads int32
        graph.node("Cast", ["token_type_ids"], "types32", attributes={"to": 6})
        graph.contrib(
            "EmbedLayerNormalization",
            ["ids32", "types32", *tables, *self._norm("embeddings.LayerNorm")],
            ["embedded", ""],
            epsilon=self._config.eps,
        )
        return "embedded"

    def _norm(self, name: str) -> list[str]:
        return [self._graph.tensor(f"{name}.{p}", self._source.floats(f"{name}.{p}")) for p in ("weight", "bias")]

    def _dense(self, x: str, layer: str | list[str], out: str) -> str:
        made = self._linear.apply(x, [layer] if isinstance(layer, str) else layer, out)
        assert made is not None  # the layers of one encoder are stored alike
        return made

    def _layer(self, layer: int, x: str) -> str:
        graph, config, at = self._graph, self._config, f"encoder.layer.{layer}"
        q, k, v = (self._dense(x, f"{at}.attention.self.{n}", f"{at}.{n}") for n in ("query", "key", "value"))
        graph.contrib(
            "MultiHeadAttention",
            [q, k, v, "", "mask.int"],
            f"{at}.heads",
            num_heads=config.heads,
            mask_filter_value=_MASKED,
        )
        attended = self._dense(f"{at}.heads", f"{at}.attention.output.dense", f"{at}.attended")
        x = self._add_and_norm(x, attended, f"{at}.attention.output.LayerNorm")
        wide = self._dense(x, f"{at}.intermediate.dense", f"{at}.wide")
        active = self._activation(wide)
        return self._add_and_norm(
            x, self._dense(active, f"{at}.output.dense", f"{at}.narrow"), f"{at}.output.LayerNorm"
        )

    def _activation(self, x: str) -> str:
        graph, out = self._graph, f"{x}.active"
        if self._config.activation == "relu":
            return graph.node("Relu", [x], out)
        tanh = self._config.activation == "gelu_tanh"
        return graph.contrib("FastGelu" if tanh else "Gelu", [x], out)

    def _add_and_norm(self, x: str, branch: str, norm: str) -> str:
        return self._graph.contrib(
            "SkipLayerNormalization", [x, branch, *self._norm(norm)], f"{norm}.out", epsilon=self._config.eps
        )

    def _pool(self, x: str) -> str:
        graph, out = self._graph, "pooled" if self._config.normalise else "embeddings"
        if self._config.pooling == "cls":
            graph.node("Gather", [x, graph.constant(0)], out, attributes={"axis": 1})
        else:
            graph.node("Unsqueeze", ["mask.float", graph.constant([1])], "mask.row")  # [batch, 1, tokens]
            graph.node("MatMul", ["mask.row", x], "pooled.sums3")  # padding rows are multiplied by 0
            graph.node("Squeeze", ["pooled.sums3", graph.constant([1])], "pooled.sums")
            graph.node("ReduceSum", ["mask.float", graph.constant([1])], "pooled.count", attributes={"keepdims": 1})
            # An all-padding row would divide by zero; Sentence Transformers uses the same bound.
            graph.tensor("pooled.least", np.array(1e-9, np.float32))
            graph.node("Max", ["pooled.count", "pooled.least"], "pooled.divisor")
            graph.node("Div", ["pooled.sums", "pooled.divisor"], out)
        if self._config.normalise:
            graph.node("LpNormalization", [out], "embeddings", attributes={"axis": -1, "p": 2})
        return "embeddings"

    def _classify(self, x: str) -> str:
        graph = self._graph
        graph.node("Gather", [x, graph.constant(0)], "first", attributes={"axis": 1})
        graph.node("Tanh", [self._dense("first", "pooler.dense", "pooler")], "pooler.active")
        return self._dense("pooler.active", "classifier", "scores")
