"""Write records/flights.jsonl to the topic, which is made first if it is not there."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.config import load

brokers = ",".join(load(Path(__file__).with_name("headrace.yaml")).kafka.bootstrap_servers)
servers = {"bootstrap.servers": brokers}
admin = AdminClient(servers)
try:
    admin.create_topics([NewTopic("flights", 4)], request_timeout=10)["flights"].result()
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        reason = error.args[0].str()
        raise SystemExit(f"Kafka at {brokers} did not make the topic: {reason}") from None
producer = Producer(servers)
for value in Path(__file__).with_name("records").joinpath("flights.jsonl").open(encoding="utf-8"):
    producer.produce("flights", key=json.loads(value)["carrier"], value=value.strip())
if left := producer.flush(60):
    raise SystemExit(f"Kafka at {brokers} did not take {left} records within a minute")
