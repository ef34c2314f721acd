"""How a Redis provider reads its address and speaks to its servers."""
