"""BERT encoders: embedders such as MiniLM, and sequence classifiers as rerankers."""

from magnitude.models.families.encoder import EncoderFamily

FAMILY = EncoderFamily(
    name="bert",
    embedder_architectures=("BertModel", "BertForMaskedLM"),
    reranker_architectures=("BertForSequenceClassification",),
)
