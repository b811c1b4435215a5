"""Encoders, prototypes, heads and the classifier they make together."""
