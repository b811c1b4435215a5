"""Work done on the server: algorithms, aggregation, validation of replies, the round loop."""
