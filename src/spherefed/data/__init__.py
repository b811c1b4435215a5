"""Data sets by name, their partition among clients, and seeded batches."""
