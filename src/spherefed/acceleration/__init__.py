"""What makes training faster. Knows modules, parameters and losses, never client data or state."""
