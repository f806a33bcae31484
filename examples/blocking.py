"""The same client without await: for scripts, notebooks and threads.

python examples/blocking.py             with a broker of its own
DANUBE_URL=danube://127.0.0.1:6655 python examples/blocking.py
"""

from __future__ import annotations

import os
import secrets
import threading

import pydanube
from pydanube import testing

TOPIC = f"/default/lines-{secrets.token_hex(4)}"


def main(url: str) -> None:
    with pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC)
        with client.producer(TOPIC) as producer:
            receipt = producer.send(b"first line")
            print(f"published one message, offset {receipt.offset}")
            for number in range(2, 1001):
                producer.send_nowait(f"line {number}".encode())  # queued; flush waits for all of them
            producer.flush()
        print("published 999 more")

        with client.consumer(TOPIC, subscription="printer", start="earliest") as consumer:
            received = 0
            for message in consumer:
                received += 1
                consumer.ack(message)
                if received == 1000:
                    break
        place = client.describe_subscription(TOPIC, "printer").partitions[0]
        print(f"received {received}, the last one is {message.payload.decode()!r}; position {place.position}")
        assert place.position == 1000
    assert all(thread.name != "pydanube-client" for thread in threading.enumerate())
    print("the client's thread is gone with its block")


if __name__ == "__main__":
    if url := os.environ.get("DANUBE_URL"):
        main(url)
    else:
        with testing.broker_thread() as url:
            main(url)
