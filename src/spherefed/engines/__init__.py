"""Fleets: where clients live. They carry messages and know no algorithm."""
