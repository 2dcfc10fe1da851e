"""Avro: schemas, their resolution, and the decoder of values into columns."""
