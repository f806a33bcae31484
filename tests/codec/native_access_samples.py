"""Golden bytes of what the native protocol says about access: roles, bindings, API keys and quotas."""

from __future__ import annotations

import msgspec
from native_samples import unhex
from native_version_samples import VERSION

from pydanube.model.quotas import Quota, QuotaSubject, QuotaUsage
from pydanube.model.security import (
    AccessAnswer,
    ApiKey,
    Binding,
    BoundSubject,
    CallerIdentity,
    NewApiKey,
    ResourcePattern,
    Role,
)
from pydanube.operations import access

ALICE = BoundSubject("user", "alice")
BINDING = Binding("b-orders", ALICE, ("producer",), ResourcePattern("/default/orders-*"))
KEY = ApiKey("5d3f1c0e7a0b4a51", ALICE, ("ops",), 1_700_000_000_000_000, 1_800_000_000_000_000, "laptop")
QUOTA = Quota(
    QuotaSubject("user", "alice"),
    20,
    100,
    1_000_000,
    2_000_000,
    1 << 40,
    VERSION,
    QuotaUsage(2, 1.5, 731204.5, 0.0, 1 << 30),
)

ACCESS_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        access.ListRoles(),
        unhex("""
        81a26f70 ac616363 6573732e 726f6c65 73
        """),
    ),
    (
        access.GetRole(name="loader"),
        unhex("""
        82a26f70 ab616363 6573732e 726f6c65 a46e616d 65a66c6f 61646572
        """),
    ),
    (
        access.CreateRole(name="loader", actions=["produce", "create"]),
        unhex("""
        83a26f70 b2616363 6573732e 726f6c65 5f637265 617465a4 6e616d65 a66c6f61
        646572a7 61637469 6f6e7392 a770726f 64756365 a6637265 617465
        """),
    ),
    (
        access.ChangeRole(name="loader", actions=["produce"], expected=VERSION),
        unhex("""
        84a26f70 b2616363 6573732e 726f6c65 5f636861 6e6765a4 6e616d65 a66c6f61
        646572a7 61637469 6f6e7391 a770726f 64756365 a8657870 65637465 64b06237
        36323535 63616561 36346234 3133
        """),
    ),
    (
        access.DeleteRole(name="loader", expected=VERSION),
        unhex("""
        83a26f70 b2616363 6573732e 726f6c65 5f64656c 657465a4 6e616d65 a66c6f61
        646572a8 65787065 63746564 b0623736 32353563 61656136 34623431 33
        """),
    ),
    (
        Role("loader", ("produce",), version=VERSION),
        unhex("""
        83a46e61 6d65a66c 6f616465 72a76163 74696f6e 7391a770 726f6475 6365a776
        65727369 6f6eb062 37363235 35636165 61363462 343133
        """),
    ),
    (
        access.RolesListed([Role("monitor", ("describe",), built_in=True)]),
        unhex("""
        81a5726f 6c657391 83a46e61 6d65a76d 6f6e6974 6f72a761 6374696f 6e7391a8
        64657363 72696265 a8627569 6c745f69 6ec3
        """),
    ),
    (
        access.ListAccessBindings(subject="group:ops", resource="/default", after="b1", limit=10),
        unhex("""
        85a26f70 af616363 6573732e 62696e64 696e6773 a7737562 6a656374 a967726f
        75703a6f 7073a872 65736f75 726365a8 2f646566 61756c74 a5616674 6572a262
        31a56c69 6d69740a
        """),
    ),
    (
        access.GetAccessBinding(id="b-orders"),
        unhex("""
        82a26f70 ae616363 6573732e 62696e64 696e67a2 6964a862 2d6f7264 657273
        """),
    ),
    (
        access.CreateAccessBinding(
            subject="user:alice", roles=["producer"], resource="/default/orders-*", id="b-orders"
        ),
        unhex("""
        85a26f70 ab616363 6573732e 62696e64 a7737562 6a656374 aa757365 723a616c
        696365a5 726f6c65 7391a870 726f6475 636572a8 7265736f 75726365 b12f6465
        6661756c 742f6f72 64657273 2d2aa269 64a8622d 6f726465 7273
        """),
    ),
    (
        access.DeleteAccessBinding(id="b-orders"),
        unhex("""
        82a26f70 ad616363 6573732e 756e6269 6e64a269 64a8622d 6f726465 7273
        """),
    ),
    (
        BINDING,
        unhex("""
        84a26964 a8622d6f 72646572 73a77375 626a6563 74aa7573 65723a61 6c696365
        a5726f6c 657391a8 70726f64 75636572 a8726573 6f757263 65b12f64 65666175
        6c742f6f 72646572 732d2a
        """),
    ),
    (
        access.BindingsListed([BINDING], "b-orders"),
        unhex("""
        82a86269 6e64696e 67739184 a26964a8 622d6f72 64657273 a7737562 6a656374
        aa757365 723a616c 696365a5 726f6c65 7391a870 726f6475 636572a8 7265736f
        75726365 b12f6465 6661756c 742f6f72 64657273 2d2aa46e 657874a8 622d6f72
        64657273
        """),
    ),
    (
        access.ListApiKeys(principal="user:alice", after="5d", limit=10),
        unhex("""
        84a26f70 ab616363 6573732e 6b657973 a9707269 6e636970 616caa75 7365723a
        616c6963 65a56166 746572a2 3564a56c 696d6974 0a
        """),
    ),
    (
        access.CreateApiKey(principal="user:alice", groups=["ops"], expires_at=1_800_000_000_000_000, comment="laptop"),
        unhex("""
        85a26f70 b1616363 6573732e 6b65795f 63726561 7465a970 72696e63 6970616c
        aa757365 723a616c 696365a6 67726f75 707391a3 6f7073aa 65787069 7265735f
        6174cf00 06651728 988000a7 636f6d6d 656e74a6 6c617074 6f70
        """),
    ),
    (
        access.RevokeApiKey(id="5d3f1c0e7a0b4a51"),
        unhex("""
        82a26f70 b1616363 6573732e 6b65795f 7265766f 6b65a269 64b03564 33663163
        30653761 30623461 3531
        """),
    ),
    (
        KEY,
        unhex("""
        86a26964 b0356433 66316330 65376130 62346135 31a97072 696e6369 70616caa
        75736572 3a616c69 6365a667 726f7570 7391a36f 7073aa63 72656174 65645f61
        74cf0006 0a24181e 4000aa65 78706972 65735f61 74cf0006 65172898 8000a763
        6f6d6d65 6e74a66c 6170746f 70
        """),
    ),
    (
        access.KeysListed([KEY]),
        unhex("""
        81a46b65 79739186 a26964b0 35643366 31633065 37613062 34613531 a9707269
        6e636970 616caa75 7365723a 616c6963 65a66772 6f757073 91a36f70 73aa6372
        65617465 645f6174 cf00060a 24181e40 00aa6578 70697265 735f6174 cf000665
        17289880 00a7636f 6d6d656e 74a66c61 70746f70
        """),
    ),
    (
        NewApiKey(KEY, "dnb_5d3f1c0e7a0b4a51_example"),
        unhex("""
        82a36b65 7986a269 64b03564 33663163 30653761 30623461 3531a970 72696e63
        6970616c aa757365 723a616c 696365a6 67726f75 707391a3 6f7073aa 63726561
        7465645f 6174cf00 060a2418 1e4000aa 65787069 7265735f 6174cf00 06651728
        988000a7 636f6d6d 656e74a6 6c617074 6f70a673 65637265 74bc646e 625f3564
        33663163 30653761 30623461 35315f65 78616d70 6c65
        """),
    ),
    (
        access.WhoAmI(),
        unhex("""
        81a26f70 ad616363 6573732e 77686f61 6d69
        """),
    ),
    (
        CallerIdentity("user:alice", ("ops",), "jwt", 1_800_000_000_000_000, bindings=(BINDING,)),
        unhex("""
        85a97072 696e6369 70616caa 75736572 3a616c69 6365a667 726f7570 7391a36f
        7073a66d 6574686f 64a36a77 74aa6578 70697265 735f6174 cf000665 17289880
        00a86269 6e64696e 67739184 a26964a8 622d6f72 64657273 a7737562 6a656374
        aa757365 723a616c 696365a5 726f6c65 7391a870 726f6475 636572a8 7265736f
        75726365 b12f6465 6661756c 742f6f72 64657273 2d2a
        """),
    ),
    (
        access.AskAccess(action="produce", resource="/default/orders", principal="user:alice", groups=["ops"]),
        unhex("""
        85a26f70 aa616363 6573732e 63616ea6 61637469 6f6ea770 726f6475 6365a872
        65736f75 726365af 2f646566 61756c74 2f6f7264 657273a9 7072696e 63697061
        6caa7573 65723a61 6c696365 a667726f 75707391 a36f7073
        """),
    ),
    (
        AccessAnswer(True, "user:alice", "produce", "/default/orders", "because", "b-orders", "producer"),
        unhex("""
        87a7616c 6c6f7765 64c3a970 72696e63 6970616c aa757365 723a616c 696365a6
        61637469 6f6ea770 726f6475 6365a872 65736f75 726365af 2f646566 61756c74
        2f6f7264 657273a6 72656173 6f6ea762 65636175 7365a762 696e6469 6e67a862
        2d6f7264 657273a4 726f6c65 a870726f 64756365 72
        """),
    ),
    (
        access.ListQuotas(after="user:a", limit=10),
        unhex("""
        83a26f70 ad616363 6573732e 71756f74 6173a561 66746572 a6757365 723a61a5
        6c696d69 740a
        """),
    ),
    (
        access.GetQuota(subject=QuotaSubject.parse("/shop")),
        unhex("""
        82a26f70 ac616363 6573732e 71756f74 61a77375 626a6563 74a52f73 686f70
        """),
    ),
    (
        access.SetQuota(
            subject=QuotaSubject("user", "alice"), changes={"publish_bytes_per_s": 1_000_000}, expected=VERSION
        ),
        unhex("""
        84a26f70 b0616363 6573732e 71756f74 615f7365 74a77375 626a6563 74aa7573
        65723a61 6c696365 a7636861 6e676573 81b37075 626c6973 685f6279 7465735f
        7065725f 73ce000f 4240a865 78706563 746564b0 62373632 35356361 65613634
        62343133
        """),
    ),
    (
        access.DeleteQuota(subject=QuotaSubject("user", "*"), expected=VERSION),
        unhex("""
        83a26f70 b3616363 6573732e 71756f74 615f6465 6c657465 a7737562 6a656374
        a6757365 723a2aa8 65787065 63746564 b0623736 32353563 61656136 34623431
        33
        """),
    ),
    (
        QUOTA,
        unhex("""
        88a77375 626a6563 74aa7573 65723a61 6c696365 af636f6e 6e656374 696f6e73
        5f6d6178 14ae7265 71756573 74735f70 65725f73 64b37075 626c6973 685f6279
        7465735f 7065725f 73ce000f 4240b166 65746368 5f627974 65735f70 65725f73
        ce001e84 80b07374 6f726564 5f627974 65735f6d 6178cf00 00010000 000000a7
        76657273 696f6eb0 62373632 35356361 65613634 62343133 a4757365 6485ab63
        6f6e6e65 6374696f 6e7302ae 72657175 65737473 5f706572 5f73cb3f f8000000
        000000b3 7075626c 6973685f 62797465 735f7065 725f73cb 41265089 00000000
        b1666574 63685f62 79746573 5f706572 5f73cb00 00000000 000000ac 73746f72
        65645f62 79746573 ce400000 00
        """),
    ),
    (
        access.QuotasListed([Quota(QuotaSubject.parse("/shop"), stored_bytes_max=1 << 40)], next="/shop"),
        unhex("""
        82a67175 6f746173 9183a773 75626a65 6374a52f 73686f70 b073746f 7265645f
        62797465 735f6d61 78cf0000 01000000 0000a475 73656480 a46e6578 74a52f73
        686f70
        """),
    ),
]
