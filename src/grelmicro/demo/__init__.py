"""What `python -m grelmicro demo` runs: worker processes, two kills, and a verdict. Not an API."""
