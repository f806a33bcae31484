"""Heads of requests that expect a version, and of answers that tell it: see `native_samples`."""

from __future__ import annotations

import msgspec
from native_samples import POLICY, unhex

from pydanube.model.names import TopicName
from pydanube.model.policies import Policies, PolicyReport
from pydanube.model.schemas import Binding, Compatibility
from pydanube.model.topics import SubscriptionDescription
from pydanube.operations import namespaces, schemas, subscriptions, topics

VERSION = "b76255caea64b413"
ORDERS = TopicName("default", "orders")

VERSION_HEADS: list[tuple[msgspec.Struct, bytes]] = [
    (
        namespaces.SetPolicies(target="shop", changes={"ttl_s": 5}, expected=VERSION),
        unhex("""
        84a26f70 ac706f6c 69636965 732e7365 74a67461 72676574 a473686f 70a76368
        616e6765 7381a574 746c5f73 05a86578 70656374 6564b062 37363235 35636165
        61363462 343133
        """),
    ),
    (
        topics.DeleteTopic(topic=TopicName.parse("/default/orders"), expected=VERSION),
        unhex("""
        83a26f70 ac746f70 69632e64 656c6574 65a5746f 706963af 2f646566 61756c74
        2f6f7264 657273a8 65787065 63746564 b0623736 32353563 61656136 34623431
        33
        """),
    ),
    (
        topics.GrowTopic(topic=TopicName.parse("/default/orders"), partitions=3, expected=VERSION),
        unhex("""
        84a26f70 aa746f70 69632e67 726f77a5 746f7069 63af2f64 65666175 6c742f6f
        72646572 73aa7061 72746974 696f6e73 03a86578 70656374 6564b062 37363235
        35636165 61363462 343133
        """),
    ),
    (
        namespaces.DeleteNamespace(namespace="shop", expected=VERSION),
        unhex("""
        83a26f70 b06e616d 65737061 63652e64 656c6574 65a96e61 6d657370 616365a4
        73686f70 a8657870 65637465 64b06237 36323535 63616561 36346234 3133
        """),
    ),
    (
        subscriptions.DeleteSubscription(
            topic=TopicName.parse("/default/orders"), subscription="billing", expected=VERSION
        ),
        unhex("""
        84a26f70 b3737562 73637269 7074696f 6e2e6465 6c657465 a5746f70 6963af2f
        64656661 756c742f 6f726465 7273ac73 75627363 72697074 696f6ea7 62696c6c
        696e67a8 65787065 63746564 b0623736 32353563 61656136 34623431 33
        """),
    ),
    (
        subscriptions.SetUnackedMax(
            topic=TopicName.parse("/default/orders"), subscription="billing", unacked_max=7, expected=VERSION
        ),
        unhex("""
        85a26f70 b8737562 73637269 7074696f 6e2e756e 61636b65 645f6d61 78a5746f
        706963af 2f646566 61756c74 2f6f7264 657273ac 73756273 63726970 74696f6e
        a762696c 6c696e67 ab756e61 636b6564 5f6d6178 07a86578 70656374 6564b062
        37363235 35636165 61363462 343133
        """),
    ),
    (
        subscriptions.SetFailurePolicy(
            topic=TopicName.parse("/a/b"), subscription="billing", failure_policy=POLICY, expected=VERSION
        ),
        unhex("""
        85a26f70 bb737562 73637269 7074696f 6e2e6661 696c7572 655f706f 6c696379
        a5746f70 6963a42f 612f62ac 73756273 63726970 74696f6e a762696c 6c696e67
        ae666169 6c757265 5f706f6c 69637987 b0726564 656c6976 65726965 735f6d61
        7803ae61 636b5f74 696d656f 75745f6d 73cd7530 a864656c 61795f6d 73cd01f4
        ac64656c 61795f6d 61785f6d 73cd1f40 a7626163 6b6f6666 00a6706f 69736f6e
        00b16465 61645f6c 65747465 725f746f 706963b3 2f646566 61756c74 2f6f7264
        6572732d 646c71a8 65787065 63746564 b0623736 32353563 61656136 34623431
        33
        """),
    ),
    (
        schemas.BindTopic(topic=ORDERS, binding=Binding("orders"), expected=VERSION),
        unhex("""
        84a26f70 ab736368 656d612e 62696e64 a5746f70 6963af2f 64656661 756c742f
        6f726465 7273a762 696e6469 6e6787a7 7375626a 656374a6 6f726465 7273a670
        6f6c6963 79a7656e 666f7263 65b17661 6c696461 74655f70 61796c6f 616473c3
        ae70696e 6e65645f 76657273 696f6e00 af6d696e 696d756d 5f766572 73696f6e
        00aa746f 6d627374 6f6e6573 c2a76672 616d696e 67a46e6f 6e65a865 78706563
        746564b0 62373632 35356361 65613634 62343133
        """),
    ),
    (
        schemas.UnbindTopic(topic=ORDERS, expected=VERSION),
        unhex("""
        83a26f70 ad736368 656d612e 756e6269 6e64a574 6f706963 af2f6465 6661756c
        742f6f72 64657273 a8657870 65637465 64b06237 36323535 63616561 36346234
        3133
        """),
    ),
    (
        schemas.SetCompatibility(subject="orders", level=Compatibility.FULL, expected=VERSION),
        unhex("""
        84a26f70 b8736368 656d612e 7365745f 636f6d70 61746962 696c6974 79a77375
        626a6563 74a66f72 64657273 a56c6576 656ca466 756c6ca8 65787065 63746564
        b0623736 32353563 61656136 34623431 33
        """),
    ),
    (
        schemas.CompatibilityLevel(Compatibility.FULL, Compatibility.FULL, VERSION),
        unhex("""
        83a96566 66656374 697665a4 66756c6c a36f776e a466756c 6ca77665 7273696f
        6eb06237 36323535 63616561 36346234 3133
        """),
    ),
    (
        topics.Topic("/default/orders", 9, 0, True, "durable", version=VERSION),
        unhex("""
        86a5746f 706963af 2f646566 61756c74 2f6f7264 657273a8 746f7069 635f6964
        09aa7061 72746974 696f6e73 00a87265 6c696162 6c65c3a9 61636b5f 6c657665
        6ca76475 7261626c 65a77665 7273696f 6eb06237 36323535 63616561 36346234
        3133
        """),
    ),
    (
        SubscriptionDescription("/default/orders", "billing", 9, "shared", failure_policy=POLICY, version=VERSION),
        unhex("""
        86a5746f 706963af 2f646566 61756c74 2f6f7264 657273a4 6e616d65 a762696c
        6c696e67 af737562 73637269 7074696f 6e5f6964 09a47479 7065a673 68617265
        64ae6661 696c7572 655f706f 6c696379 87b07265 64656c69 76657269 65735f6d
        617803ae 61636b5f 74696d65 6f75745f 6d73cd75 30a86465 6c61795f 6d73cd01
        f4ac6465 6c61795f 6d61785f 6d73cd1f 40a76261 636b6f66 6600a670 6f69736f
        6e00b164 6561645f 6c657474 65725f74 6f706963 b32f6465 6661756c 742f6f72
        64657273 2d646c71 a7766572 73696f6e b0623736 32353563 61656136 34623431
        33
        """),
    ),
    (
        PolicyReport(Policies(ttl_s=5), Policies(ttl_s=5), VERSION),
        unhex("""
        83a36f77 6ede0014 ad70726f 64756365 72735f6d 6178c0ad 636f6e73 756d6572
        735f6d61 78c0b173 75627363 72697074 696f6e73 5f6d6178 c0b16d65 73736167
        655f6279 7465735f 6d6178c0 b6707562 6c697368 5f6d6573 73616765 735f7065
        725f73c0 b3707562 6c697368 5f627974 65735f70 65725f73 c0b76469 73706174
        63685f6d 65737361 6765735f 7065725f 73c0b464 69737061 7463685f 62797465
        735f7065 725f73c0 ab726574 656e7469 6f6e5f73 c0af7265 74656e74 696f6e5f
        62797465 73c0a574 746c5f73 05b46261 636b6c6f 675f6d65 73736167 65735f6d
        6178c0b1 6261636b 6c6f675f 62797465 735f6d61 78c0ae62 61636b6c 6f675f61
        6374696f 6ec0af64 65647570 6c696361 74696f6e 5f73c0b0 696e6163 74697665
        5f746f70 69635f73 c0b7696e 61637469 76655f73 75627363 72697074 696f6e5f
        73c0ad73 65676d65 6e745f62 79746573 c0ad7365 676d656e 745f6167 655f73c0
        b074616b 656f7665 725f6166 7465725f 73c0a965 66666563 74697665 de0014ad
        70726f64 75636572 735f6d61 78c0ad63 6f6e7375 6d657273 5f6d6178 c0b17375
        62736372 69707469 6f6e735f 6d6178c0 b16d6573 73616765 5f627974 65735f6d
        6178c0b6 7075626c 6973685f 6d657373 61676573 5f706572 5f73c0b3 7075626c
        6973685f 62797465 735f7065 725f73c0 b7646973 70617463 685f6d65 73736167
        65735f70 65725f73 c0b46469 73706174 63685f62 79746573 5f706572 5f73c0ab
        72657465 6e74696f 6e5f73c0 af726574 656e7469 6f6e5f62 79746573 c0a57474
        6c5f7305 b4626163 6b6c6f67 5f6d6573 73616765 735f6d61 78c0b162 61636b6c
        6f675f62 79746573 5f6d6178 c0ae6261 636b6c6f 675f6163 74696f6e c0af6465
        6475706c 69636174 696f6e5f 73c0b069 6e616374 6976655f 746f7069 635f73c0
        b7696e61 63746976 655f7375 62736372 69707469 6f6e5f73 c0ad7365 676d656e
        745f6279 746573c0 ad736567 6d656e74 5f616765 5f73c0b0 74616b65 6f766572
        5f616674 65725f73 c0a77665 7273696f 6eb06237 36323535 63616561 36346234
        3133
        """),
    ),
    (
        topics.DeleteTopic(topic=TopicName.parse("/default/orders")),
        unhex("""
        82a26f70 ac746f70 69632e64 656c6574 65a5746f 706963af 2f646566 61756c74
        2f6f7264 657273
        """),
    ),
]
