"""Hyperspherical federated learning: fixed orthonormal heads, unit features, closed-form calibration."""
