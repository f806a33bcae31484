"""Hosts and ports as text: what is written is read again, and what has another form is not taken for a host."""

from __future__ import annotations

import pytest

from pydanube.model.addresses import host_port, is_loopback, split_host_port


@pytest.mark.parametrize(("host", "text"), [("broker.example", "broker.example:1"), ("::1", "[::1]:1")])
def test_what_is_written_is_read_again(host: str, text: str) -> None:
    assert host_port(host, 1) == text
    assert split_host_port(text) == (host, "1")


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", ("a", None)), ("[::1]", ("::1", None)), ("a:", ("a", "")), ("[::1]:", ("::1", "")), ("", ("", None))],
)
def test_a_port_may_be_missing(text: str, parts: tuple[str, str | None]) -> None:
    assert split_host_port(text) == parts


@pytest.mark.parametrize("text", ["::1", "::1:6655", "[::1", "[::1]6655", "a:b:c", "[::1]x:1"])
def test_other_text_has_no_host(text: str) -> None:
    assert split_host_port(text) == ("", None)


def test_a_loopback_address_is_of_this_machine() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "localhost.example", ""]))
