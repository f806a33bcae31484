"""`danube schemas` against a real broker: subjects, versions, compatibility, bindings, differences."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import answer

pytestmark = pytest.mark.process

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


def order(**fields: object) -> str:
    """Return the definition of an order with these fields instead of, or after, its own: NAME=TYPE."""
    kept = [one for one in ORDER["fields"] if one["name"] not in fields]
    return json.dumps(ORDER | {"fields": [*kept, *({"name": name, "type": one} for name, one in fields.items())]})


def registered(danube, subject: str, definition: str, *options: str) -> dict:
    return answer(danube("schemas", "register", subject, "-", "--format", "avro", *options, "--json", stdin=definition))


def test_registering_prints_ids_and_version_and_finds_what_is_there(danube, subject, tmp_path: Path):
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    told = danube("schemas", "register", subject, str(tmp_path / "order.avsc"), "--format", "avro")
    assert re.fullmatch(rf"registered {subject}: schema id \d+, version 1, global id \d+\n", told.stdout), told.stderr
    again = danube("schemas", "register", subject, str(tmp_path / "order.avsc"))
    assert again.stdout == told.stdout.replace("registered", "already registered")
    same = registered(danube, subject, json.dumps(ORDER, indent=8, sort_keys=True))
    assert set(same) == {"schema_id", "version", "global_id", "is_new", "fingerprint"}
    assert (same["version"], same["is_new"]) == (1, False)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("o.avsc", '"string"', "avro"),
        ("o.json", '{"type": "object"}', "json"),
        ("o.JSONSCHEMA", "{}", "json"),
        ("o.proto", 'syntax = "proto3"; message A { int32 a = 1; }', "protobuf"),
    ],
)
def test_the_format_follows_from_the_name_of_the_file(danube, subject, tmp_path, name: str, text: str, kind: str):
    (tmp_path / name).write_text(text)
    danube("schemas", "register", subject, str(tmp_path / name))
    found = answer(danube("schemas", "get", subject, "--json"))
    assert (found["definition"]["format"], found["definition"]["text"]) == (kind, text)


def test_a_descriptor_set_is_read_as_a_file(danube, subject, tmp_path):
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, type=5, label=1)
    (tmp_path / "a.binpb").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    assert danube("schemas", "register", subject, str(tmp_path / "a.binpb")).returncode == 0
    (tmp_path / "a.proto").write_text('syntax = "proto3"; message A { int32 a = 1; string b = 2; }')
    shown = danube("schemas", "diff", subject, "--file", str(tmp_path / "a.proto"))
    assert '+    name: "b"' in shown.stdout, shown


def test_a_format_without_structure_needs_no_file(danube, subject):
    assert danube("schemas", "register", subject, "--format", "string").returncode == 0
    assert answer(danube("schemas", "get", subject, "--json"))["definition"]["format"] == "string"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["x", "-"], "--format"),
        (["x", "FILE.txt"], "--format"),
        (["x", "--format", "avro"], "needs a FILE"),
        (["x", "FILE.txt", "--format", "xml"], "xml"),
        (["x", "no-such-file.avsc"], "no-such-file.avsc"),
        (["a b", "FILE.avsc"], "a b"),
        (["x", "FILE.avsc", "--reference", "a:1"], "NAME=SUBJECT:VERSION"),
        (["x", "FILE.avsc", "--reference", "a=b:0"], "'0' is not a version"),
    ],
)
def test_wrong_usage_of_register_is_named(danube, tmp_path, words: list[str], named: str):
    for suffix in ("txt", "avsc"):
        (tmp_path / f"FILE.{suffix}").write_text('"int"')
    refused = danube("schemas", "register", *(str(tmp_path / one) if "FILE" in one else one for one in words))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert named in refused.stderr


def test_a_definition_that_is_no_text_or_cannot_be_parsed_is_one_line(danube, subject, tmp_path):
    (tmp_path / "o.avsc").write_bytes(b"\xff\xfe")
    refused = danube("schemas", "register", subject, str(tmp_path / "o.avsc"))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "not text in UTF-8" in refused.stderr
    refused = danube("schemas", "register", subject, "-", "--format", "avro", stdin='{"type": "recrod"}')
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "recrod" in refused.stderr


def test_every_incompatible_field_is_on_a_line_of_its_own(danube, subject):
    registered(danube, subject, order(price="long", count="int"))
    wrong = order(price="string", count="string", added="int")
    refused = danube("schemas", "register", subject, "-", "--format", "avro", stdin=wrong)
    assert refused.returncode == 1
    first, *reasons = refused.stderr.splitlines()
    assert first == f"danube: {subject}: the definition is not compatible (backward):"
    assert [one.split(":")[0] for one in sorted(reasons)] == ["  $.added", "  $.count", "  $.price"]
    checked = danube("schemas", "check", subject, "-", "--format", "avro", stdin=wrong)
    assert (checked.returncode, checked.stderr) == (1, refused.stderr)
    told = danube("schemas", "check", subject, "-", "--format", "avro", "--json", stdin=wrong)
    assert told.returncode == 1
    verdict = json.loads(told.stdout)
    assert (verdict["compatible"], verdict["level"]) == (False, "backward")
    assert {one["path"] for one in verdict["reasons"]} == {"$.added", "$.count", "$.price"}
    assert answer(danube("schemas", "versions", subject, "--json"))[0]["version"] == 1


def test_a_check_may_name_a_version_and_a_level(danube, subject):
    registered(danube, subject, order(price="int"))
    registered(danube, subject, order(price="long"))
    narrow = order(price="int")
    check = ("schemas", "check", subject, "-", "--format", "avro")
    assert danube(*check, stdin=narrow).returncode == 1
    assert danube(*check, "--latest", stdin=narrow).returncode == 1
    assert danube(*check, "--version", "1", stdin=narrow).stdout == f"compatible with {subject} (backward)\n"
    assert danube(*check, "--level", "forward", stdin=narrow).returncode == 0
    assert danube(*check, "--version", "1", "--latest", stdin=narrow).returncode == 2


def test_a_check_tells_that_the_subject_does_not_exist(danube, subject):
    told = danube("schemas", "check", subject, "-", "--format", "avro", stdin=order())
    assert (told.returncode, told.stdout) == (0, f"compatible with {subject} (backward)\n")
    assert told.stderr == f"subject '{subject}' does not exist: there is nothing to compare the definition with\n"
    registered(danube, subject, order())
    assert danube("schemas", "check", subject, "-", "--format", "avro", stdin=order()).stderr == ""


def test_the_help_says_what_happens_without_a_version(danube):
    assert "[default: the whole subject]" in " ".join(danube("schemas", "delete", "--help").stdout.split())
    assert "[default: the latest]" in " ".join(danube("schemas", "get", "--help").stdout.split())


def test_a_binding_without_a_policy_checks_no_payloads(danube, subject, topic):
    registered(danube, subject, order())
    danube("topics", "create", topic)
    danube("schemas", "bind", topic, subject, "--policy", "none")
    assert "payloads    not checked\n" in danube("schemas", "binding", topic).stdout


def test_references_are_named_with_subject_and_version(danube, subject):
    address = '{"type": "record", "name": "shop.Address", "fields": [{"name": "zip", "type": "string"}]}'
    registered(danube, f"{subject}-address", address)
    whole = order(to="shop.Address")
    refused = danube("schemas", "register", subject, "-", "--format", "avro", stdin=whole)
    assert refused.returncode == 1
    assert "shop.Address" in refused.stderr
    registered(danube, subject, whole, "--reference", f"shop.Address={subject}-address:1")
    registered(danube, f"{subject}:a", whole, "--reference", f"shop.Address={subject}-address")
    (found,) = answer(danube("schemas", "versions", subject, "--json"))
    assert found["definition"]["references"] == [
        {"name": "shop.Address", "subject": f"{subject}-address", "version": 1}
    ]
    assert f"shop.Address={subject}-address:1" in danube("schemas", "versions", f"{subject}:a").stdout
    used = danube("schemas", "delete", f"{subject}-address", "--yes")
    assert used.returncode == 1
    assert subject in used.stderr


def test_a_definition_is_printed_as_it_was_registered(danube, subject):
    text = json.dumps(ORDER, indent=3)
    made = registered(danube, subject, text)
    assert danube("schemas", "get", subject).stdout == f"{text}\n"
    by_id = ("schemas", "get", "--id", str(made["schema_id"]))
    assert danube(*by_id).stdout == danube(*by_id, "--version", "1").stdout == f"{text}\n"
    found = answer(danube("schemas", "get", "--global-id", str(made["global_id"]), "--json"))
    assert (found["fingerprint"], found["definition"]["format"]) == (made["fingerprint"], "avro")
    missing = danube("schemas", "get", f"{subject}-none")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert f"{subject}-none" in missing.stderr
    assert danube("schemas", "get").returncode == 2
    assert danube("schemas", "get", subject, "--id", "1").returncode == 2


def test_subjects_are_listed_described_and_tagged(danube, subject):
    made = registered(danube, f"{subject}-1", json.dumps(ORDER), "--tag", "team=shop")
    registered(danube, f"{subject}-2", json.dumps(ORDER))
    assert danube("schemas", "list", subject).stdout.split() == [f"{subject}-1", f"{subject}-2"]
    assert f"{subject}-1" in answer(danube("schemas", "list", "--json"))
    long = answer(danube("schemas", "list", f"{subject}-1", "--long", "--json"))
    described = answer(danube("schemas", "describe", f"{subject}-1", "--json"))
    assert long == [described]
    assert (described["schema_id"], described["versions"], described["format"]) == (made["schema_id"], [1], "avro")
    assert described["effective_compatibility"] == "backward"
    assert "backward (the broker's default)" in danube("schemas", "describe", f"{subject}-1").stdout
    assert "avro" in danube("schemas", "list", subject, "-l").stdout
    told = danube("schemas", "tag", f"{subject}-1", "reviewed", "team=shop")
    assert told.stdout == f"{subject}-1 version 1: reviewed, team=shop\n"
    left = answer(danube("schemas", "tag", f"{subject}-1", "reviewed", "--remove", "--version", "1", "--json"))
    assert left == {"subject": f"{subject}-1", "version": 1, "tags": ["team=shop"]}


def test_deletion_is_soft_then_permanent(danube, subject):
    registered(danube, subject, json.dumps(ORDER))
    registered(danube, subject, order(note=["null", "string", "int"]))
    assert danube("schemas", "delete", subject, "--version", "1").returncode == 2
    early = danube("schemas", "delete", subject, "--version", "1", "--permanent", "--yes")
    assert early.returncode == 1
    assert "delete it first" in early.stderr
    assert danube("schemas", "delete", subject, "--version", "1", "-y").stdout == f"deleted 1 version of {subject}: 1\n"
    assert danube("schemas", "get", subject, "--version", "1").returncode == 1
    assert answer(danube("schemas", "get", subject, "--version", "1", "--deleted", "--json"))["deleted"] is True
    assert "deleted" in danube("schemas", "versions", subject, "--deleted").stdout
    gone = answer(danube("schemas", "delete", subject, "--yes", "--json"))
    assert gone == {"subject": subject, "deleted": [2], "permanent": False}
    assert danube("schemas", "list", subject).stdout == ""
    assert danube("schemas", "list", subject, "--deleted").stdout == f"{subject}\n"
    told = danube("schemas", "delete", subject, "--permanent", "--yes").stdout
    assert told == f"removed 2 versions of {subject}: 1, 2\n"
    assert danube("schemas", "list", subject, "--deleted").stdout == ""


def test_the_compatibility_of_a_subject_is_set_and_inherited_again(danube, subject):
    registered(danube, subject, json.dumps(ORDER))
    assert danube("schemas", "set-compatibility", subject, "full_transitive").stdout == f"{subject}: full-transitive\n"
    assert danube("schemas", "compatibility", subject).stdout == f"{subject}: full-transitive\n"
    told = answer(danube("schemas", "set-compatibility", subject, "default", "--json"))
    assert told == {"subject": subject, "compatibility": "backward"}
    wrong = danube("schemas", "set-compatibility", subject, "sideways")
    assert wrong.returncode == 2
    assert "backward-transitive" in wrong.stderr
    assert danube("schemas", "set-compatibility", subject).returncode == 2
    assert danube("schemas", "set-compatibility", "--default", subject, "none").returncode == 2


def test_the_default_compatibility_is_the_brokers(danube, serve, tmp_path):
    url = serve(tmp_path / "data").url
    assert danube("schemas", "set-compatibility", "--default", "none", url=url).stdout == "default: none\n"
    assert answer(danube("schemas", "compatibility", "--json", url=url)) == {"subject": None, "compatibility": "none"}


def test_a_topic_is_bound_and_unbound(danube, subject, topic):
    registered(danube, subject, json.dumps(ORDER))
    danube("topics", "create", topic)
    assert danube("schemas", "binding", topic).stdout == f"{topic} is not bound to a subject\n"
    assert answer(danube("topics", "describe", topic, "--json"))["schema"] is None
    bound = danube("schemas", "bind", topic, subject, "--policy", "warn", "--min-version", "1", "--tombstones")
    assert bound.stdout == f"bound {topic} to {subject} (warn, version 1 and later, tombstones)\n"
    wanted = {
        "subject": subject,
        "policy": "warn",
        "validate_payloads": True,
        "pinned_version": 0,
        "minimum_version": 1,
        "tombstones": True,
        "framing": "none",
    }
    assert answer(danube("schemas", "binding", topic, "--json")) == wanted
    assert answer(danube("topics", "describe", topic, "--json"))["schema"] == wanted
    assert f"schema         {subject} (warn" in danube("topics", "describe", topic).stdout
    assert danube("topics", "describe", topic).stdout.splitlines()[0].endswith(topic)
    assert topic in danube("schemas", "describe", subject).stdout
    again = answer(danube("schemas", "bind", topic, subject, "--version", "1", "--framing", "confluent", "--json"))
    assert (again["binding"]["policy"], again["binding"]["pinned_version"]) == ("enforce", 1)
    assert (again["binding"]["tombstones"], again["binding"]["framing"]) == (False, "confluent")
    assert "version 1\n" in danube("schemas", "binding", topic).stdout
    registered(danube, f"{subject}-2", json.dumps(ORDER))
    other = danube("schemas", "bind", topic, f"{subject}-2")
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert danube("schemas", "unbind", topic).stdout == f"unbound {topic}\n"
    assert danube("schemas", "unbind", topic).returncode == 1
    assert danube("schemas", "bind", topic, subject, "--version", "1", "--min-version", "1").returncode == 2
    assert danube("schemas", "bind", topic, f"{subject}-none").returncode == 1


def test_a_difference_shows_what_changed_and_who_can_read_whom(danube, subject, tmp_path):
    registered(danube, subject, json.dumps(ORDER, indent=7))
    alone = danube("schemas", "diff", subject)
    assert alone.returncode == 1
    assert "nothing to compare" in alone.stderr
    registered(danube, subject, order(note=["null", "string", "int"]))
    shown = danube("schemas", "diff", subject)
    lines = shown.stdout.splitlines()
    assert lines[:2] == [f"--- {subject}:1", f"+++ {subject}:2"]
    assert ["+", '"int"'] in [line.split() for line in lines]
    assert "backward (new readers, old data): compatible" in lines
    at = lines.index("forward (old readers, new data): not compatible")
    assert lines[at + 1].startswith("  $.note")
    assert answer(danube("schemas", "diff", subject, "1", "2", "--json"))["forward"]["compatible"] is False
    assert danube("schemas", "diff", subject, "2", "2").stdout.startswith(f"{subject}:2 and {subject}:2 are the same\n")
    (tmp_path / "next.avsc").write_text(order(id="string"))
    told = answer(danube("schemas", "diff", subject, "--file", str(tmp_path / "next.avsc"), "--json"))
    assert (told["old"], told["backward"]["compatible"]) == (f"{subject}:2", False)
    assert any(line.startswith("+") and '"string"' in line for line in told["diff"])
    assert danube("schemas", "diff", subject, "1", "2", "--file", str(tmp_path / "next.avsc")).returncode == 2


def test_a_difference_of_proto_text_ignores_white_space(danube, subject):
    for text in (
        'syntax = "proto3";\nmessage A {\n  int32 a = 1;\n}\n',
        'syntax = "proto3";\n\nmessage A {\n      int32   a = 1;\n  string b = 2;\n}\n',
    ):
        done = danube("schemas", "register", subject, "-", "--format", "protobuf", stdin=text)
        assert done.returncode == 0, done.stderr
    lines = danube("schemas", "diff", subject).stdout.splitlines()
    assert [line for line in lines if line[:1] in "+-"][2:] == ["+  string b = 2;"]
