"""Running experiments into run directories: runner, checkpoints, comparison, tuning, inspection."""
