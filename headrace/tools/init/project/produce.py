"""Write some flights to the topic, which is made first if it is not there."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = {"bootstrap.servers": os.environ.get("KAFKA", "BROKERS")}
with suppress(KafkaException):  # it is there
    AdminClient(servers).create_topics([NewTopic("flights", 4)])["flights"].result()
producer = Producer(servers)
for number in range(1000):
    carrier = ("UA", "AA", "DL")[number % 3]
    value = json.dumps({"carrier": carrier, "delay": number % 60})
    producer.produce("flights", key=carrier, value=value)
producer.flush()
