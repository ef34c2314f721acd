"""One provider per vendor: its settings, its client, its lifetime."""
