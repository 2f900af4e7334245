"""The accuracy report of an artifact, as a page and as data."""
