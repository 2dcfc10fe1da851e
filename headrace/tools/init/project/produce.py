"""Write some flights to the topic, which is made first if it is not there."""

from __future__ import annotations

import json
import os

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

servers = {"bootstrap.servers": os.environ.get("KAFKA", "BROKERS")}
admin = AdminClient(servers)
try:
    admin.create_topics([NewTopic("flights", 4)])["flights"].result()
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise
producer = Producer(servers)
for number in range(1000):
    carrier = ("UA", "AA", "DL")[number % 3]
    value = json.dumps({"carrier": carrier, "delay": number % 60})
    producer.produce("flights", key=carrier, value=value)
if left := producer.flush(60):
    raise SystemExit(f"{left} records were not taken within a minute; is {servers} right?")
