//! Kafka record batches of magic 2: view, validation, building, compression, decoding for people.
