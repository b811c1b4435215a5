"""Encoders, prototypes, heads, and the classifier made of an encoder and a head."""
