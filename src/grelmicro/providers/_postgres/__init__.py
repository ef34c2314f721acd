"""The parts of the PostgreSQL provider."""
