"""Tests of grelmicro."""
