from __future__ import annotations

from magnitude.text.document_prompt import with_documents


def test_documents_stand_in_front_of_the_last_question():
    messages = [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Why?"},
    ]
    result = with_documents(messages, "unused", ["Because. ", "So it is."])
    assert result[:2] == messages[:2]
    assert result[2]["content"].startswith("[1] Because.\n\n[2] So it is.\n\n")
    assert result[2]["content"].endswith("\n\nWhy?")
    assert messages[2]["content"] == "Why?"


def test_without_a_question_the_query_is_one():
    result = with_documents([{"role": "system", "content": "Be brief."}], "Why?", ["Because."])
    assert [message["role"] for message in result] == ["system", "user"]
    assert result[1]["content"].endswith("Why?")
