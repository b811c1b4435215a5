"""Data sets by name, who gets which examples, and seeded batches."""
