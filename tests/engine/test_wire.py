import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude.engine.protocol import (
    CancelRequest,
    Generate,
    GetStats,
    SamplerSettings,
    ToEngine,
    Tokens,
    ToService,
)
from magnitude.engine.wire import FrameReader, encode_frame
from magnitude.errors import EngineError


@given(
    st.lists(
        st.builds(CancelRequest, target=st.integers(0, 2**40)) | st.builds(GetStats, request_id=st.integers(0, 9))
    ),
    st.lists(st.integers(1, 50)),
)
def test_messages_survive_any_cutting_of_the_stream(messages: list[object], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(message) for message in messages)  # type: ignore[arg-type]
    reader: FrameReader[object] = FrameReader(ToEngine)
    seen: list[object] = []
    for cut in [*cuts, len(stream)]:
        seen += reader.feed(stream[:cut])
        stream = stream[cut:]
    seen += reader.feed(stream)
    assert seen == messages


def test_a_generation_survives_the_trip_with_all_its_settings() -> None:
    sent = Generate(
        request_id=7,
        model="m",
        slot=1,
        prompt=[1, 2],
        emitted=[3],
        max_new_tokens=4,
        sampler=SamplerSettings(seed=2**64 - 1, logit_bias={5: -100.0}),
        stop_ids=(2,),
        logprobs=0,
    )
    assert FrameReader[object](ToEngine).feed(encode_frame(sent)) == [sent]


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("<I", 2**31) + b"x",
        struct.pack("<I", 3) + b"\xff\xff\xff",
        encode_frame(Tokens(request_id=1, ids=[1])),  # a message of the other direction
    ],
)
def test_a_broken_stream_is_an_error_and_not_a_guess(stream: bytes) -> None:
    with pytest.raises(EngineError):
        FrameReader[object](ToEngine).feed(stream)


def test_each_direction_decodes_its_own_messages() -> None:
    message = Tokens(request_id=1, ids=[1, 2])
    assert FrameReader[object](ToService).feed(encode_frame(message)) == [message]
