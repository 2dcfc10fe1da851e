"""Values in Protobuf into columns: descriptors, their plans, and the decoder."""
