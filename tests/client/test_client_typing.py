"""What a type checker says about the options of the client: a misspelled word is an error before the program runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from mypy import api

import pydanube
from pydanube.client.settings import CompressionName
from pydanube.codec.batch import Codec
from pydanube.model.topics import AckLevel, AckLevelName, SubscriptionType, SubscriptionTypeName

WRONG = [
    'client.consumer("/default/orders", subscription="s", type="sharde")',
    'client.producer("/default/orders", compression="gzip")',
    'client.producer("/default/orders", access="exclusif")',
    'client.producer("/default/orders", partition_by="keys")',
    'client.create_topic("/default/orders", ack_level="durabel")',
    'client.create_subscription("/default/orders", "s", type="key_shared")',
    'blocking.consumer("/default/orders", subscription="s", type="sharde")',
    'blocking.producer("/default/orders", compression="gzip")',
    'blocking.create_topic("/default/orders", ack_level="durabel")',
]
RIGHT = [
    'client.consumer("/default/orders", subscription="s", type="key-shared", start="earliest")',
    'client.consumer("/default/orders", subscription="s", type=None)',
    'client.producer("/default/orders", compression="zstd", access="exclusive", partition_by="round-robin")',
    'client.producer("/default/orders", compression=None, partition_by=lambda key, payload, count: 0)',
    'client.producer("/default/orders", partition_by=3)',
    'client.create_topic("/default/orders", ack_level="written")',
    'client.create_subscription("/default/orders", "s", type="failover")',
    'blocking.consumer("/default/orders", subscription="s", type="shared")',
    "client.close(timeout=1)",
    "blocking.close(timeout=1.5)",
    "pydanube.connect()",
]


@pytest.mark.xdist_group("mypy")  # with the same options, so that one finds what the other has cached
def test_misspelled_options_are_type_errors(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    head = [
        "import pydanube",
        "def program(client: pydanube.Client, blocking: pydanube.BlockingClient) -> None:",
    ]
    lines = head + [f"    {line}" for line in WRONG + RIGHT]
    program.write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("MYPYPATH", str(Path(pydanube.__file__).parents[1]))
    assert pytestconfig.cache is not None
    options = ["--cache-dir", str(pytestconfig.cache.mkdir("mypy")), "--follow-imports=silent", "--config-file="]
    out, err, _ = api.run([str(program), *options, "--strict", "--disable-error-code=unused-coroutine"])
    assert err == ""
    refused = [int(number) for number in re.findall(r"program\.py:(\d+): error", out)]
    wrong = range(len(head) + 1, len(head) + 1 + len(WRONG))
    assert sorted(set(refused)) == list(wrong), out
    assert 'expected "Literal[' in out


def test_the_words_are_those_that_are_understood() -> None:
    assert set(get_args(SubscriptionTypeName)) == {str(one) for one in SubscriptionType}
    assert set(get_args(AckLevelName)) == {str(one) for one in AckLevel}
    assert set(get_args(CompressionName)) == {str(one) for one in Codec}
