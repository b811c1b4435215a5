"""Trackers (TensorBoard, MLflow) that follow run directories; nothing of a run depends on them."""
