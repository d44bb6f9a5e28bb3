from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_driver import KvFile
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoder import layout_of

from magnitude.engine.kv import KvMemory
from magnitude.engine.kv_layout import ALIGN_BYTES, KvLayout
from magnitude.engine.slot_header import (
    HASH_OF_NOTHING,
    HEADER_BYTES,
    SlotHeader,
    extend_hash,
    pack_header,
    trusted_length,
    unpack_header,
)
from magnitude.errors import ModelError
from magnitude.models.description import KvType, ModelDescription

ids_lists = st.lists(st.integers(0, 2**31), max_size=40)
names = st.text("abcdef0123456789-", max_size=64)


@given(
    model=names,
    layout=names,
    sequence=st.integers(0, 2**62).map(lambda n: n * 2),
    length=st.integers(0, 2**40),
    ids_hash=st.integers(0, 2**64 - 1),
)
def test_a_header_survives_packing(model: str, layout: str, sequence: int, length: int, ids_hash: int):
    header = SlotHeader(model_hash=model, layout_id=layout, sequence=sequence, length=length, ids_hash=ids_hash)
    data = pack_header(header)
    assert len(data) == HEADER_BYTES <= ALIGN_BYTES
    assert unpack_header(data) == header


def test_memory_that_was_never_written_holds_no_header():
    assert unpack_header(bytes(HEADER_BYTES)) is None


def test_a_header_torn_in_the_middle_is_not_read():
    header = SlotHeader(model_hash="a", layout_id="b", sequence=7, length=1, ids_hash=2)
    assert unpack_header(pack_header(header)) is None


@given(ids=ids_lists, cut=st.integers(0, 40))
def test_the_running_hash_does_not_depend_on_where_it_was_cut(ids: list[int], cut: int):
    assert extend_hash(extend_hash(HASH_OF_NOTHING, ids[:cut]), ids[cut:]) == extend_hash(HASH_OF_NOTHING, ids)


@given(ids=st.lists(st.integers(0, 2**31), min_size=2, max_size=20), data=st.data())
def test_the_hash_tells_other_ids_and_another_order_apart(ids: list[int], data: st.DataObject):
    other = data.draw(st.permutations(ids))
    if other != ids:
        assert extend_hash(HASH_OF_NOTHING, other) != extend_hash(HASH_OF_NOTHING, ids)


def header_for(ids: list[int]) -> SlotHeader:
    return SlotHeader(
        model_hash="m", layout_id="l", sequence=2, length=len(ids), ids_hash=extend_hash(HASH_OF_NOTHING, ids)
    )


@given(ids=ids_lists, length=st.integers(0, 40))
def test_a_slot_is_trusted_as_far_as_its_header_fits_the_ids(ids: list[int], length: int):
    assert trusted_length(header_for(ids[:length]), "m", "l", ids) == min(length, len(ids))


def test_a_slot_of_another_model_layout_or_text_is_not_trusted():
    ids = [5, 6, 7]
    assert trusted_length(None, "m", "l", ids) == 0
    assert trusted_length(header_for(ids), "x", "l", ids) == 0
    assert trusted_length(header_for(ids), "m", "x", ids) == 0
    assert trusted_length(header_for([5, 6, 8]), "m", "l", ids) == 0
    assert trusted_length(header_for([5, 6, 7, 8]), "m", "l", ids) == 0


def test_what_one_mapping_writes_the_next_one_reads(tiny: ModelDescription, new_kv: Callable[..., KvFile]):
    file = new_kv(tiny)
    first = KvMemory(file.fd, file.layout)
    state = first.open_slot(1, "hash-of-model")
    state.begin([1, 2, 3])
    state.extend([4, 5], 2)
    first.close()

    second = KvMemory(file.fd, file.layout)
    header = second.read_header(1)
    assert header is not None
    assert trusted_length(header, "hash-of-model", file.layout.layout_id, [1, 2, 3, 4, 5, 6]) == 5
    assert second.read_header(0) is None
    again = second.open_slot(1, "hash-of-model")
    again.begin([9])
    later = second.read_header(1)
    assert later is not None
    assert later.length == 1
    assert later.sequence > header.sequence
    second.close()


@pytest.mark.parametrize("kv_type", ["float32", "int8_per_token"])
def test_a_copied_prefix_is_the_same_in_every_tensor_and_ends_where_it_was_asked_to(kv_type: KvType):
    layout = KvLayout(layers=2, slots=2, kv_heads=2, max_len=40, head_dim=16, kv_type=kv_type)
    file = KvFile(layout)
    kv = KvMemory(file.fd, layout)
    rng = np.random.default_rng(4)
    blocks = [(layer, part.name) for layer in (0, 1) for part in layout.parts]
    for layer, part in blocks:
        shape = kv.slot_bytes(layer, part, 0).shape
        kv.slot_bytes(layer, part, 0)[:] = rng.integers(1, 256, shape, np.uint8)
    kv.copy_prefix(0, 1, 25)
    for layer, part in blocks:
        assert (kv.slot_bytes(layer, part, 1)[:, :25] == kv.slot_bytes(layer, part, 0)[:, :25]).all()
        assert not kv.slot_bytes(layer, part, 1)[:, 25:].any()
    kv.close()
    file.close()


def test_memory_smaller_than_its_layout_is_refused(tiny: ModelDescription, new_kv: Callable[..., KvFile]):
    file = new_kv(tiny)
    with pytest.raises(ModelError) as caught:
        KvMemory(file.fd, layout_of(tiny, slots=50))
    assert caught.value.code == "kv_memory_too_small"
