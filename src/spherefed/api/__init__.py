"""Whole experiments from Python, in a script or a notebook; `spherefed` itself exports these names."""
