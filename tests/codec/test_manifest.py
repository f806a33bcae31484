"""Manifests: what goes in comes out, anything else is Corrupt, and the bytes are drawn."""

import re
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pydanube.codec.manifest import ClusterManifest, ManifestBuilder, PartitionPositions
from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import CursorEntry

NOW = 1_700_000_000_000_000
PAIRS = [("/counters/topic", b"7"), ("/topics/default/orders", b"\x81\xa8topic_id\x07")]
PLACES = [
    PartitionPositions(7, 0, 1234, [CursorEntry(3, 1000, [(1002, 1004), (1100, 1234)])]),
    PartitionPositions(7, 1, 0, []),
]
GOLDEN = """
444d414e 01 00 0000 00401e18240a0600 2a00000000000000
000000000000000000000000000000000000000000000000000000000000000000000000 3a8a26ef
01 000000 18000000 10000000 52254e07 78019bccb82c2531af34297599499a618a51320036600614
02 000000 3a000000 3a000000 882f9991
78019b3469bd7e727e695e496a51b17e497e4166f21146f349db20cc62fd94d4b4c4d29c12fdfca214a08223dc8d2bc06ae23353d801d28417e5
03 000000 2a000000 21000000 69b108b7
78019b34859de12ccba5899399cf32bf9834e92cf3abb3cc6f269d65f1010a4e616764980000045e0ec8
04 000000 0c000000 04000000 8ac991f6 78019bccccc40400025f009b
"""


def built(pairs=PAIRS, places=PLACES) -> bytes:
    builder = ManifestBuilder("danube", "4f1d2c", 42, NOW)
    builder.add_keys(pairs)
    builder.add_positions(places)
    return b"".join(builder.finish())


def test_a_manifest_says_what_was_put_in():
    manifest = ClusterManifest.open(built())
    assert (manifest.cluster, manifest.writer, manifest.number, manifest.created_at_us) == ("danube", "4f1d2c", 42, NOW)
    assert [pair for page in manifest.pairs() for pair in page] == PAIRS
    assert list(manifest.all_positions()) == PLACES
    assert (manifest.keys, manifest.places) == (2, 2)


def test_the_bytes_drawn_on_the_page_are_read():
    # What a compressing library makes of the same bytes may change: nobody compares what is written with these.
    manifest = ClusterManifest.open(bytes.fromhex(GOLDEN))
    assert (manifest.cluster, manifest.writer, manifest.number, manifest.created_at_us) == ("danube", "4f1d2c", 42, NOW)
    assert [pair for page in manifest.pairs() for pair in page] == PAIRS
    assert list(manifest.all_positions()) == PLACES


def test_the_page_draws_these_bytes():
    text = (Path(__file__).parents[2] / "docs" / "segments.md").read_text().split("## Manifests")[1]
    golden = bytes.fromhex(GOLDEN)
    drawn = re.findall(r"^ {0,3}(?:(\d+)|   )  ((?:[0-9a-f]{2,} ?)+)", text, re.MULTILINE)
    at = 0
    for place, digits in drawn:
        piece = bytes.fromhex(digits.replace(" ", ""))
        at = int(place) if place else at
        assert golden[at : at + len(piece)] == piece, (place, digits)
        at += len(piece)
    assert at == len(golden)
    assert len(drawn) == 14


def test_a_manifest_names_the_metadata_store_it_was_made_from():
    manifest = ClusterManifest.open(b"".join(ManifestBuilder("danube", "4f1d2c", 42, NOW, "ab" * 16, 41).finish()))
    assert (manifest.store_id, manifest.revision) == ("ab" * 16, 41)
    of_an_earlier_release = ClusterManifest.open(bytes.fromhex(GOLDEN))
    assert (of_an_earlier_release.store_id, of_an_earlier_release.revision) == ("", 0)


def test_an_empty_cluster_has_a_manifest():
    manifest = ClusterManifest.open(built([], []))
    assert (list(manifest.pairs()), list(manifest.all_positions())) == ([], [])


@given(
    st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.binary()), unique_by=lambda one: one[0]),
    st.integers(1, 5),
)
def test_pages_come_back_in_order(pairs, size):
    pairs.sort()
    builder = ManifestBuilder("c", "w", 2**63, 0)
    for start in range(0, len(pairs), size):
        builder.add_keys(pairs[start : start + size])
    manifest = ClusterManifest.open(b"".join(builder.finish()))
    assert [pair for page in manifest.pairs() for pair in page] == pairs


def test_every_cut_and_every_changed_bit_is_noticed():
    whole = built()
    for end in range(len(whole)):
        with pytest.raises(Corrupt, match="the newest"):
            ClusterManifest.open(whole[:end], "the newest")
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        with pytest.raises(Corrupt):
            ClusterManifest.open(changed)
    with pytest.raises(Corrupt):
        ClusterManifest.open(whole + b"\0")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_manifest_or_corrupt(data):
    with pytest.raises(Corrupt):
        ClusterManifest.open(data)
    with pytest.raises(Corrupt):
        ClusterManifest.open(built()[:64] + data)


def test_pages_that_do_not_add_up_are_refused():
    builder = ManifestBuilder("c", "w", 1, 0)
    builder.add_keys(PAIRS)
    pieces = builder.finish()
    with pytest.raises(Corrupt, match="instead of"):
        ClusterManifest.open(b"".join([*pieces[:2], pieces[3]]))
    with pytest.raises(Corrupt, match="cut short"):
        ClusterManifest.open(b"".join(pieces[:3]))
    unordered = ManifestBuilder("c", "w", 1, 0)
    unordered.add_keys([PAIRS[1], PAIRS[0]])
    with pytest.raises(Corrupt, match="comes after"):
        ClusterManifest.open(b"".join(unordered.finish()))


def test_a_newer_release_is_refused_by_name():
    whole = bytearray(built())
    whole[4] = 2
    whole[60:64] = crc32c(bytes(whole[:60])).to_bytes(4, "little")
    with pytest.raises(Corrupt, match="version 2 is unknown"):
        ClusterManifest.open(whole)
