"""Glance's images: fetched, checked, kept and made."""
